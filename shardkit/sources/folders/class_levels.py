"""Folders that are hardly the classes of their files: parts of the data, and one of two levels that may be classes."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from glob import escape
from typing import NamedTuple

from shardkit.errors import UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.file_globs import glob_options
from shardkit.sources.split_words import split_in_name

_LISTED = 3
# What people number where the class lies elsewhere. A person, an animal or a digit may be a class.
_PART = re.compile(
    r"(?:^|[^a-z])(?:fold|part|chunk|shard|batch|split|page|session|patient|study|case|scan|take)s?[ _-]*\d+$",
    re.IGNORECASE,
)
_DIGITS = re.compile("[0-9]+")
_LETTER = re.compile(r"[^\W\d_]")
_NUMBER = re.compile("[0-9]{2}")
_MIN_WIDTH = 3
_MIN_FOLDERS = 5
_MIN_PARTS, _MAX_PARTS = 3, 8


class Placed(NamedTuple):
    """A file with its folders, without that of its split."""

    file: RawFile
    folders: Sequence[str]


def check_levels(placed: Sequence[Placed], level: int) -> None:
    """Checks that the folders of a level are the only ones that may be the classes of the files.

    Args:
        placed: All files. Where one has fewer folders, another check refuses them.
        level: Which of the folders of each is its class.

    Raises:
        UsageError: If the folders are numbered parts of the data, or those above may be the classes.
    """
    if any(len(one.folders) <= level for one in placed):
        return
    names = {one.folders[level] for one in placed}
    why, parts = "", _parts_of_examples(placed, level)
    if parts:
        why = "each holds files of the same names, as the parts of an example"
    elif len(names) > 1 and all(map(_PART.search, names)):
        why = "they are called after parts of the data"
    elif _go_on(placed, level):
        why = "the numbers of their files go on from folder to folder"
    differing = [outer for outer in range(level) if len({one.folders[outer] for one in placed}) > 1]
    below: dict[str, set[str]] = {}
    for one in placed if differing else ():
        below.setdefault(one.folders[differing[-1]], set()).add(one.folders[level])
    if not why and not may_be_classes(below):
        return
    ways = [
        f"for {printable(min({one.folders[at] for one in placed}))} and the like {_table_of(placed[0], at)}"
        for at in (*differing[-2:], level)
    ]
    raise UsageError(
        "folders of two levels may be the classes" if below else f"the folders {_listed(names)} are hardly classes",
        where=place(placed[0].file),
        why=f"{_listed(below)}, and {_listed(max(below.values(), key=len))} below these" if below else why,
        next_step=f"Add --no-labels to take the files without a class{parts}, or name a table of their classes with "
        f"--labels. If folders are the classes, write it: {'; '.join(ways)}",
    )


def may_be_classes(below: Mapping[str, Collection[str]]) -> bool:
    """Whether folders may be the classes of the files, rather than those below each of them.

    They may be if each has others below it, as `Archery` has `v_Archery_g01`, or if these are numbered, as `session1`.
    The letters that Places has above its classes are none, nor are numbered parts.
    """
    if len(below) < 2 or all(len(outer) == 1 or _PART.search(outer) for outer in below):
        return False
    names = [name for inner in below.values() for name in inner]
    if len(set(names)) == len(names):
        return len(names) > len(below)
    words = {_DIGITS.sub("", name) for name in names}
    return len(words) == 1 and "" not in words and len(set(names)) > 1


def _parts_of_examples(placed: Sequence[Placed], level: int) -> str:
    """Returns what takes one part of each example, where folders hold files of the same few words; else nothing."""
    held: dict[str, set[str]] = {}
    for file, folders in placed:
        held.setdefault("/".join(folders[: level + 1]), set()).add(file.name.rpartition("/")[2])
    names = next(iter(held.values()), set())
    if len(held) < _MIN_FOLDERS or not _MIN_PARTS <= len(names) <= _MAX_PARTS or any(n != names for n in held.values()):
        return ""
    stems = [name.partition(".")[0] for name in names]
    are_words = all(_LETTER.search(stem) and not _NUMBER.search(stem) for stem in stems)
    if not are_words or len({_DIGITS.sub("", stem) for stem in stems}) == 1:
        return ""
    ways = (glob_options("--include", [f"*/{escape(name)}"]) for name in sorted(names))
    return f", alone or with {' or '.join(ways)} to take one part"


def _go_on(placed: Sequence[Placed], level: int) -> bool:
    """Whether folders and files are numbers, and those of a folder all lie behind those of the one before."""
    found: dict[str, list[int]] = {}
    for file, folders in placed:
        stem = file.name.rpartition("/")[2].partition(".")[0]
        if not stem.isdecimal() or not folders[level].isdecimal() or len(folders[level]) < _MIN_WIDTH:
            return False
        found.setdefault(folders[level], []).append(int(stem))
    ranges = [(min(numbers), max(numbers)) for _, numbers in sorted(found.items())]
    return len(ranges) > 1 and all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(printable, sorted(names)[:_LISTED])) + (", ..." if len(names) > _LISTED else "")


def _table_of(example: Placed, level: int) -> str:
    """Returns what makes a table of the folders of a level, as of all files, and reads it."""
    file, folders = example
    if file.member is not None or "://" in file.path or not file.path.endswith(file.name):
        return "name a table with the columns file and label with --labels"
    split = split_in_name(file.name)
    is_behind = split is not None and file.name.count("/") > len(folders) and split.level <= level
    script = f'BEGIN {{print "file", "label"}} {{print substr($0, 3), ${level + 2 + is_behind}}}'
    root = printable(shlex.quote(file.path.removesuffix(file.name)))
    return (
        f"run  (cd {root}; find . -type f) | awk -F/ -v OFS='\\t' '{script}' >labels.tsv  and add --labels labels.tsv"
    )
