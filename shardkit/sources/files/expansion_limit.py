"""How much a compressed file may become, checked while it is decompressed."""

from __future__ import annotations

import pyarrow as pa

from shardkit.encoding.varints import read_varint
from shardkit.errors import DamagedFileError
from shardkit.sources.base import RawFile
from shardkit.units import MiB, format_size

# Up to here nothing is refused: so much does no harm, and small files of zeros are common.
ALLOWED_BYTES = 64 * MiB
# No file system holds more; a header that states more lies.
LARGEST_BYTES = 2**62


def largest_expansion(num_stored_bytes: int, max_expansion: int) -> int:
    """Returns how many bytes may come out of so many compressed ones."""
    return max(ALLOWED_BYTES, num_stored_bytes * max_expansion)


def expansion_error(where: str, num_stored_bytes: int, max_expansion: int) -> DamagedFileError:
    """Returns the error for a file that becomes larger than it may."""
    limit = format_size(largest_expansion(num_stored_bytes, max_expansion))
    return DamagedFileError(
        "the compressed content is too large",
        where=where,
        why=f"{format_size(num_stored_bytes)} become more than {limit}, {max_expansion} times as much",
        next_step="If you trust the file, allow more with --max-expansion",
    )


class ExpansionGuard:
    """Counts the decompressed bytes of a file.

    Args:
        file: The file, or the archive that it is in.
    """

    def __init__(self, file: RawFile, where: str) -> None:
        self._num_stored_bytes = file.num_bytes
        self._max_expansion = file.max_expansion
        self._where = where
        self._limit = largest_expansion(file.num_bytes, file.max_expansion)
        self._num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Takes note of more decompressed bytes. Raises DamagedFileError if they are too many."""
        self._num_bytes += num_bytes
        if self._num_bytes > self._limit:
            raise expansion_error(self._where, self._num_stored_bytes, self._max_expansion)


def snappy_inflate(data: bytes, max_bytes: int) -> bytes:
    """Returns what a block of Snappy holds, which begins with its size.

    Raises:
        ValueError: If it holds more than `max_bytes`, or does not say how much.
        pa.ArrowException, OSError: If it is damaged.
    """
    num_bytes, _ = read_varint(data)
    if num_bytes > max_bytes:
        raise ValueError(f"a snappy block of {format_size(len(data))} becomes {format_size(num_bytes)}")
    return bytes(pa.Codec("snappy").decompress(data, num_bytes, asbytes=True))
