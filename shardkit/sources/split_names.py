"""Splits that the names of files tell: `train/cats/1.jpg`, `data_test.csv`.

The rules are those of Hugging Face `datasets`: a word for a split that stands alone in the name of a folder or a file,
between characters that are no letters, at any level.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from shardkit.sources.base import RawFile

SPLITS = ("train", "validation", "test")

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
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


def splits_in_names(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the splits that the names of all files tell; none if one tells none, or all tell the same."""
    found: set[str] = set()
    for file in files:
        told = split_in_name(file.name)
        if told is None:
            return ()
        found.add(told.split)
    return tuple(split for split in SPLITS if split in found) if len(found) > 1 else ()


def folders_below_split(name: str) -> list[str]:
    """Returns the folders of a path without the one that tells its split."""
    told = split_in_name(name)
    folders = name.split("/")[:-1]
    return folders if told is None else [*folders[: told.level], *folders[told.level + 1 :]]
