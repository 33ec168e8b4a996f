"""The arrays of an .npz that are named after splits, as `x_train` and `x_test` of the datasets of Keras."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from shardkit.errors import BadInputError, UsageError
from shardkit.sources.arrays.numpy_headers import read_layout
from shardkit.sources.arrays.numpy_zip import MemberStream, list_members, open_archive
from shardkit.sources.base import RawFile
from shardkit.sources.files.streams import open_raw
from shardkit.sources.split_names import in_order
from shardkit.sources.split_words import split_in_name

_SUFFIX = ".npz"
_WORDS = re.compile(r"[^_\-. /]+")


def parts_by_split(file: RawFile) -> tuple[RawFile, ...]:
    """Returns a part of an .npz for each split that the names of its arrays tell; see `arrays_by_split`.

    Args:
        file: Ends in `.npz`. Reading finds what is wrong with it.
    """
    try:
        with open_raw(file) as raw, open_archive(raw, file) as archive:
            members = list_members(archive, file, file.max_expansion)
            if any(split_in_name(name) is None for name, _ in members):
                return ()
            layouts = {name: read_layout(MemberStream(archive, member, file), file.name) for name, member in members}
    except (BadInputError, UsageError):
        return ()
    found = arrays_by_split({name: layout.shape for name, layout in layouts.items()})
    return tuple(msgspec.structs.replace(file, name=f"{split}{_SUFFIX}", split=split) for split in found)


def arrays_by_split(shapes: Mapping[str, Sequence[int]]) -> dict[str, dict[str, str]]:
    """Returns the arrays of each split by the names of their columns, which lack the word that tells the split.

    There are none unless the arrays of each split are a table, all with the same columns. Single values of one number
    of rows, such as `train_loss` and `val_loss`, are one table.

    Args:
        shapes: Of each array, by its name.
    """
    found: dict[str, dict[str, str]] = {}
    for name in shapes:
        named = split_in_name(name)
        if named is None or (column := _column(name)) in found.setdefault(named.split, {}):
            return {}
        found[named.split][column] = name
    lengths = [{shapes[name][0] for name in arrays.values()} for arrays in found.values()]
    is_one_table = len(set().union(*lengths)) < 2 and all(len(shape) == 1 for shape in shapes.values())
    columns = {frozenset(arrays) for arrays in found.values()}
    if len(found) < 2 or len(columns) > 1 or any(len(own) > 1 for own in lengths) or is_one_table:
        return {}
    return {split: found[split] for split in in_order(found)}


def split_of_part(file: RawFile) -> str:
    """Returns the split whose arrays a part is; options may put its rows into another one."""
    return file.name.rpartition("/")[2].removesuffix(_SUFFIX)


def _column(name: str) -> str:
    return "_".join(word for word in _WORDS.findall(name) if split_in_name(word) is None) or "values"
