"""Folders that are hardly the classes of their files: parts of the data, and one of two levels that may be classes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from glob import escape
from typing import NamedTuple

from shardkit.errors import UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.file_globs import glob_options
from shardkit.sources.split_words import split_in_words

_LISTED = 3
# What people number where the class lies elsewhere. A person, an animal or a digit may be a class.
_PART = re.compile(
    r"(?:^|[^a-z])(?:fold|part|chunk|shard|batch|split|page|session|patient|study|case|scan|take)s?[ _-]*\d+$",
    re.IGNORECASE,
)
_YEAR, _MONTH, _DAY, _BETWEEN = r"(?:19|20)\d\d", r"(?:0?[1-9]|1[0-2])", r"(?:0?[1-9]|[12]\d|3[01])", r"[-_. ]"
_DATES = (_YEAR + "$", _YEAR + _BETWEEN + _MONTH, _YEAR + r"[01]\d[0-3]\d", _DAY + _BETWEEN + _MONTH + _BETWEEN + _YEAR)
# In English, German, French and Spanish; photos of Google are in folders such as `Photos from 2021`.
_MONTH_NAME = (
    "jan(?:uary|uar|vier)?|feb(?:ruary|ruar)?|mar(?:ch|s|zo)?|märz|a[pv]r(?:il)?|may|mai|ju[nl][eiy]?|aug(?:ust)?|ago(?:sto)?"
    "|sept?(?:ember)?|o[ck]t(?:ober|obre)?|nov(?:ember)?|de[cz](?:ember)?"
)
_NAMED = rf"(?:{_MONTH_NAME})\.?(?:[ _-]*{_YEAR})?|Photos from {_YEAR}"
_DATE = re.compile(f"^(?:{'|'.join(_DATES)})(?!\\d)|^(?:{_NAMED})$", re.ASCII | re.IGNORECASE)
# The names that the Design rule for Camera File system gives to the folders of a camera.
_CAMERA = re.compile("^[1-9][0-9]{2}(?=.*[A-Z])[0-9A-Z_]{5}$")
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
        UsageError: If the folders are dates, numbered parts of the data or those of a camera, or those above may be the
            classes.
    """
    if any(len(one.folders) <= level for one in placed):
        return
    names = {one.folders[level] for one in placed}
    why, parts = _why_hardly_classes(names), _parts_of_examples(placed, level)
    if parts:
        why = "each holds files of the same names, as the parts of an example"
    elif not why and _go_on(placed, level):
        why = "the numbers of their files go on from folder to folder"
    differing = [outer for outer in range(level) if len({one.folders[outer] for one in placed}) > 1]
    below: dict[str, set[str]] = {}
    for one in placed if differing else ():
        below.setdefault(one.folders[differing[-1]], set()).add(one.folders[level])
    are_two = may_be_classes(below)
    if not why and not are_two:
        return
    levels = [
        *(at for at in differing[-2:] if are_two or not _why_hardly_classes({one.folders[at] for one in placed})),
        level,
    ]
    ways = [f"--class-folder {at + 1} for {printable(min({one.folders[at] for one in placed}))}" for at in levels]
    raise UsageError(
        "folders of two levels may be the classes" if are_two else f"the folders {_listed(names)} are hardly classes",
        where=place(placed[0].file),
        why=f"{_listed(below)}, and {_listed(max(below.values(), key=len))} below these" if are_two else why,
        next_step=f"Name the folder that is the class: {', '.join(ways)} and the like. --no-labels takes the files "
        f"without a class{parts}, --labels names a table of classes",
    )


def _why_hardly_classes(names: Collection[str]) -> str:
    """Returns why folders are hardly classes by their names, which are all alike; empty if they are not."""
    kinds = {
        _PART: "they are called after parts of the data",
        _DATE: "they are called after dates",
        _CAMERA: "cameras number their folders so",
    }
    return next((why for form, why in kinds.items() if len(names) > 1 and all(map(form.search, names))), "")


def may_be_classes(below: Mapping[str, Collection[str]]) -> bool:
    """Whether folders may be the classes of the files, rather than those below each of them.

    They may be unless they are single letters, as Places has above its classes, numbers, dates, parts or splits of the
    data, and the others are none of these. `amazon/mug` and `dslr/mug` look like `finch/cropped` and `wren/cropped`.
    """
    inner = {name for names in below.values() for name in names}
    if len(below) < 2 or len(inner) < 2 or sum(map(len, below.values())) == len(below):
        return False
    return not all(map(_is_no_word, below)) or (all(map(_is_no_word, inner)) and not _why_hardly_classes(inner))


def is_date(name: str) -> bool:
    """Whether a folder is called after a year, a month or a day."""
    return _DATE.search(name) is not None


def _is_no_word(name: str) -> bool:
    is_number = len(name) == 1 or name.isdecimal()
    return is_number or split_in_words(name) is not None or any(f.search(name) for f in (_PART, _DATE, _CAMERA))


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
