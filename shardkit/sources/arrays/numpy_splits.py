"""The arrays of an .npz that are named after splits, as `x_train` and `x_test` of the datasets of Keras."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from zipfile import ZipInfo

import msgspec

from shardkit.errors import BadInputError, UsageError
from shardkit.sources.arrays.numpy_zip import list_members, open_archive
from shardkit.sources.base import RawFile
from shardkit.sources.files.streams import open_raw
from shardkit.sources.split_names import in_order, split_in_name

_WORDS = re.compile(r"[^_\-. ]+")


def parts_by_split(file: RawFile) -> tuple[RawFile, ...]:
    """Returns a part of an .npz for each split that the names of its arrays tell; none unless all tell one of several.

    Args:
        file: Ends in `.npz`. Reading finds what is wrong with it.
    """
    try:
        with open_raw(file) as raw, open_archive(raw, file) as archive:
            names = [name for name, _ in list_members(archive, file, file.max_expansion)]
    except (BadInputError, UsageError):
        return ()
    splits = _splits_of(names)
    if None in splits or len(set(splits)) < 2:
        return ()
    named = in_order({split for split in splits if split is not None})
    return tuple(msgspec.structs.replace(file, name=f"{split}.npz", split=split) for split in named)


def own_arrays(members: Sequence[tuple[str, ZipInfo]], split: str | None) -> list[tuple[str, ZipInfo]]:
    """Returns the arrays of one split by the names of their columns: without the word that tells the split.

    Args:
        members: All arrays.
        split: Of the part that is read; None takes all arrays as they are called.
    """
    splits = _splits_of(name for name, _ in members)
    if split is None or None in splits:
        return list(members)
    return [(_column(name), member) for (name, member), own in zip(members, splits, strict=True) if own == split]


def _splits_of(names: Iterable[str]) -> list[str | None]:
    found = map(split_in_name, names)
    return [None if one is None else one.split for one in found]


def _column(name: str) -> str:
    words = [word for word in _WORDS.findall(name) if split_in_name(word) is None]
    return "_".join(words) or "values"
