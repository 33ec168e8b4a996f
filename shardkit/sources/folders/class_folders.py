"""Folders that say what class the files in them are of: images, sounds and texts."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from glob import escape
from urllib.parse import unquote

import msgspec

from shardkit.errors import UsageError
from shardkit.file_types import COMPRESSED_PATTERN
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.file_globs import glob_in_shell, glob_options, globs_of
from shardkit.sources.folders.class_levels import Placed, check_levels
from shardkit.sources.folders.named_classes import advice_on_named_classes
from shardkit.sources.folders.paired_files import check_no_masks, check_no_pairs, pair_notes
from shardkit.sources.naming_tables import labels_option
from shardkit.sources.split_names import folders_below_split, in_order, split_of, splits_in_names
from shardkit.sources.split_words import name_beside_split, split_in_name
from shardkit.units import format_count

_LISTED_CLASSES = 8
_LISTED_FOLDERS = 3
_MANY_FOLDERS = 100
_ARCHIVE_SUFFIX = re.compile(f"\\.(?:zip|tar(?:{COMPRESSED_PATTERN})?|tgz|tbz2?|txz)$", re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z_]\w*=(?=.)")
_CONTAINERS = frozenset(
    {"images", "image", "imgs", "img", "jpegimages", "pictures", "photos", "unlabeled", "unlabelled", "unsup"}
)


def find_class_level(files: tuple[RawFile, ...], options: SourceOptions) -> int:
    """Returns which folder of each file is its class; see `SourceOptions.class_level`.

    That is the one that `--class-folder` names. Without it, that is the innermost folder that all files have, unless it
    has the same name everywhere: then the one above. A single folder around all files is no class.

    Raises:
        UsageError: If `--class-folder` names a folder that a file does not lie in, or that all files lie in.
    """
    folders = [_folders(f, options) for f in files]
    if options.class_folder is not None:
        level = options.class_folder - 1
        lost = next((f for f, found in zip(files, folders, strict=True) if len(found) <= level), None)
        if lost is not None:
            raise UsageError(
                f"a file lies below fewer folders than --class-folder {options.class_folder} counts",
                where=place(lost),
                why="those below the input count, without that of a split",
                next_step="Give a smaller number, or choose files with --include GLOB or --exclude GLOB",
            )
        names = {found[level] for found in folders}
        if len(names) == 1:
            raise UsageError(
                f"--class-folder {options.class_folder} names one folder, {printable(names.pop())}, around all files",
                why="one class is no label",
                next_step="Give the number of a folder further in, or --no-labels to take the files without a class",
            )
        return level
    depth = min(map(len, folders), default=0)
    if depth == 0:
        return 0
    differing = (level for level in reversed(range(depth)) if len({parts[level] for parts in folders}) > 1)
    # Where only some files lie in several further folders, these may be classes, and the others have none.
    further = {parts[depth] for parts in folders if len(parts) > depth}
    return next(differing, depth if len(further) > 1 else max(map(len, folders)))


def check_class_folders(files: tuple[RawFile, ...], options: SourceOptions, naming: Sequence[RawFile] = ()) -> None:
    """Checks that the folders of files can be their classes.

    A folder around all of an archive is no class.

    Args:
        files: A row each.
        naming: Tables that name some of them.

    Raises:
        UsageError: If all files lie in one folder, which may be their only class or hold them all, one of several is
            called `images` or the like, or a table names them too; unless labels are given, or `--no-labels`.
    """
    if options.no_labels:
        return
    found = {file.name: class_of(file, options) for file in files}
    has_labels = options.labels is not None
    check_no_masks(files, found, lambda left: _option_for_one_folder(left, options), has_labels=has_labels)
    if has_labels or options.class_folder is not None:
        return
    _check_no_class_beside_split(files, options)
    check_depth(files, options)
    classes = Counter(found.values())
    check_no_pairs(files, found)
    check_no_container(files, options)
    if naming and set(classes) != {None}:
        table = naming[0]
        raise UsageError(
            "the files lie in folders, which may be their classes, and a table names them",
            where=printable(table.name),
            next_step=f"{labels_option(table)} joins its columns, --exclude {glob_in_shell(escape(table.name))} takes "
            "the folders as classes",
        )
    check_level(files, options)
    if all(file.member is not None for file in files):
        return
    innermost = {_innermost(file, options) for file in files}
    if len(innermost) == 1 and (only := innermost.pop()) and set(classes) == {None}:
        advice = advice_on_named_classes(files)
        raise UsageError(
            f"all files lie in one folder, {printable(only)}",
            why="it may be their only class, or hold them without a class",
            next_step="Add --no-labels to take them without a class, or name a file of labels with "
            f"{labels_option(naming[0]) if naming else '--labels'}{advice and f'; {advice}'}",
        )


def _innermost(file: RawFile, options: SourceOptions) -> str:
    """Returns the folder of a file, below that of its split; empty if there is none."""
    split_part = split_in_name(file.name) if options.has_split_names else None
    above = 0 if split_part is None else split_part.level
    return (_folders(file, options)[above:] or [""])[-1]


def check_level(files: Sequence[RawFile], options: SourceOptions) -> None:
    """Checks that the folders of the chosen level are the only ones that may be classes; see `check_levels`."""
    check_levels([Placed(file, _folders(file, options)) for file in files], options.class_level)


def check_depth(files: Sequence[RawFile], options: SourceOptions) -> None:
    """Checks that no file lies above folders that may be the classes of the others.

    Raises:
        UsageError: If a class folder holds files, and another one several folders and no file.
    """
    above: dict[str | None, list[RawFile]] = {}
    inner: dict[str | None, dict[str, list[RawFile]]] = {}
    depth = min((len(_folders(file, options)) for file in files), default=0)
    for file in files:
        folders, name = _folders(file, options), class_of(file, options)
        level = depth if name is None else options.class_level + 1
        if len(folders) > level:
            inner.setdefault(name, {}).setdefault(folders[-1], []).append(file)
        else:
            above.setdefault(name, []).append(file)
    strays = [file for alike in above.values() for file in alike]
    for name, found in inner.items():
        if len(found) > 1 and strays and (name is None or name not in above):
            listed = ", ".join(map(printable, sorted(found)[:_LISTED_FOLDERS]))
            below = [file for folders in inner.values() for alike in folders.values() for file in alike]
            raise UsageError(
                "files lie above folders that may be classes",
                where=place(strays[0]),
                why=f"others lie in {listed}",
                next_step=f"Leave {'it' if len(strays) == 1 else 'them'} out with {_fewer(strays, below)}, or add "
                "--no-labels to take all without a class. --class-folder N names the folder that is the class",
            )


def _fewer(files: Sequence[RawFile], others: Sequence[RawFile]) -> str:
    """Returns the options that leave out these files, or the others if these are fewer, or fewer globs tell them."""
    globs, other_globs = globs_of(files, others), globs_of(others, files)
    takes_others = (len(others), len(other_globs)) < (len(files), len(globs))
    return glob_options("--exclude", other_globs if takes_others else globs)


def _option_for_one_folder(files: tuple[RawFile, ...], options: SourceOptions) -> str:
    """Returns the option without which files are refused, since one folder is no class; empty if none is needed."""
    if options.labels is not None:
        return ""
    has_split_names = options.has_split_names and bool(splits_in_names(files))
    left = msgspec.structs.replace(options, has_split_names=has_split_names)
    left = msgspec.structs.replace(left, class_level=find_class_level(files, left))
    is_one = all(class_of(file, left) is None for file in files) and any(_folders(file, left) for file in files)
    return " --no-labels" if is_one else ""


def check_no_container(files: Sequence[RawFile], options: SourceOptions) -> None:
    """Checks that no class folder is called as one around files or as one of files without a class.

    Raises:
        UsageError: If one of several is.
    """
    classes = Counter(class_of(file, options) for file in files)
    held = next((name for name in classes if name is not None and _is_no_class(name)), None)
    if held is None or len(classes) == 1:
        return
    others = sorted(str(name) for name in classes if name not in (held, None))
    example = next(file for file in files if class_of(file, options) == held)
    # A single other folder may be what is in the way; of several, as class folders, none is.
    names = (others[0], held) if len(others) == 1 else (held,)
    globs = [sorted({_glob_of(file) for file in files if class_of(file, options) == name}) for name in names]
    excluded = " or ".join(" ".join(f"--exclude {glob}" for glob in alike[:_LISTED_CLASSES]) for alike in globs)
    raise UsageError(
        f"the folder {printable(held)} is hardly a class",
        where=place(example),
        why=f"it holds {format_count(classes[held])} of {format_count(len(files))} files, beside "
        f"{', '.join(map(printable, others[:_LISTED_FOLDERS]))}",
        next_step=f"Leave files out with --exclude GLOB, as by {excluded}; --no-labels takes all without a class, "
        "--labels names a file of labels, and --class-folder N takes the folder as a class",
    )


def _is_no_class(name: str) -> bool:
    return name.lower() in _CONTAINERS or name.startswith("_")


def _check_no_class_beside_split(files: Sequence[RawFile], options: SourceOptions) -> None:
    found: dict[str, dict[str, str]] = {}
    for name in (file.name for file in files) if options.has_split_names else ():
        if (beside := name_beside_split(name)) is not None:
            found.setdefault(beside.split, {}).setdefault(beside.rest, beside.folder)
    alike = set.intersection(*map(set, found.values())) if found else set[str]()
    for split, folders in found.items():
        # `Training plan` and `Blood test` may be classes, `train_images` and `test_images` are none.
        if len(folders) > 1 or (len(found) > 1 and not alike):
            rest, folder = min(folders.items())
            names = sorted(set(folders.values()) | {min(others.values()) for others in found.values()})
            raise UsageError(
                "folders are called after a split and something else, which may be a class",
                why=f"such as {', '.join(map(printable, names[:_LISTED_FOLDERS]))}",
                next_step=f"Move the files of {printable(folder)} to {split}/{printable(rest)} and the like, or add "
                "--no-labels to take them without a class, or --labels with a table of their classes",
            )


def _glob_of(file: RawFile) -> str:
    return shlex.quote(f"{printable(file.name.rpartition('/')[0])}/*")


def class_of(file: RawFile, options: SourceOptions) -> str | None:
    """Returns the folder that is the class of a file, None if it has none."""
    folders = _folders(file, options)
    if options.no_labels or len(folders) <= options.class_level:
        return None
    folder = folders[options.class_level]
    return folder if file.member is None else _ARCHIVE_SUFFIX.sub("", folder)


def classes_of(files: tuple[RawFile, ...], kind: str, options: SourceOptions) -> tuple[str, ...]:
    """Returns the names of the class folders, none if no file has one.

    Args:
        kind: What one is, for messages, such as `an image`.

    Raises:
        UsageError: If some files lie in class folders and others do not.
    """
    classes = {class_of(f, options) for f in files}
    if classes == {None}:
        return ()
    if None in classes:
        lost = [f for f in files if class_of(f, options) is None]
        kept = [f for f in files if class_of(f, options) is not None]
        raise UsageError(
            f"{kind} lies in no class folder, while others do",
            where=place(lost[0]),
            why=f"{len(lost):,} of {len(files):,} files have none; the folder is the class, as in cats/1.jpg",
            next_step=f"Leave {'it' if len(lost) == 1 else 'them'} out with "
            f"{glob_options('--exclude', globs_of(lost, kept))}, give --labels, or take all without labels by "
            "--no-labels",
        )
    return tuple(sorted(c for c in classes if c is not None))


def describe_classes(files: Sequence[RawFile], options: SourceOptions) -> str:
    """Returns the classes of the files with their counts, the first ones of many; empty where a file has none."""
    counts = Counter(class_of(file, options) for file in files)
    return "" if None in counts else list_counts({str(name): n for name, n in counts.items()})


def list_counts(counts: Mapping[str, int]) -> str:
    """Returns names with their counts, by name; of many the first ones."""
    listed = [f"{printable(name)} {format_count(n)}" for name, n in sorted(counts.items())]
    more = f" and {format_count(len(listed) - _LISTED_CLASSES)} more" if len(listed) > _LISTED_CLASSES else ""
    return f"{', '.join(listed[:_LISTED_CLASSES])}{more}"


def class_notes(files: tuple[RawFile, ...], kinds: str, options: SourceOptions) -> tuple[str, ...]:
    """Returns a note on the classes of the files, or on why they get no label.

    Args:
        kinds: What they are, such as `images`.
    """
    if options.no_labels:
        return ()
    if any(class_of(f, options) is not None for f in files):
        classes = f"files in class folders: {describe_classes(files, options)}"
        return (
            classes,
            *_joined_classes(files, options),
            *_alike_classes(files, options),
            *pair_notes(files, {file.name: class_of(file, options) for file in files}),
        )
    only = _folders(files[0], options)[-1:] if files else []
    named = filter(None, (advice_on_named_classes(files),))
    if not only:
        return (f"the {kinds} lie in no class folders and get no label", *named)
    what = "the only file lies" if len(files) == 1 else f"all {format_count(len(files))} {kinds} lie"
    only_class = f"{what} in one folder, {printable(only[0])}: one class is no label; --labels names a file of labels"
    return (only_class, *named)


def _joined_classes(files: Sequence[RawFile], options: SourceOptions) -> Iterator[str]:
    """Yields a note on a class whose files lie in folders of one name below different ones."""
    places: dict[str, set[str]] = {}
    for file in files:
        if (name := class_of(file, options)) is not None:
            above = _folders(file, options)[: options.class_level]
            places.setdefault(name, set()).add("/".join([*above, name]))
    joined = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    if joined:
        name, found = next(iter(sorted(joined.items())))
        more = f", as are {len(joined) - 1:,} more" if len(joined) > 1 else ""
        listed = " and ".join(map(printable, found[:2])) + (", ..." if len(found) > 2 else "")
        yield f"class {shown(name)} is that of {listed}{more}; --labels names a table with other classes"


def _alike_classes(files: Sequence[RawFile], options: SourceOptions) -> Iterator[str]:
    """Yields notes on classes whose names differ in capitals or blanks alone, and on splits that share no class."""
    by_split: dict[str, set[str]] = {}
    for file in files:
        if (name := class_of(file, options)) is not None:
            by_split.setdefault((options.has_split_names and split_of(file)) or "", set()).add(name)
    names = set[str]().union(*by_split.values())
    by_word: dict[str, list[str]] = {}
    for name in sorted(names):
        by_word.setdefault(_folded(name), []).append(name)
    alike = next((found for found in by_word.values() if len(found) > 1), None)
    if alike is not None:
        yield f"the classes {' and '.join(map(shown, alike))} differ in capitals or blanks alone"
    shared = Counter(word for found in by_split.values() for word in set(map(_folded, found)))
    for split in in_order(by_split) if len(by_split) > 1 else ():
        if all(shared[_folded(name)] == 1 for name in by_split[split]):
            yield f"the split {split} has no class of another split; such as {shown(min(by_split[split]))}"


def _folded(name: str) -> str:
    return "".join(name.casefold().split())


def folder_notes(files: Sequence[RawFile], is_text: bool) -> tuple[str, ...]:
    """Returns a note on files that lie in a few folders, which become no column.

    Args:
        files: Of tables, or of texts whose lines are rows.
        is_text: Whether they are texts.
    """
    besides = {beside.folder for file in files if (beside := name_beside_split(file.name)) is not None}
    names = besides if len(besides) > 1 else {(folders_below_split(file.name) or [""])[-1] for file in files}
    # Folders that are a key and a value are columns. A few files may lie beside the folders.
    if sum("/" in file.name for file in files) > len(files) / 2:
        names.discard("")
    if not 1 < len(names) <= _MANY_FOLDERS or any(not name or "=" in name for name in names):
        return ()
    more = ", ..." if len(names) > _LISTED_FOLDERS else ""
    listed = ", ".join(map(printable, sorted(names)[:_LISTED_FOLDERS])) + more
    is_whole = is_text and len(besides) < 2
    whole = ", --text-record file makes each file a row with its folder as class" if is_whole else ""
    return (f"the folders {listed} become no column; --source-column NAME gives each row the path of its file{whole}",)


def _folders(file: RawFile, options: SourceOptions) -> list[str]:
    # Some systems write an accent apart from its letter.
    name = file.name if file.name.isascii() else unicodedata.normalize("NFC", file.name)
    folders = folders_below_split(name) if options.has_split_names else name.split("/")[:-1]
    named = next((folder for folder in folders if folder in options.split_folders), None)
    if named is not None:
        folders.remove(named)
    # Hive and Spark write label=cat.
    return [unquote(_KEY.sub("", folder)) if _KEY.match(folder) else folder for folder in folders]
