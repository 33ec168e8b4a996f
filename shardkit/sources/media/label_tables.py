"""Labels of files that are one row each: columns by the name of the file, and how names are matched."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.file_types import has_image_suffix
from shardkit.messages import shown
from shardkit.sources.file_globs import glob_in_shell

Positions = npt.NDArray[np.int64]

_Simplify = Callable[[str], str]
_Find = Callable[[Sequence[str], Sequence[str]], Positions]

_LISTED_NAMES = 3
# Of what labels may name in place of a file: a sound, a text, an array, annotations.
_OTHER_EXTENSIONS = frozenset(
    {"wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "aif", "aiff", "au", "caf", "w64", "heic", "dcm"}
    | {"mp4", "avi", "mkv", "mov", "webm", "txt", "xml", "json", "npy", "npz"}
)
_SEVERAL = -2


FILE_KEYS = ("filename", "file_name", "file", "image", "path")
"""What tables call the column of the names of files."""

DECLARED_SIZE = ("declared_width", "declared_height")
"""Columns beside those of the features: what the labels say of the size of the image that boxes were drawn on."""


# What a column without a name is called, by pandas and here.
_INDEX = re.compile(r"Unnamed: \d+|unnamed_\d+")
# What people call columns of names of files or of identifiers.
_NAMING = re.compile(
    r"(?:^|[^a-z])(?:id|ids|file|files|filename|image|images|img|name|names|path|key|audio|clip|picture)(?:$|[^a-z])"
    r"|(?:image|img|file|photo|audio|clip)(?:id|name|path)s?$",
    re.IGNORECASE,
)


class LabelColumns(Protocol):
    """What is known of some files."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the files, each once."""
        ...

    @property
    def features(self) -> Features:
        """What the columns hold."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know, one sentence each."""
        ...

    def take(self, positions: Positions) -> dict[str, pa.Array]:
        """Returns the columns of some of the names by their positions; null where that is -1."""
        ...


class LabelTable(NamedTuple):
    """Labels that are held as columns.

    Attributes:
        names: Names of the files, each once.
        columns: By name of the feature, and DECLARED_SIZE where that is known.
        key: What the column of the names is called; empty if it is none of a table.
        is_relative: Whether `boxes` are parts of the width and height of their image.
    """

    names: Sequence[str]
    features: Features
    columns: dict[str, pa.Array]
    notes: tuple[str, ...] = ()
    key: str = ""
    is_relative: bool = False

    def take(self, positions: Positions) -> dict[str, pa.Array]:
        """Returns the columns of some of the names by their positions; null where that is -1."""
        wanted = pa.array(positions, mask=positions < 0)
        return {name: column.take(wanted) for name, column in self.columns.items()}


class Matching(NamedTuple):
    """Which label each file has.

    Attributes:
        positions: Of the label of each file, -1 where there is none.
        notes: On files without labels, and labels without files.
    """

    positions: Positions
    notes: tuple[str, ...]


def match_names(files: Sequence[str], labels: Sequence[str], where: str, kinds: str) -> Matching:
    """Returns which label each file has.

    A label may be written as the file is called below the input, or with fewer or more folders before that, and without
    its extension or with that of another kind of file. The fullest name that agrees with a file counts: what follows a
    point in a label is part of the name as long as a file is called so. Only if none does, folders are looked past.

    Args:
        files: Names of the files below the input.

    Raises:
        UsageError: If no label belongs to a file, one belongs to several, or several to one.
    """
    files, labels = _composed(files), _composed(labels)
    positions = np.full(len(files), -1, np.int64)
    for of_file, of_label in ((_path, _path), (_bare, _path), (_bare, _without_extension)):
        for find in (_equal, _ending):
            _match(files, labels, positions, (of_file, of_label), find, where)
    for of_file, of_label in ((_last_part, _last_part), (_stem, _last_part), (_stem, _label_stem)):
        if not (positions >= 0).any():
            _match(files, labels, positions, (of_file, of_label), _equal, where)
    if not (positions >= 0).any():
        why = f"the names are written like {shown(labels[0])} and {shown(files[0])}" if labels and files else None
        raise UsageError(
            f"none of the labels belongs to one of the {kinds}" if labels else "there are no labels",
            where=where,
            why=why,
            next_step="Give the labels of these files, or correct the names in them",
        )
    is_used = np.zeros(len(labels), np.bool_)
    is_used[positions[positions >= 0]] = True
    unused = np.flatnonzero(~is_used)
    num_found = int((positions >= 0).sum())
    notes = (
        *([f"{num_found:,} of {len(files):,} {kinds} have a label"] if num_found < len(files) else ()),
        *_some(
            [files[i] for i in np.flatnonzero(positions < 0)[:_LISTED_NAMES]], (positions < 0).sum(), kinds, "label"
        ),
        *_some([labels[i] for i in unused[:_LISTED_NAMES]], len(unused), "labels", "file among the inputs"),
    )
    return Matching(positions, notes)


def choose_key(columns: Mapping[str, pa.Array], usual: str, files: Sequence[str], where: str) -> str:
    """Returns the column of a table that names files: the one that names most of them, and most with their extensions.

    Numbers and words may name files by chance, as classes and ages do. Another column than the usual one names files
    only with extensions, or if it holds no value twice and is called like a name or an identifier, or names as many
    while the usual one is not called so. An index without a name, as of pandas, names files only if no other does.

    Args:
        columns: Texts and whole numbers of the table, as text.
        usual: The column that does so by its name or place; it is chosen where no other names more.

    Raises:
        UsageError: If two columns name as many files, and other ones.
    """
    files = _composed(files)
    lasts, stems = set(map(_last_part, files)), set(map(_stem, files))

    def count(column: pa.Array) -> tuple[int, int]:
        names = _composed(column.unique().drop_null().to_pylist())
        with_extension = lasts.intersection(map(_last_part, names))
        found = stems.intersection([*map(_last_part, names), *map(_label_stem, names)])
        return len(found), len(with_extension)

    def may_name(name: str, found: tuple[int, int]) -> bool:
        names = columns[name].drop_null()
        names_as_many = _NAMING.search(usual) is None and found[0] > 1 and found >= counts.get(usual, (0, 0))
        may = _NAMING.search(name) is not None or names_as_many
        return found[1] > 0 or (may and len(names.unique()) == len(names))

    if usual.lower() in FILE_KEYS:
        return usual
    counts = {name: count(column) for name, column in columns.items()}
    counts = {name: found for name, found in counts.items() if name == usual or may_name(name, found)}
    most = max(counts.values(), default=(0, 0))
    best = [name for name in counts if counts[name] == most]
    if most == (0, 0):
        return usual
    if _INDEX.fullmatch(usual):
        best = [name for name in best if name != usual] or best
    best.sort(key=lambda name: name != usual)
    own = [name and _label_stem(name) for name in columns[best[0]].to_pylist()]
    for other in best[1:]:
        if own != [name and _label_stem(name) for name in columns[other].to_pylist()]:
            raise UsageError(
                "two columns of the labels name files, and different ones in a row",
                where=where,
                why=f"columns {shown(best[0])} and {shown(other)} name {most[0]:,} files each",
                next_step=f"Call the column that holds the names of the files {FILE_KEYS[0]}",
            )
    return best[0]


def without_blanks(table: pa.Table, features: Features) -> tuple[pa.Table, Features, tuple[str, ...]]:
    """Returns a table whose header has blanks behind its commas without these, and a note, if there are any.

    Texts of the columns lose the blanks around them too.
    """
    names = [f.name.strip() for f in features]
    trimmed = [f.name for f, name in zip(features, names, strict=True) if f.name != name]
    if not trimmed or len(set(names)) < len(names) or not all(names):
        return table, features, ()
    columns = [table.column(f.name) for f in features]
    columns = [
        pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) and f.name in trimmed else column
        for f, column in zip(features, columns, strict=True)
    ]
    renamed = tuple(msgspec.structs.replace(f, name=name) for f, name in zip(features, names, strict=True))
    listed = ", ".join(shown(name.strip()) for name in trimmed[:_LISTED_NAMES])
    more = ", ..." if len(trimmed) > _LISTED_NAMES else ""
    note = f"blanks around the names and values of {listed}{more} of the labels are left out"
    return pa.table(columns, names=names), renamed, (note,)


def is_name_of_file(files: Sequence[str], key: str) -> bool:
    """Whether what a table calls the column of the names of files is the name of one itself, of two letters or more."""
    last = _last_part(key)
    if "." in last:
        return any(file.endswith(last) and _last_part(file) == last for file in files)
    return key.lower() not in FILE_KEYS and len(last) > 1 and any(_stem(file) == last for file in files)


def _composed(names: Sequence[str]) -> Sequence[str]:
    """Returns names with each letter and its accent as one: a Mac writes them apart."""
    return [name if name.isascii() else unicodedata.normalize("NFC", name) for name in names]


def _match(
    files: Sequence[str],
    labels: Sequence[str],
    positions: Positions,
    simplify: tuple[_Simplify, _Simplify],
    find: _Find,
    where: str,
) -> None:
    """Finds labels that are not taken yet for files that have none yet, and writes their positions down.

    Args:
        simplify: What of the name of a file, and of a label, counts.
    """
    of_file, of_label = simplify
    wanted = np.flatnonzero(positions < 0)
    if not len(wanted):
        return
    is_free = np.ones(len(labels), np.bool_)
    is_free[positions[positions >= 0]] = False
    free = np.flatnonzero(is_free)
    found = find([of_file(files[i]) for i in wanted.tolist()], [of_label(labels[i]) for i in free.tolist()])
    if (found == _SEVERAL).any():
        raise UsageError(
            f"several labels are for {shown(files[int(wanted[np.argmax(found == _SEVERAL)])])}",
            where=where,
            why="their names differ in the folder or the extension only",
            next_step="Write the names in the labels as the files are called",
        )
    is_found = found >= 0
    if not is_found.any():
        return
    name, count = Counter(found[is_found].tolist()).most_common(1)[0]
    if count > 1:
        clash = [files[i] for i in wanted[found == name][:2].tolist()]
        # The other file may be a mask, in a folder of such.
        other = clash[0].rpartition("/")[0] or clash[0]
        glob = glob_in_shell(f"{escape(other)}/*" if "/" in clash[0] else escape(other))
        raise UsageError(
            f"the label {shown(labels[int(free[name])])} belongs to {count} files",
            where=where,
            why=f"among them {shown(clash[0])} and {shown(clash[1])}",
            next_step="Write the names in the labels as the files are called, with folder and extension, or leave some "
            f"files out, as with --exclude {glob}",
        )
    positions[wanted[is_found]] = free[found[is_found]]


def _equal(files: Sequence[str], labels: Sequence[str]) -> Positions:
    by_name = _by_name(labels)
    return np.fromiter((by_name.get(f, -1) for f in files), np.int64, len(files))


def _ending(files: Sequence[str], labels: Sequence[str]) -> Positions:
    """Returns the labels that a file ends in, the longest first, and else those that end in the file."""
    # Places365 writes /a/airfield/1.jpg for a path below its own root.
    labels = [name.removeprefix("/") for name in labels]
    by_name = _by_name(labels)
    longer: dict[int, dict[str, int]] = {}
    found = np.full(len(files), -1, np.int64)
    for position, file in enumerate(files):
        rest = file
        while rest not in by_name and "/" in rest:
            rest = rest.partition("/")[2]
        label = by_name.get(rest, -1)
        if label == -1:
            depth = file.count("/")
            if depth not in longer:
                longer[depth] = _by_name([_tail(name, depth) for name in labels])
            label = longer[depth].get(file, -1)
        found[position] = label
    return found


def _by_name(names: Sequence[str]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions[name] = _SEVERAL if name in positions else position
    return positions


def _tail(name: str, depth: int) -> str:
    return name.split("/", name.count("/") - depth)[-1] if name.count("/") > depth else name


def _some(names: list[str], count: int, kinds: str, what: str) -> tuple[str, ...]:
    if not count:
        return ()
    more = ", ..." if count > len(names) else ""
    verb = "has" if count == 1 else "have"
    return (
        f"{count:,} {kinds if count > 1 else kinds.removesuffix('s')} {verb} no {what}: "
        f"{', '.join(map(shown, names))}{more}",
    )


def _path(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _last_part(name: str) -> str:
    return _path(name).rpartition("/")[2]


def _bare(name: str) -> str:
    folder, slash, last = _path(name).rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    # An identifier may hold a point; an extension is short.
    is_extension = dot and stem and 1 <= len(suffix) <= 5 and suffix.isalnum() and not suffix.isdigit()
    return f"{folder}{slash}{stem if is_extension else last}"


def _without_extension(label: str) -> str:
    # Files without extensions may be labelled `a.left`, which is no label for `a.jpg`.
    suffix = label.rpartition(".")[2].lower()
    return _bare(label) if has_image_suffix(label) or suffix in _OTHER_EXTENSIONS else _path(label)


def _stem(name: str) -> str:
    return _last_part(_bare(name))


def _label_stem(label: str) -> str:
    return _last_part(_without_extension(label))
