"""Files that belong together, such as an image and its mask: folders of them are no classes, and each is no row."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from glob import escape

from shardkit.errors import UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.file_globs import common_end, glob_options, globs_of, suffix_with_case
from shardkit.sources.split_names import split_of
from shardkit.units import format_count

Classes = Mapping[str, str | None]
"""The class folder of each file by its name, None where it has none."""

_MIN_PAIRS = 3
_MASK_WORDS = frozenset({"mask", "masks"})
_MASKS = (
    "masks?|labels?|labell?ed|annotations?|annots?|gts?|groundtruths?|truths?|segs?|segmentations?|trimaps?|mattes?"
)
_IN_FOLDER = re.compile(_MASKS)
# Two classes may be called manual and automatic.
_IN_NAME = re.compile(f"{_MASKS}|manual")
_SIGN = re.compile(_IN_NAME.pattern, re.IGNORECASE)
# gtFine and GroundTruth are two words each.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MARK = re.compile(rf"(?:^|[^a-z])(?:{_MASKS})(?:$|[^a-z])", re.IGNORECASE)
_END = re.compile(r"[^A-Za-z0-9]+(?=[^A-Za-z]*[A-Za-z])")
_SEPARATOR = re.compile("[_.-]")
_DIGITS = re.compile("[0-9]+")
_DIGITS_AT_END = re.compile("[0-9]+$")
_NO_DIGIT = re.compile(r"[^0-9].*")
# What people call the folders of the parts of each example, without numbers; words for masks go with all of them.
_PARTS = (
    {"A", "B"},
    {"x", "y"},
    {"X", "Y"},
    {"hr", "lr", "original", "bicubic", "lrbicx"},
    {"hq", "lq"},
    {"high", "low"},
    {"input", "output", "target"},
    {"source", "target"},
    {"src", "tgt"},
    {"before", "after"},
    {"image", "img"},
    {"clean", "noisy", "noise"},
    {"clear", "clean", "hazy", "haze", "foggy"},
    {"norain", "clean", "rain", "rainy"},
    {"sharp", "blur", "blurred", "blurry"},
    {"infrared", "thermal", "ir", "visible", "vis", "vi", "rgb"},
    {"left", "right", "disp", "disparity", "depth"},
    {"mix", "mixture", "s", "noise"},
    {"rgb", "color", "colour", "depth"},
)
_MAX_FOLDERS = 3
_MIN_SINGLE_FILES = 6
# What tells the parts of an example apart in the names of files, as _depth of 1_depth.png.
_LAST_WORD = re.compile(r"[^A-Za-z0-9/]+[0-9]*[A-Za-z][A-Za-z0-9]*$")


def check_no_masks(
    files: tuple[RawFile, ...],
    classes: Classes,
    option_for: Callable[[tuple[RawFile, ...]], str],
    *,
    has_labels: bool,
) -> None:
    """Checks that no masks lie beside their images: files that are called so and like another one, or in pairs.

    Args:
        files: A row each.
        classes: Theirs.
        option_for: Returns the option that is needed besides if only some files are left.
        has_labels: Whether labels tell what the files are.

    Raises:
        UsageError: If masks do, or files of the same names with another extension.
    """
    if masks := _masks_among(files, classes):
        beside = {file.name for file in masks}
        kept = tuple(file for file in files if file.name not in beside)
        raise UsageError(
            "masks lie beside the images",
            where=place(masks[0]),
            why=f"{format_count(len(masks))} of {format_count(len(files))} files are called so",
            next_step=f"Leave them out with {_without_masks(masks, kept, has_labels)}{option_for(kept)}, or add "
            "--no-labels to take all as images",
        )
    if not has_labels:
        _check_no_twins(files, option_for)
        if set(classes.values()) == {None}:
            _check_no_marked(files, option_for)


def _without_masks(masks: Sequence[RawFile], kept: Sequence[RawFile], has_labels: bool) -> str:
    globs = globs_of(masks, kept, _marks_of(masks[0]))
    if has_labels:
        # The labels may lie in the same folders.
        suffixes = {suffix_with_case(file.name) for file in masks}
        suffix = suffixes.pop() if len(suffixes) == 1 else ""
        globs = tuple(f"{glob}{suffix}" if glob.endswith("/*") else glob for glob in globs)
    return glob_options("--exclude", globs)


def option_without_masks(files: Sequence[RawFile]) -> str:
    """Returns the option that leaves out the masks among files whose labels are named, behind a blank, if there are."""
    masks = _masks_among(files, dict.fromkeys((file.name for file in files), None))
    beside = {file.name for file in masks}
    kept = [file for file in files if file.name not in beside]
    return f" {_without_masks(masks, kept, has_labels=True)}" if masks else ""


def _marks_of(mask: RawFile) -> tuple[str, ...]:
    stem, suffix = _without_suffix(mask.name.rpartition("/")[2]), suffix_with_case(mask.name)
    found = _MARK.search(stem)
    if found is None:
        return ()
    before, after = ("" if found.start() == 0 else "*"), ("" if found.end() == len(stem) else "*")
    return (f"{before}{found[0]}{after}{suffix}",)


def _check_no_twins(files: Sequence[RawFile], option_for: Callable[[tuple[RawFile, ...]], str]) -> None:
    by_path: dict[str, list[RawFile]] = {}
    for file in files:
        by_path.setdefault(_without_suffix(file.name), []).append(file)
    twins = [alike for alike in by_path.values() if len(alike) == 2]
    kinds = Counter(tuple(sorted(suffix_with_case(file.name) for file in alike)) for alike in twins)
    (first, second), count = kinds.most_common(1)[0] if kinds else (("", ""), 0)
    if not first or count < _MIN_PAIRS or 4 * count <= len(files):
        return
    example = next(alike for alike in twins if {suffix_with_case(file.name) for file in alike} == {first, second})
    ways = []
    for suffix in (second, first):
        kept = tuple(file for file in files if not file.name.endswith(suffix))
        ways.append(f"--exclude {shlex.quote(f'*{printable(suffix)}')}{option_for(kept) if kept else ''}")
    raise UsageError(
        "files of the same names lie beside each other",
        where=place(example[0]),
        why=f"{format_count(2 * count)} of {format_count(len(files))} files end in {printable(first)} and "
        f"{printable(second)}, as images and their masks do",
        next_step=f"Leave one kind out with {' or '.join(ways)}, or add --no-labels to take all",
    )


def _check_no_marked(files: Sequence[RawFile], option_for: Callable[[tuple[RawFile, ...]], str]) -> None:
    """Checks that not all files are called alike in twos or more but for the same last words, as 1_rgb and 1_depth."""
    paths = [_without_suffix(file.name) for file in files]
    ends = [found[0] if (found := _LAST_WORD.search(path)) else "" for path in paths]
    counts = Counter(ends)
    marks: dict[str, set[str]] = {}
    for path, end in zip(paths, ends, strict=True):
        mark = end if counts[end] >= _MIN_PAIRS else ""
        marks.setdefault(path.removesuffix(mark), set()).add(mark)
    (first, *others), *further = sorted(map(sorted, marks.values())) or [[""]]
    if not others or len(marks) < _MIN_PAIRS or any(found != [first, *others] for found in further):
        return
    wanted = {f"{base}{first}" for base in marks}
    kept = tuple(file for file, path in zip(files, paths, strict=True) if path in wanted)
    globs = globs_of([file for file, path in zip(files, paths, strict=True) if path not in wanted], kept)
    raise UsageError(
        "files of the same names but for their ends lie beside each other",
        where=place(files[0]),
        why=f"all are called alike but for {', '.join(printable(mark) or 'nothing' for mark in (first, *others))}, as "
        "the parts of pairs are",
        next_step=f"Leave some out, as with {glob_options('--exclude', globs)}{option_for(kept)}, or add --no-labels "
        "to take all",
    )


def _masks_among(files: Sequence[RawFile], classes: Classes) -> list[RawFile]:
    """Returns the files that are called masks, if more than half of them are called like others besides."""
    words = {file.name: found for file in files if (found := _mask_words(file.name))}
    if len(words) == len(files):
        # What all are called tells none apart.
        shared = frozenset.intersection(*words.values()) if words else frozenset()
        words = {name: rest for name, found in words.items() if (rest := found - shared)}
    names = {classes[file.name] for file in files if file.name not in words}
    if len(names - {None}) > 1:
        # Beside two others a folder may be a class, unless it is called mask.
        words = {
            name: found
            for name, found in words.items()
            if found & _MASK_WORDS or found - _mask_words(f"{classes[name]}/")
        }
    masks = [file for file in files if file.name in words]
    others = _keys_of([file for file in files if file.name not in words]) if masks else set()
    return masks if 2 * sum(_is_called_like(file, others) for file in masks) > len(masks) else []


def _mask_words(name: str) -> frozenset[str]:
    if _SIGN.search(name) is None:
        return frozenset()
    folder, _, last = _without_suffix(name).rpartition("/")
    return frozenset(_words(folder, _IN_FOLDER) | _words(last, _IN_NAME))


def _words(text: str, wanted: re.Pattern[str]) -> set[str]:
    return {word for found in _WORD.findall(text) if wanted.fullmatch(word := found.lower())}


def _keys_of(files: Sequence[RawFile]) -> set[str]:
    """Returns what files may share with their masks: their names, also without what all in a folder end in."""
    by_folder: dict[str, list[str]] = {}
    for file in files:
        by_folder.setdefault(file.name.rpartition("/")[0], []).append(_stem(file))
    return {key for stems in by_folder.values() for key in (*stems, *_without_common_end(stems))}


def _is_called_like(mask: RawFile, others: Collection[str]) -> bool:
    stem = _stem(mask)
    starts = (stem[: found.start()] for found in _END.finditer(stem))
    return stem in others or _MARK.sub("", stem) in others or any(start in others for start in starts)


def _without_common_end(stems: Sequence[str]) -> list[str]:
    end = _NO_DIGIT.search(common_end(stems)) if len(stems) > 1 else None
    return [stem.removesuffix(end[0]) for stem in stems] if end else list(stems)


def check_no_pairs(files: Sequence[RawFile], classes: Classes) -> None:
    """Checks that class folders do not hold the parts of examples: files of the same names.

    Files of a class are often counted. These are parts if the folders are called so, as `HR` and `LR`. Others are
    in up to three folders. A folder of one file each is no class either.

    Raises:
        UsageError: If they do.
    """
    counts = Counter(classes.values())
    names = sorted({str(name) for name in classes.values()})
    if len(counts) >= _MIN_SINGLE_FILES and set(counts.values()) == {1} and None not in counts:
        ends = Counter(end[0] for name in names if (end := _LAST_WORD.search(name)))
        globs = [f"*{escape(end)}/*" for end, number in sorted(ends.items()) if number >= _MIN_PAIRS]
        ways = [glob_options("--include", [glob]) for glob in globs]
        taken = f"Take one part with {' or '.join(ways)}" if len(ways) > 1 else ""
        raise UsageError(
            "each class folder holds one file",
            where=place(files[0]),
            why=f"{format_count(len(counts))} folders would be as many classes of one row",
            next_step=f"{taken or 'Leave masks and the like out with --exclude GLOB'}, and add --no-labels to take "
            "the files without a class, or name a file of labels with --labels",
        )
    stems = _names_by_class(files, classes)
    found = [[stems.get((split, name), []) for name in names] for split in {split for split, _ in stems}]
    are_called_so = _are_parts(names)
    if not len(names) > 1 or not (are_called_so or len(names) <= _MAX_FOLDERS):
        return
    if not all(_are_alike(alike, are_called_so) for alike in found):
        return
    ways = []
    for name in names:
        wanted = [file for file in files if classes[file.name] == name]
        others = [file for file in files if classes[file.name] != name]
        ways.append(glob_options("--include", globs_of(wanted, others)))
    raise UsageError(
        f"the folders {' and '.join(map(printable, names))} are hardly classes",
        where=place(files[0]),
        why="they hold files of the same names, as the parts of pairs do",
        next_step=f"Take one of them with {' or '.join(ways)} and --no-labels, which alone takes all without a class; "
        "if they are classes, say which folder is one with --class-folder N",
    )


def _are_parts(names: Sequence[str]) -> bool:
    # Small letters are hardly the two domains of CycleGAN.
    parts = {name if len(name) == 1 else re.sub(r"[0-9_-]|s$", "", name.lower()) for name in names}
    masks = {part for part in parts if _IN_FOLDER.fullmatch(part)}
    return len(parts) > 1 and any(parts - masks <= known for known in _PARTS)


def _are_alike(folders: Sequence[Sequence[str]], are_called_so: bool) -> bool:
    """Whether the names of the files of several folders are the same, but for what all of a folder begin or end in.

    Args:
        are_called_so: Whether the folders are called parts of examples: then numbers are names.
    """
    if len(folders[0]) < (2 if are_called_so else _MIN_PAIRS):
        return False
    ways: list[Callable[[Sequence[str]], Sequence[str]]] = [list, _without_common_end]
    if are_called_so:
        ways += [_without_common_start, lambda names: [_SEPARATOR.split(name)[0] for name in names]]
    found = next((each for way in ways if _are_same(each := [way(names) for names in folders])), None)
    return found is not None and (are_called_so or not _are_counted(_without_common_start(found[0])))


def _are_same(folders: Sequence[Sequence[str]]) -> bool:
    first = set(folders[0])
    return all(set(names) == first for names in folders)


def _without_common_start(stems: Sequence[str]) -> list[str]:
    turned = [stem[::-1] for stem in stems]
    start = _DIGITS_AT_END.sub("", common_end(turned)[::-1]) if len(stems) > 1 else ""
    return [stem.removeprefix(start) for stem in stems]


def _are_counted(stems: Sequence[str]) -> bool:
    """Whether each name holds one number, and these are of a range without large gaps, as of the files of a class."""
    runs = [_DIGITS.findall(stem) for stem in stems]
    numbers = {int(found[0]) for found in runs if len(found) == 1}
    return all(len(found) == 1 for found in runs) and max(numbers) - min(numbers) < 2 * len(numbers)


def pair_notes(files: Sequence[RawFile], classes: Classes) -> Iterator[str]:
    """Yields a note where class folders hold files of the same names, as images of two sizes or images and masks do."""
    stems = _names_by_class(files, classes)
    (split, name), names = next(iter(stems.items()))
    first = set(names)
    is_same = all(set(found) == first for (other, _), found in stems.items() if other == split)
    # Files of a class are often numbered.
    if is_same and len({name for _, name in stems}) > 1 and sum(not stem.isdigit() for stem in first) >= _MIN_PAIRS:
        yield (
            f"all classes have files of the same names; if these belong together, take one folder with "
            f"--include {shlex.quote(f'*{printable(name)}/*')} --no-labels"
        )


def _names_by_class(files: Sequence[RawFile], classes: Classes) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for file in files:
        found.setdefault((split_of(file) or "", str(classes[file.name])), []).append(_stem(file))
    return found


def _without_suffix(name: str) -> str:
    return name[: len(name) - len(suffix_with_case(name))]


def _stem(file: RawFile) -> str:
    return _without_suffix(file.name.rpartition("/")[2]).lower()
