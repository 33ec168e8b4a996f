"""Compressed files beside what they were unpacked to, which hold the same data."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shardkit.errors import UsageError
from shardkit.file_types import COMPRESSED_SUFFIXES, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_raw

_SIZE = struct.Struct("<I")
_FOUR_GIB = 2**32


def unpacked_copies(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the names of files that are those of others and the extension of a compression, such as `a.csv.gz`.

    Raises:
        UsageError: If one does not unpack to as many bytes as the other file has, as far as gzip tells; such as one of
            another compression, or of other data.
    """
    sizes = {file.name: file.num_bytes for file in files}
    packed = [f for f in files if f.member is None and suffix_of(f.name) in COMPRESSED_SUFFIXES]
    copies = [file for file in packed if _unpacked_name(file) in sizes]
    for file in copies:
        if _unpacked_size(file) != sizes[_unpacked_name(file)] % _FOUR_GIB:
            raise UsageError(
                "a file lies beside another that is called like it and compressed",
                where=place(file),
                why=f"{printable(_unpacked_name(file))} may hold the same rows, or other ones",
                next_step=f"Leave compressed files out with --exclude '*{suffix_of(file.name)}', or rename this one",
            )
    return tuple(file.name for file in copies)


def _unpacked_name(file: RawFile) -> str:
    return file.name[: -len(suffix_of(file.name))]


def _unpacked_size(file: RawFile) -> int:
    if suffix_of(file.name) != ".gz" or file.num_bytes < _SIZE.size:
        return -1
    with open_raw(file) as stream:
        stream.seek(file.num_bytes - _SIZE.size)
        size: int = _SIZE.unpack(stream.read(_SIZE.size))[0]
    return size
