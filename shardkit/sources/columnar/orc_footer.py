"""What the tail of an ORC file says of its stripes, and a tail that names only some of them.

Arrow reads a file from front to back in small batches, or one stripe in one piece, which takes as much memory as the
stripe. A file that ends in a tail with fewer stripes lets it read these in small batches. The tail is Protobuf:
https://orc.apache.org/specification/ORCv1/ and orc_proto.proto.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from shardkit.storage.seekable_file import SeekableFile

MAGIC = b"ORC"

_NONE, _ZLIB, _SNAPPY, _LZO, _LZ4, _ZSTD, _BROTLI = range(7)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LIST, _MAP, _STRUCT, _UNION = range(10, 14)
_MAX_PRECISION = 38
_MAX_TAIL_BYTES = 2**28
_MAX_BLOCK_BYTES = 2**23  # Lengths have 23 bits.
_MAX_DEPTH = 128
# Numbers of fields in orc_proto.proto.
_PS_FOOTER_LENGTH, _PS_COMPRESSION, _PS_BLOCK_SIZE, _PS_METADATA_LENGTH, _PS_MAGIC = 1, 2, 3, 5, 8000
_PS_STRIPE_STATISTICS_LENGTH = 7
_STRIPES, _TYPES, _NUM_ROWS, _STATISTICS, _ENCRYPTION = 3, 4, 6, 7, 10
_STRIPE_OFFSET, _STRIPE_LENGTHS, _STRIPE_ROWS = 1, (2, 3, 4), 5
_TYPE_KIND, _TYPE_SUBTYPES, _TYPE_NAMES, _TYPE_PRECISION, _TYPE_SCALE = 1, 2, 3, 5, 6
_NUM_VALUES, _HAS_NULL = 1, 10

Value = int | bytes


class Stripe(NamedTuple):
    """A stripe.

    Attributes:
        start: Where it starts in the file.
        num_bytes: Its length.
        num_rows: How many rows it holds.
    """

    start: int
    num_bytes: int
    num_rows: int


class Tail(NamedTuple):
    """The tail of a file.

    Attributes:
        stripes: All of them.
        content_bytes: Length of what stands before the tail.
        fields: Of the footer, in order.
        post_script: The fields of the last part, in order.
    """

    stripes: tuple[Stripe, ...]
    content_bytes: int
    fields: list[tuple[int, Value]]
    post_script: list[tuple[int, Value]]


def read_tail(raw: BinaryIO, num_bytes: int) -> Tail:
    """Returns the tail of a file.

    Raises:
        ValueError: If it is damaged, encrypted or compressed in a way that is not read.
    """
    raw.seek(-min(256, num_bytes), io.SEEK_END)
    end = raw.read(256)
    length = end[-1] + 1 if end else 0
    if len(end) < length or length < 2:
        raise ValueError("it is too short")
    post_script = list(_fields(end[-length:-1]))
    known = dict(post_script)
    if known.get(_PS_MAGIC) != MAGIC:
        raise ValueError("it does not end as an ORC file does")
    footer_bytes, metadata_bytes = _number(known, _PS_FOOTER_LENGTH), _number(known, _PS_METADATA_LENGTH)
    statistics_bytes = _number(known, _PS_STRIPE_STATISTICS_LENGTH)
    content_bytes = num_bytes - length - footer_bytes - metadata_bytes - statistics_bytes
    if content_bytes < len(MAGIC) or footer_bytes > _MAX_TAIL_BYTES:
        raise ValueError("its footer is longer than the file")
    if _number(known, _PS_BLOCK_SIZE) > _MAX_BLOCK_BYTES:
        raise ValueError("its compressed blocks are too long")
    raw.seek(num_bytes - length - footer_bytes)
    fields = list(_fields(_decompressed(raw.read(footer_bytes), known)))
    if any(number == _ENCRYPTION for number, _ in fields):
        raise ValueError("it is encrypted")
    _types(fields)
    stripes = tuple(_stripe(value) for number, value in fields if number == _STRIPES)
    _check_stripes(stripes, content_bytes, _number(dict(fields), _NUM_ROWS))
    return Tail(stripes, content_bytes, fields, post_script)


def with_stripes(raw: BinaryIO, tail: Tail, start: int, stop: int) -> io.RawIOBase:
    """Returns a file that holds but some of the stripes.

    Args:
        raw: The file, seekable.
        tail: Of it.
        start, stop: Stripes, half-open.
    """
    positions = iter(range(len(tail.stripes)))
    num_rows = sum(s.num_rows for s in tail.stripes[start:stop])
    footer = bytearray()
    for number, value in tail.fields:
        if number == _STRIPES and not start <= next(positions) < stop:
            continue
        footer += _encoded(number, num_rows if number == _NUM_ROWS else value)
    stored = _stored(bytes(footer), dict(tail.post_script))
    changed = {_PS_FOOTER_LENGTH: len(stored), _PS_METADATA_LENGTH: 0, _PS_STRIPE_STATISTICS_LENGTH: 0}
    post_script = b"".join(_encoded(number, changed.get(number, value)) for number, value in tail.post_script)
    return _Spliced(raw, tail.content_bytes, stored + post_script + bytes([len(post_script)]))


def full_columns(tail: Tail) -> list[bool]:
    """Returns, for each flattened column, whether the statistics say that it has no nulls.

    Raises:
        ValueError: If the footer is damaged.
    """
    statistics = [dict(_fields(_as_bytes(value))) for number, value in tail.fields if number == _STATISTICS]
    num_rows = sum(s.num_rows for s in tail.stripes)
    is_full = [s.get(_HAS_NULL) == 0 or s.get(_NUM_VALUES) == num_rows for s in statistics]
    paths = _leaves(_types(tail.fields), (0,))
    return [all(column < len(is_full) and is_full[column] for column in path[1:]) for path in paths]


class _Type(NamedTuple):
    kind: int
    children: list[int]


def _types(fields: list[tuple[int, Value]]) -> list[_Type]:
    # Arrow ends the process where types make no sense.
    types = []
    for number, value in fields:
        if number != _TYPES:
            continue
        parts = list(_fields(_as_bytes(value)))
        known = dict(parts)
        children = [c for n, v in parts if n == _TYPE_SUBTYPES for c in ([v] if isinstance(v, int) else _packed(v))]
        found = _Type(_number(known, _TYPE_KIND), children)
        num_names = sum(n == _TYPE_NAMES for n, _ in parts)
        num_wanted = {_LIST: 1, _MAP: 2, _STRUCT: num_names, _UNION: len(children)}.get(found.kind, 0)
        if (
            len(children) != num_wanted
            or max(_number(known, n) for n in (_TYPE_PRECISION, _TYPE_SCALE)) > _MAX_PRECISION
        ):
            raise ValueError("its types are damaged")
        types.append(found)
    if _last_type(types, 0, 0) != len(types) - 1:
        raise ValueError("its types are damaged")
    return types


def _last_type(types: list[_Type], number: int, depth: int) -> int:
    # Types are numbered parents first.
    last = number
    if number >= len(types) or depth > _MAX_DEPTH:
        raise ValueError("its types are damaged")
    for child in types[number].children:
        if child != last + 1:
            raise ValueError("its types are damaged")
        last = _last_type(types, child, depth + 1)
    return last


def _leaves(types: list[_Type], path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    kind, children = types[path[-1]]
    if kind != _STRUCT or not children:
        yield path
        return
    for child in children:
        yield from _leaves(types, (*path, child))


def _check_stripes(stripes: tuple[Stripe, ...], content_bytes: int, num_rows: int) -> None:
    position = len(MAGIC)
    for stripe in stripes:
        if stripe.start < position or stripe.start + stripe.num_bytes > content_bytes:
            raise ValueError("its footer names a stripe where none can be")
        position = stripe.start + stripe.num_bytes
    if sum(s.num_rows for s in stripes) != num_rows:
        raise ValueError(f"its footer says {num_rows} rows, its stripes {sum(s.num_rows for s in stripes)}")


def _stripe(value: Value) -> Stripe:
    known = dict(_fields(_as_bytes(value)))
    num_bytes = sum(_number(known, number) for number in _STRIPE_LENGTHS)
    return Stripe(_number(known, _STRIPE_OFFSET), num_bytes, _number(known, _STRIPE_ROWS))


def _decompressed(data: bytes, post_script: dict[int, Value]) -> bytes:
    codec = _number(post_script, _PS_COMPRESSION)
    if codec == _NONE:
        return data
    block_bytes = _number(post_script, _PS_BLOCK_SIZE) or 256 * 1024
    parts, position, total = [], 0, 0
    while position < len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        length, position = header >> 1, position + 3
        chunk = data[position : position + length]
        if len(chunk) < length:
            raise ValueError("its footer is damaged")
        parts.append(chunk if header & 1 else _inflate(chunk, codec, block_bytes))
        total += len(parts[-1])
        if total > _MAX_TAIL_BYTES:
            raise ValueError("its footer is too long")
        position += length
    return b"".join(parts)


def _inflate(chunk: bytes, codec: int, block_bytes: int) -> bytes:
    limit = min(block_bytes, _MAX_TAIL_BYTES)
    try:
        if codec == _ZLIB:
            return zlib.decompressobj(-15).decompress(chunk, limit)
        if codec == _SNAPPY:
            num_bytes, _ = _varint(chunk, 0)
            if num_bytes > limit:
                raise ValueError("its footer is damaged")
            return bytes(pa.Codec("snappy").decompress(chunk, num_bytes, asbytes=True))
        if codec == _LZ4:
            return _inflate_lz4(chunk, limit)
        if codec in (_ZSTD, _BROTLI):
            name = "zstd" if codec == _ZSTD else "brotli"
            with pa.CompressedInputStream(pa.BufferReader(chunk), name) as stream:
                return bytes(stream.read(limit))
    except (zlib.error, pa.ArrowException, OSError) as error:
        raise ValueError("its footer is damaged") from error
    raise ValueError("it is compressed by LZO" if codec == _LZO else f"it is compressed in an unknown way, {codec}")


def _inflate_lz4(chunk: bytes, limit: int) -> bytes:
    # https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md; Arrow asks for the exact length, which is not known.
    out = bytearray()
    position = 0
    try:
        while position < len(chunk) and len(out) <= limit:
            token = chunk[position]
            length, position = _lz4_length(chunk, position + 1, token >> 4)
            out += chunk[position : position + length]
            position += length
            if position >= len(chunk):
                break
            offset = int.from_bytes(chunk[position : position + 2], "little")
            length, position = _lz4_length(chunk, position + 2, token & 15)
            if not 0 < offset <= len(out) or length > limit:
                raise ValueError("its footer is damaged")
            repeated = out[len(out) - offset :] * ((length + 4) // offset + 1)
            out += repeated[: length + 4]
    except IndexError as error:
        raise ValueError("its footer is damaged") from error
    return bytes(out)


def _lz4_length(chunk: bytes, position: int, length: int) -> tuple[int, int]:
    if length < 15:
        return length, position
    while True:
        byte = chunk[position]
        position += 1
        length += byte
        if byte < 255:
            return length, position


def _stored(data: bytes, post_script: dict[int, Value]) -> bytes:
    if _number(post_script, _PS_COMPRESSION) == _NONE:
        return data
    size = min(_number(post_script, _PS_BLOCK_SIZE) or 256 * 1024, 2**23 - 1)
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join((len(chunk) << 1 | 1).to_bytes(3, "little") + chunk for chunk in chunks)


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("its footer is damaged")
        if position + length > len(data):
            raise ValueError("its footer is damaged")
        if kind == _BYTES:
            yield number, data[position : position + length]
        position += length


def _encoded(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _to_varint(number << 3 | _VARINT) + _to_varint(value)
    return _to_varint(number << 3 | _BYTES) + _to_varint(len(value)) + value


def _packed(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError("its footer is damaged")


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(fields: dict[int, Value], number: int) -> int:
    value = fields.get(number, 0)
    if not isinstance(value, int):
        raise ValueError("its footer is damaged")
    return value


def _as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("its footer is damaged")
    return value


class _Spliced(SeekableFile):
    """The start of one file, and behind it something else."""

    def __init__(self, raw: BinaryIO, num_bytes: int, rest: bytes) -> None:
        super().__init__(num_bytes + len(rest))
        self._raw, self._num_raw_bytes, self._rest = raw, num_bytes, rest

    def read(self, num_bytes: int = -1, /) -> bytes:
        stop = self._num_bytes if num_bytes < 0 else min(self._num_bytes, self._position + num_bytes)
        data = b""
        if self._position < min(stop, self._num_raw_bytes):
            self._raw.seek(self._position)
            data = self._raw.read(min(stop, self._num_raw_bytes) - self._position)
        if stop > self._num_raw_bytes:
            data += self._rest[max(0, self._position - self._num_raw_bytes) : stop - self._num_raw_bytes]
        self._position += len(data)
        return data
