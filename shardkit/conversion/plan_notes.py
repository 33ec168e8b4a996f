"""What the user should know of a plan, one sentence each."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from urllib.parse import unquote

from shardkit.conversion.plan import Plan
from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.file_types import suffix_of
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile
from shardkit.sources.folders.class_folders import class_of, folder_notes
from shardkit.sources.formats import format_named
from shardkit.sources.split_names import in_order, split_of
from shardkit.sources.split_words import words_beside_split
from shardkit.sources.text.parallel import CLASS_PAIRS
from shardkit.transforms.pipeline import transform_notes
from shardkit.units import format_count, format_number

_MANY_FILES = 100
_LISTED_NAMES = 3
_PART_WORDS = frozenset({"part", "parts", "chunk", "shard", "batch", "data", "file", "split", "fold", "page"})
_NUMBERED = re.compile(r"\d")

# What tf.io.decode_image and tf.audio.decode_wav of TensorFlow 2.21 do not decode, or decode wrong.
_TITLES = {
    "image/tiff": "TIFF",
    "image/x-portable-anymap": "PNM",
    "image/bmp": "BMP of fewer than 24 bits",
    "audio/flac": "FLAC",
    "audio/ogg": "Ogg",
    "audio/mpeg": "MP3",
    "audio/aiff": "AIFF",
    "audio/basic": "AU",
    "audio/x-caf": "CAF",
    "audio/x-nist": "NIST SPHERE",
    "audio/x-svx": "SVX",
    "audio/x-rf64": "RF64",
    "audio/x-rifx": "RIFX",
    "audio/x-w64": "W64",
}
_OF_SEVERAL_FRAMES = ("image/gif", "image/webp", "image/tiff")
_SUFFIXES = {
    **dict.fromkeys((".tif", ".tiff"), "image/tiff"),
    **dict.fromkeys((".pbm", ".pgm", ".ppm", ".pnm"), "image/x-portable-anymap"),
    **dict.fromkeys((".aif", ".aiff", ".aifc"), "audio/aiff"),
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".au": "audio/basic",
    ".caf": "audio/x-caf",
    **dict.fromkeys((".sph", ".nist"), "audio/x-nist"),
    ".svx": "audio/x-svx",
    ".w64": "audio/x-w64",
}

_FEW_FILES = 16
# What the parts are called that a tool writes.
_TOOLS = {
    "parts of Spark or Hadoop": re.compile(r"part-(?:[mr]-)?\d{5}(?![^\W_])"),
    "parts of Dask": re.compile(r"part\.\d+\.parquet$|\d+\.part$"),
}
# As Hugging Face and Kaggle call columns that name splits.
_OF_SPLITS = re.compile(r"(?<![^\W_])(split|usage|subset)(?![^\W_])", re.IGNORECASE)
# What the files of a translation are called.
_SIDES = frozenset(
    """source target src tgt trg arabic chinese czech danish dutch english finnish french german greek hebrew hindi
    hungarian indonesian italian japanese korean norwegian persian polish portuguese romanian russian spanish swedish
    thai turkish ukrainian urdu vietnamese ar bg bn ca cs da de el en es et eu fa fi fr gl gu he hi hr hu id is it ja
    ka kk kn ko lt lv mk ml mr ms my ne nl no pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh""".split()  # noqa: SIM905
)
_PLAIN_SUFFIXES = frozenset({"", ".txt", ".text", ".tok"})


def plan_notes(plan: Plan, listed: tuple[RawFile, ...], fit_notes: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the notes on a plan.

    Args:
        listed: All inputs; with a limit the plan has a part of them.
        fit_notes: On what is appended, see `check_fit`.

    Raises:
        UsageError: If the first rows, which a limit takes, have some of the classes only.
    """
    return (
        *_layout_notes(plan),
        *_split_notes(plan),
        *_split_column_notes(plan),
        *_video_notes(plan),
        *_limit_notes(plan, listed),
        *_folder_notes(plan),
        *fit_notes,
        *transform_notes(plan.transforms),
        *media_notes(plan.features, plan.transforms.input_features, (f.name for f in plan.files)),
        *unsigned_notes(plan.features),
        *_packing_notes(plan),
        *_kernel_notes(),
    )


def _layout_notes(plan: Plan) -> tuple[str, ...]:
    source = plan.recipe.source
    is_other = format_named(source.format).has_row_files or source.has_text_classes
    if is_other or not plan.files or any(file.shard for file in plan.files):
        return ()
    bases = [file.name.rpartition("/")[2] for file in plan.files]
    found = [tool for tool, name in _TOOLS.items() if all(map(name.match, bases))]
    known = {feature.name for feature in plan.transforms.input_features or plan.features}
    keys = [
        key for folder in plan.files[0].name.split("/")[:-1] for key, equals, _ in [folder.partition("=")] if equals
    ]
    folders = [unquote(key) for key in keys if unquote(key) in known]
    found += [f"folders of Hive, whose names are the columns {', '.join(map(shown, folders))}"] if folders else []
    return (f"layout: {' in '.join(found)}",) if found else ()


def _split_notes(plan: Plan) -> tuple[str, ...]:
    if any(share.files for share in plan.recipe.splits):
        counts = Counter(map(split_of, plan.files))
        return ("files: " + ", ".join(f"{s.name} {format_count(counts[s.name])}" for s in plan.recipe.splits),)
    named = [split_of(file) for file in plan.files]
    found = {split for split in named if split is not None}
    names = ", ".join(in_order(found))
    if not plan.recipe.source.has_split_names:
        # A dataset that is appended to may have been made of files that tell no split.
        is_rare = len(found) < 2 and len(named) > _FEW_FILES
        if not found or is_rare or None not in named or not plan.recipe.has_fractions:
            return ()
        silent = printable(plan.files[named.index(None)].name)
        return (f"the names of some files tell splits ({names}), but not that of {silent}: all rows are pooled",)
    if plan.recipe.splits_by_name:
        if any(file.shard for file in plan.files):
            return (f"the dataset has the splits: {names}",)
        by = "the layout names" if any(file.split for file in plan.files) else "the names of the files tell"
        return (f"{by} the splits: {names}",)
    by = "the dataset has" if any(file.shard for file in plan.files) else "the names of the files tell"
    return (f"{by} splits ({names}), which are pooled: options divide the rows otherwise",)


def _split_column_notes(plan: Plan) -> tuple[str, ...]:
    recipe = plan.recipe
    if recipe.split_column or recipe.split_by or recipe.splits_by_name or len(recipe.splits) > 1:
        return ()
    found = next((f for f in plan.row_features if _OF_SPLITS.search(f.name) and f.dtype == "string"), None)
    if found is None:
        return ()
    option = f"--split-column {shlex.quote(printable(found.name))}"
    return (f"column {shown(found.name)} may name the split of each row; {option} divides the rows by it",)


def _video_notes(plan: Plan) -> tuple[str, ...]:
    recipe = plan.recipe
    is_dealt = recipe.has_fractions and len(recipe.splits) > 1 and not (recipe.group_by or recipe.split_by)
    if recipe.source.video == "bytes" or not is_dealt:
        return ()
    return (f"{recipe.source.video} of one video fall into several splits; --group-by filename keeps them together",)


def _folder_notes(plan: Plan) -> tuple[str, ...]:
    format = format_named(plan.recipe.source.format)
    is_settled = format.name == "dataset" or plan.transforms.options.source_column is not None
    if format.has_row_files or is_settled or plan.recipe.source.text_record == "file":
        return ()
    return folder_notes(plan.files, is_text=format.name == "text") or name_notes(
        plan.files, is_text=format.name == "text"
    )


def _limit_notes(plan: Plan, listed: tuple[RawFile, ...]) -> tuple[str, ...]:
    if plan.recipe.sample is not None:
        return (f"up to {format_count(plan.recipe.sample)} rows are taken at random, by the seed {plan.recipe.seed}",)
    if plan.recipe.limit is None:
        return ()
    of = " of each split" if plan.recipe.splits_by_name else ""
    number, total = len(plan.files), len(listed)
    read = f", from {format_count(number)} of {format_number(total, 'file')}" if number < total else ""
    all_classes, classes = ({class_of(f, plan.recipe.source) for f in files} for files in (listed, plan.files))
    source = plan.recipe.source
    has_classes = (format_named(source.format).has_row_files or source.has_text_classes) and source.labels is None
    if has_classes and len(classes) < len(all_classes):
        raise UsageError(
            f"the first {format_count(plan.recipe.limit)} rows{of} have {format_count(len(classes))} of "
            f"{format_count(len(all_classes))} classes",
            why="the files of a class stand together",
            next_step=f"Write --sample {plan.recipe.limit} instead, which takes rows at random",
        )
    return (f"the first {format_count(plan.recipe.limit)} rows{of} are taken{read}; --sample takes rows at random",)


def _packing_notes(plan: Plan) -> tuple[str, ...]:
    others = [shown(f.name) for f in plan.row_features if plan.packing and f.name != plan.packing.column]
    return (f"--pack leaves out: {', '.join(others)}",) if others else ()


def _kernel_notes() -> tuple[str, ...]:
    if HAS_KERNEL:
        return ()
    return ("the compiled kernel was not built: encoding takes many times longer (install with a C++ compiler)",)


def media_notes(features: Features, before: Features, names: Iterable[str]) -> tuple[str, ...]:
    """Returns notes on what TensorFlow does not decode, and on images of which the first frame is stored."""
    kinds = {(f.media_type or "").partition("/")[0] for f in (*features, *before)}
    suffixes = {suffix_of(name) for name in names} if kinds & {"image", "audio"} else set()
    is_rewritten = [f for f in before if f.media_type not in (None, *(g.media_type for g in features))]
    return (*_undecodable(features, suffixes), *_frames(is_rewritten, suffixes))


def unsigned_notes(features: Features) -> tuple[str, ...]:
    """Returns a note on columns of uint64, whose largest values other readers take for negative ones."""
    names = [shown(f.name) for f in features if f.dtype == "uint64"]
    if not names:
        return ()
    return (
        f"uint64 in {', '.join(names)}: a tf.train.Example holds int64, so values from 2**63 on are stored as negative "
        "ones of the same 64 bits, as TFDS does; shardkit reads them back as they were, other readers do not",
    )


def _types_of(feature: Feature, suffixes: Iterable[str]) -> list[str]:
    kind, _, subtype = (feature.media_type or "").partition("/")
    if subtype != "*":
        return [feature.media_type or ""]
    return sorted({t for s, t in _SUFFIXES.items() if s in suffixes and t.startswith(kind)})


def _undecodable(features: Features, suffixes: Iterable[str]) -> Iterator[str]:
    for feature in features:
        found = [_TITLES[t] for t in _types_of(feature, suffixes) if t in _TITLES]
        if found and feature.dtype == "bytes":
            is_image = (feature.media_type or "").startswith("image/")
            advice = "--image-format png stores it as PNG" if is_image else "--audio samples stores the decoded samples"
            yield f"TensorFlow does not decode {', '.join(found)}: {advice}"


def _frames(images: Iterable[Feature], suffixes: Iterable[str]) -> Iterator[str]:
    if any(t in _OF_SEVERAL_FRAMES for f in images for t in _types_of(f, suffixes)):
        yield "of an image with several frames or pages, the first is stored"


def name_notes(files: Sequence[RawFile], *, is_text: bool = True) -> tuple[str, ...]:
    """Returns notes on files of one split whose names differ in words, which become no column.

    Words for splits, numbers and parts say nothing of the rows.

    Args:
        files: Of tables, or of texts whose lines are rows.
        is_text: Whether they are texts.

    Raises:
        UsageError: If the names are those of two classes, as `pos.csv` and `neg.csv`, or of texts in several languages.
    """
    groups: dict[str | None, set[str]] = {}
    for file in files:
        if file.shard is None:
            groups.setdefault(split_of(file), set()).add(file.name.rpartition("/")[2])
    few = [bases for bases in groups.values() if 1 < len(bases) <= _MANY_FILES]
    versions = next((pair for bases in few if (pair := _versions(bases)) is not None), None)
    if versions is not None:
        first, second = map(printable, versions)
        return (
            f"{first} and {second} are read together, and one may be a part or another version of the other; "
            f"--exclude {shlex.quote(second)} leaves it out, --source-column NAME tells their rows apart",
        )
    bases = next((bases for bases in few if _differ_in_words(bases)), None)
    if bases is None:
        return ()
    if {base.partition(".")[0].lower() for base in bases} in CLASS_PAIRS:
        raise _names_that_tell(bases, "two classes", "label")
    if _are_sides(bases):
        error = _names_that_tell(bases, "languages or sides of a translation", "language")
        if not is_text:
            error.next_step = f"{error.next_step}; --format text checks whether they belong together line by line"
        raise error
    listed = ", ".join(map(printable, sorted(bases)[:_LISTED_NAMES])) + (", ..." if len(bases) > _LISTED_NAMES else "")
    return (f"the names {listed} become no column; --source-column NAME gives each row the path of its file",)


def _names_that_tell(bases: Collection[str], what: str, column: str) -> UsageError:
    return UsageError(
        f"{' and '.join(map(printable, sorted(bases)[:_LISTED_NAMES]))} are called after {what}",
        why="their names would become no column",
        next_step=f"--source-column {column} gives each row the name of its file; --include GLOB takes one of them",
    )


def _are_sides(bases: Collection[str]) -> bool:
    """Whether texts are called after languages, as `en.txt` and `de.txt` are. Tables may be those of countries."""
    words = [_words_of(base) for base in bases]
    own = [found - frozenset.intersection(*words) for found in words]
    suffixes = {suffix_of(base) for base in bases}
    are_plain = all(suffix in _PLAIN_SUFFIXES or suffix[1:] in _SIDES for suffix in suffixes)
    return are_plain and all(len(found) == 1 and found <= _SIDES for found in own)


def _differ_in_words(bases: Collection[str]) -> bool:
    if any(_NUMBERED.search(base) for base in bases):
        return False
    words = [_words_of(base) for base in bases]
    own = [found - frozenset.intersection(*words) for found in words]
    return len(set(own)) > 1 and all(own)


def _versions(bases: Collection[str]) -> tuple[str, str] | None:
    """Returns two names of which one has all words of the other and more, as `bank.csv` and `bank-full.csv`."""
    words = {base: _words_of(base) for base in sorted(bases)}
    shortest = min(words, key=lambda base: len(words[base]))
    stem = re.compile(rf"(?<![^\W_]){re.escape(shortest.partition('.')[0])}(?![^\W_])", re.IGNORECASE)
    longer = next((base for base, found in words.items() if found > words[shortest] and stem.search(base)), None)
    return None if longer is None else (shortest, longer)


def _words_of(base: str) -> frozenset[str]:
    return frozenset(word.lower() for word in words_beside_split(base) if len(word) > 1) - _PART_WORDS
