"""TFRecord framing: length, its masked CRC32C, the record, its masked CRC32C; all little-endian.

The scanner trusts nothing that it has not checked: a length is compared with the bytes that are left before it is used
(stock TensorFlow crashes on a length of 2**40 with a valid CRC). The index of an uncompressed
shard has the form of DALI: a line a record, with its first byte and its framed size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import DamageError

HEADER_BYTES = 12
FOOTER_BYTES = 4
OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC32C of `data`, rotated and offset as TFRecord stores it."""
    crc = cast(int, google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Returns one framed record."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _CRC.pack(masked_crc32c(length)), record, _CRC.pack(masked_crc32c(record))))


def iter_records(buffer: bytes, where: str, first_byte: int = 0) -> Iterator[bytes]:
    """Yields the records of a buffer of framed records, each after its CRCs were checked.

    Args:
        buffer: Whole framed records.
        where: File (and block) for messages.
        first_byte: Position of the buffer in the uncompressed stream, for messages.

    Raises:
        DamageError: At the first frame that is cut off, too long or has a wrong CRC.
    """
    position, end = 0, len(buffer)
    while position < end:
        at = f"{where}, uncompressed byte {first_byte + position}"
        if end - position < OVERHEAD_BYTES:
            raise DamageError("a record is cut off", where=at, why=f"{end - position} bytes are left")
        header = buffer[position : position + 8]
        if _CRC.unpack_from(buffer, position + 8)[0] != masked_crc32c(header):
            raise DamageError("the length of a record is damaged", where=at, why="its CRC32C does not match")
        (length,) = _LENGTH.unpack(header)
        start = position + HEADER_BYTES
        if length > end - start - FOOTER_BYTES:
            raise DamageError(
                "a record is cut off", where=at, why=f"it claims {length} bytes, {end - start - FOOTER_BYTES} are left"
            )
        record = buffer[start : start + length]
        if _CRC.unpack_from(buffer, start + length)[0] != masked_crc32c(record):
            raise DamageError("a record is damaged", where=at, why="its CRC32C does not match")
        yield record
        position = start + length + FOOTER_BYTES


def index_lines(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> bytes:
    """Returns a line `start size` for each record."""
    start_texts, size_texts = (pa.array(numbers).cast(pa.string()) for numbers in (starts, sizes))
    lines = pc.binary_join_element_wise(start_texts, pc.binary_join_element_wise(size_texts, "", "\n"), " ")
    # One list of all lines: its join is the whole text, without a Python string a record.
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text: str = pc.binary_join(whole, "")[0].as_py()
    return text.encode()
