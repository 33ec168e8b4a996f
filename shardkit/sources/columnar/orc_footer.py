"""What the tail of an ORC file says of its stripes, and a tail that names only some of them.

Arrow reads a file from front to back in small batches, or one stripe in one piece, which takes as much memory as the
stripe. A file that ends in a tail with fewer stripes lets it read these in small batches. The tail is Protobuf:
https://orc.apache.org/specification/ORCv1/ and orc_proto.proto.
"""

from __future__ import annotations

import io
import zlib
from copy import deepcopy
from itertools import count
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from shardkit.encoding.example import declare_messages
from shardkit.sources.files.expansion_limit import snappy_inflate
from shardkit.storage.seekable_file import SplicedFile

MAGIC = b"ORC"

_NONE, _ZLIB, _SNAPPY, _LZO, _LZ4, _ZSTD, _BROTLI = range(7)
_STRUCT = 12
_MAX_PRECISION = 38
_MAX_TAIL_BYTES = 2**28
_MAX_BLOCK_BYTES = 2**23  # Lengths have 23 bits.
_BLOCK_BYTES = 256 * 1024  # Where the file does not say.
_MAX_DEPTH = 128
# The start of an LZ4 frame of blocks of up to 4 MiB, https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md.
_LZ4_FRAME = bytes.fromhex("04224d18607073")


class Tail(NamedTuple):
    """The tail of a file.

    Attributes:
        content_bytes: Length of what is before the tail.
        footer: The message that describes the content; its stripes are checked.
        post_script: The message that describes the footer.
    """

    content_bytes: int
    footer: Any
    post_script: Any


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
    post_script = _parse("PostScript", end[-length:-1])
    if post_script.magic != MAGIC:
        raise ValueError("it does not end as an ORC file does")
    footer_bytes = post_script.footer_bytes
    statistics_bytes = post_script.metadata_bytes + post_script.stripe_statistics_bytes
    content_bytes = num_bytes - length - footer_bytes - statistics_bytes
    if content_bytes < len(MAGIC) or footer_bytes > _MAX_TAIL_BYTES:
        raise ValueError("its footer is longer than the file")
    if post_script.block_bytes > _MAX_BLOCK_BYTES:
        raise ValueError("its compressed blocks are too long")
    raw.seek(num_bytes - length - footer_bytes)
    footer = _parse("Footer", _decompressed(raw.read(footer_bytes), post_script))
    if footer.HasField("encryption"):
        raise ValueError("it is encrypted")
    _leaves(footer.types)
    _check_stripes(footer, content_bytes)
    return Tail(content_bytes, footer, post_script)


def stripe_bytes(stripe: Any) -> int:
    """Returns the length of a stripe."""
    return int(stripe.index_bytes + stripe.data_bytes + stripe.footer_bytes)


def with_stripes(raw: BinaryIO, tail: Tail, start: int, stop: int) -> io.RawIOBase:
    """Returns a file that holds but some of the stripes.

    Args:
        start, stop: Stripes, half-open.
    """
    footer, post_script = deepcopy(tail.footer), deepcopy(tail.post_script)
    del footer.stripes[stop:]
    del footer.stripes[:start]
    footer.num_rows = sum(s.num_rows for s in footer.stripes)
    stored = _stored(footer.SerializeToString(), post_script)
    post_script.footer_bytes = len(stored)
    post_script.metadata_bytes = post_script.stripe_statistics_bytes = 0
    end = post_script.SerializeToString()
    return SplicedFile(raw, tail.content_bytes, stored + end + bytes([len(end)]))


def full_columns(tail: Tail) -> list[bool]:
    """Returns, for each flattened column, whether the statistics say that it has no nulls.

    Raises:
        ValueError: If the footer is damaged.
    """
    footer = tail.footer
    is_full = [
        (s.HasField("has_null") and not s.has_null) or (s.HasField("num_values") and s.num_values == footer.num_rows)
        for s in footer.statistics
    ]
    paths = _leaves(footer.types)
    return [all(column < len(is_full) and is_full[column] for column in path[1:]) for path in paths]


def _leaves(types: Any) -> list[tuple[int, ...]]:
    # Returns the types from the root to each leaf; a list is one. Arrow ends the process where a precision is too large
    # or types are nested deeply, and takes very long where they are no tree.
    numbers = count()

    def walk(path: tuple[int, ...]) -> list[tuple[int, ...]]:
        # Types are numbered parents first.
        if path[-1] != next(numbers) or path[-1] >= len(types) or len(path) > _MAX_DEPTH:
            raise ValueError("its types are damaged")
        type_ = types[path[-1]]
        below = [leaf for child in type_.subtypes for leaf in walk((*path, child))]
        return below if type_.kind == _STRUCT and below else [path]

    found = walk((0,))
    if next(numbers) != len(types) or any(max(t.precision, t.scale) > _MAX_PRECISION for t in types):
        raise ValueError("its types are damaged")
    return found


def _check_stripes(footer: Any, content_bytes: int) -> None:
    position = len(MAGIC)
    for stripe in footer.stripes:
        if stripe.start < position or stripe.start + stripe_bytes(stripe) > content_bytes:
            raise ValueError("its footer names a stripe where none can be")
        position = stripe.start + stripe_bytes(stripe)
    num_rows = sum(s.num_rows for s in footer.stripes)
    if num_rows != footer.num_rows:
        raise ValueError(f"its footer says {footer.num_rows} rows, its stripes {num_rows}")


def _decompressed(data: bytes, post_script: Any) -> bytes:
    if post_script.compression == _NONE:
        return data
    parts, position, total = [], 0, 0
    while position < len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        length, position = header >> 1, position + 3
        chunk = data[position : position + length]
        if len(chunk) < length:
            raise ValueError("its footer is damaged")
        block_bytes = post_script.block_bytes or _BLOCK_BYTES
        parts.append(chunk if header & 1 else _inflate(chunk, post_script.compression, block_bytes))
        total += len(parts[-1])
        if total > _MAX_TAIL_BYTES:
            raise ValueError("its footer is too long")
        position += length
    return b"".join(parts)


def _inflate(chunk: bytes, codec: int, limit: int) -> bytes:
    try:
        if codec == _ZLIB:
            return zlib.decompressobj(-15).decompress(chunk, limit)
        if codec == _SNAPPY:
            return snappy_inflate(chunk, limit)
        if codec in (_LZ4, _ZSTD, _BROTLI):
            if codec == _LZ4:
                chunk = _LZ4_FRAME + len(chunk).to_bytes(4, "little") + chunk + bytes(4)
            name = {_LZ4: "lz4", _ZSTD: "zstd", _BROTLI: "brotli"}[codec]
            with pa.CompressedInputStream(pa.BufferReader(chunk), name) as stream:
                return bytes(stream.read(limit))
    except (zlib.error, ValueError, pa.ArrowException, OSError) as error:
        raise ValueError("its footer is damaged") from error
    raise ValueError("it is compressed by LZO" if codec == _LZO else f"it is compressed in an unknown way, {codec}")


def _stored(data: bytes, post_script: Any) -> bytes:
    if post_script.compression == _NONE:
        return data
    size = min(post_script.block_bytes or _BLOCK_BYTES, _MAX_BLOCK_BYTES - 1)
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join((len(chunk) << 1 | 1).to_bytes(3, "little") + chunk for chunk in chunks)


def _declare(file: Any, name: str, **numbers: int) -> None:
    # A message is written again with all its fields: protobuf keeps those that are not declared.
    field = descriptor_pb2.FieldDescriptorProto
    lists = {"stripes": ".shardkit.orc.Stripe", "types": ".shardkit.orc.Type", "statistics": ".shardkit.orc.Statistics"}
    message = file.message_type.add(name=name)
    for key, number in numbers.items():
        kind = field.TYPE_BYTES if key in ("magic", "encryption") else field.TYPE_UINT64
        label = field.LABEL_REPEATED if key in lists or key == "subtypes" else field.LABEL_OPTIONAL
        found = message.field.add(name=key, number=number, type=kind, label=label)
        if key in lists:
            found.type, found.type_name = field.TYPE_MESSAGE, lists[key]


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="shardkit/orc.proto", package="shardkit.orc", syntax="proto2")
    _declare(file, "Stripe", start=1, index_bytes=2, data_bytes=3, footer_bytes=4, num_rows=5)
    _declare(file, "Type", kind=1, subtypes=2, precision=5, scale=6)
    _declare(file, "Statistics", num_values=1, has_null=10)
    _declare(file, "Footer", stripes=3, types=4, num_rows=6, statistics=7, encryption=10)
    lengths = {"footer_bytes": 1, "metadata_bytes": 5, "stripe_statistics_bytes": 7}
    _declare(file, "PostScript", compression=2, block_bytes=3, magic=8000, **lengths)
    return declare_messages(file)


_CLASSES = _message_classes()


def _parse(name: str, data: bytes) -> Any:
    try:
        return _CLASSES[name].FromString(data)
    except DecodeError as error:
        raise ValueError("its footer is damaged") from error
