"""Splits that the names of files tell: `train/cats/1.jpg`, `data_test.csv`.

The rules are those of Hugging Face `datasets`: a word for a split that stands alone in the name of a folder or a file,
between characters that are no letters, at any level.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from shardkit.errors import BadInputError
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_stream, read_exactly

SPLITS = ("train", "validation", "test")

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_RANKS = {split: rank for rank, split in enumerate(SPLITS)}
_MAX_LIST_BYTES = 2**30
_WORD = re.compile("[a-z]+")


class NamedSplit(NamedTuple):
    """What the name of a file tells.

    Attributes:
        split: `train`, `validation` or `test`.
        level: Position in the path of the folder or file whose name tells it, counted from the root.
    """

    split: str
    level: int


def split_in_name(name: str) -> NamedSplit | None:
    """Returns the split that a path tells, None if it tells none. The outermost name counts that tells one split."""
    for level, part in enumerate(name.split("/")):
        found = {_WORDS[word] for word in _WORD.findall(part.lower()) if word in _WORDS}
        if len(found) == 1:
            return NamedSplit(found.pop(), level)
    return None


def split_of(file: RawFile) -> str | None:
    """Returns the split of a file: the one that a list or an option names, else the one that its path tells."""
    if file.split is not None:
        return file.split
    told = split_in_name(file.name)
    return told.split if told is not None else None


def read_names(file: RawFile) -> list[str]:
    """Returns the names in a list of files: the first word of each line, as in `ImageSets/Main` of Pascal VOC.

    Raises:
        BadInputError: If the file is not UTF-8.
    """
    with open_stream(file) as stream:
        raw = read_exactly(stream, _MAX_LIST_BYTES)
    try:
        return [words[0] for line in raw.decode("utf-8-sig").split("\n") if (words := line.split())]
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a list of files is not UTF-8", where=place(file), why=str(error), next_step="Write it as UTF-8"
        ) from error


def splits_in_names(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the splits that the names of all files tell; none if one tells none, or all tell the same."""
    found: set[str] = set()
    for file in files:
        split = split_of(file)
        if split is None:
            return ()
        found.add(split)
    return tuple(sorted(found, key=_rank)) if len(found) > 1 else ()


def _rank(split: str) -> tuple[int, str]:
    return _RANKS.get(split, len(_RANKS)), split


def folders_below_split(name: str) -> list[str]:
    """Returns the folders of a path without the one that tells its split."""
    told = split_in_name(name)
    folders = name.split("/")[:-1]
    return folders if told is None else [*folders[: told.level], *folders[told.level + 1 :]]
