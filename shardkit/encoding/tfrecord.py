"""TFRecord framing: length, its masked CRC32C, the record, its masked CRC32C; all little-endian.

The scanner trusts nothing that it has not checked: a length is compared with the bytes that are left before it is used
(stock TensorFlow crashes on a length of 2**40 with a valid CRC).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import cast

import google_crc32c

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
