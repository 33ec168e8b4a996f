"""TFRecord files and `tf.train.Example` messages, parsed from their published formats and nothing of shardkit."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import google_crc32c

_MASK_DELTA = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Row = tuple[tuple[str, tuple[object, ...]], ...]


class Damaged(Exception):
    """A file does not hold what it should."""


def records_of(raw: bytes, *, is_gzip: bool) -> Iterator[bytes]:
    """Yields the records of a file, both checksums of each checked."""
    data = memoryview(_unzipped(raw) if is_gzip else raw)
    while data:
        if len(data) < 12:
            raise Damaged("a record's length is cut off")
        (num_bytes,) = struct.unpack("<Q", data[:8])
        if len(data) < num_bytes + 16:
            raise Damaged("a record is cut off")
        _check(data[:8], data[8:12])
        _check(data[12 : 12 + num_bytes], data[12 + num_bytes : 16 + num_bytes])
        yield bytes(data[12 : 12 + num_bytes])
        data = data[16 + num_bytes :]


def row_of(record: bytes) -> Row:
    """Returns the features of an example, by name."""
    found: dict[str, tuple[object, ...]] = {}
    for number, features in _fields(record):
        if number != 1:
            raise Damaged(f"field {number} in an example")
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            found[bytes(parts[1]).decode()] = _values(parts.get(2, b""))
    return tuple(sorted(found.items()))


def _values(feature: bytes) -> tuple[object, ...]:
    for kind, values in _fields(feature):
        parts = [part for _, part in _fields(values)]
        if kind == 1:
            return tuple(parts)
        packed = b"".join(parts)
        if kind == 2:
            return struct.unpack(f"<{len(packed) // 4}f", packed)
        return tuple(_signed(v) for v in _varints(packed))
    return ()


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        if key & 7 == _BYTES:
            size, position = _varint(message, position)
        elif key & 7 == _FIXED32:
            size = 4
        else:
            start = position
            _, stop = _varint(message, position)
            size = stop - start
        if position + size > len(message):
            raise Damaged("a message is cut off")
        yield key >> 3, message[position : position + size]
        position += size


def _varints(packed: bytes) -> Iterator[int]:
    position = 0
    while position < len(packed):
        value, position = _varint(packed, position)
        yield value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message):
            raise Damaged("a number is cut off")
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _unzipped(raw: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=31)
    try:
        data = inflate.decompress(raw)
    except zlib.error as error:
        raise Damaged(f"not gzip: {error}") from error
    if not inflate.eof or inflate.unused_data:
        raise Damaged("the gzip file is cut off" if not inflate.eof else "something follows the gzip file")
    return data


def _check(data: memoryview, stated: memoryview) -> None:
    crc = google_crc32c.value(bytes(data))
    if ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF != struct.unpack("<I", stated)[0]:
        raise Damaged("a record's checksum is wrong")
