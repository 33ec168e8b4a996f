"""Compressed files beside what they were unpacked to, which hold the same data."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shardkit.errors import ShardkitError, UsageError
from shardkit.file_types import COMPRESSED_SUFFIXES, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_raw

_SIZE = struct.Struct("<I")
_FOUR_GIB = 2**32


def unpacked_copies(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the names of files that are those of others and the extension of a compression, such as `a.csv.gz`.

    They unpack to as many bytes as the other file has, as far as gzip tells.
    """
    sizes = {file.name: file.num_bytes for file in files}
    beside = packed_beside(files)
    return tuple(file.name for file in beside if _unpacked_size(file) == sizes[_unpacked_name(file)] % _FOUR_GIB)


def packed_beside(files: Sequence[RawFile]) -> tuple[RawFile, ...]:
    """Returns the files that are called like others and the extension of a compression."""
    packed = [f for f in files if f.member is None and suffix_of(f.name) in COMPRESSED_SUFFIXES]
    names = {file.name for file in files} if packed else set()
    return tuple(file for file in packed if _unpacked_name(file) in names)


def check_no_packed(files: Sequence[RawFile]) -> None:
    """Checks that no compressed file is beside another that is called like it, whose rows it may hold.

    Args:
        files: Without `unpacked_copies`.

    Raises:
        UsageError: If one is.
    """
    if beside := packed_beside(files):
        raise packed_error(beside[0])


def packed_error(file: RawFile, other: ShardkitError | None = None) -> UsageError:
    """Returns the error about a compressed file beside another that is called like it.

    Args:
        file: The compressed one.
        other: Another error about the files, whose table and advice come first.
    """
    exclude = f"--exclude '*{suffix_of(file.name)}'"
    why = f"{printable(_unpacked_name(file))} may hold the same rows, or other ones"
    if other is not None and other.table:
        step = f"{other.next_step}. {printable(file.name)} lies among them, and {why}: {exclude} leaves it out"
        return UsageError(other.what, where=other.where, why=other.why, table=other.table, next_step=step)
    return UsageError(
        "a file lies beside another that is called like it and compressed",
        where=place(file),
        why=why,
        next_step=f"Leave compressed files out with {exclude}, or rename this one",
    )


def _unpacked_name(file: RawFile) -> str:
    return file.name[: -len(suffix_of(file.name))]


def _unpacked_size(file: RawFile) -> int:
    if suffix_of(file.name) != ".gz" or file.num_bytes < _SIZE.size:
        return -1
    with open_raw(file) as stream:
        stream.seek(file.num_bytes - _SIZE.size)
        size: int = _SIZE.unpack(stream.read(_SIZE.size))[0]
    return size
