"""The frame of Avro files: header, blocks between sync markers, and how blocks are compressed.

Avro object container files: https://avro.apache.org/docs/1.12.0/specification/#object-container-files
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from shardkit.encoding.byte_stream import ByteStream
from shardkit.encoding.varints import VarintError, read_varint
from shardkit.sources.files.expansion_limit import snappy_inflate
from shardkit.sources.files.streams import read_exactly
from shardkit.units import KiB, MiB, format_size

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")

_MAX_METADATA_BYTES = 64 * MiB
_CHECKSUM_BYTES = 4
_SEARCHED_BYTES = 256 * KiB


class Header(NamedTuple):
    """The start of a file.

    Attributes:
        schema: JSON.
        sync: What is behind each block.
        num_bytes: Its length; the first block follows.
    """

    schema: bytes
    codec: str
    sync: bytes
    num_bytes: int


class Block(NamedTuple):
    """A block.

    Attributes:
        num_rows: How many rows it says it has.
        data: As stored.
    """

    start: int
    num_rows: int
    data: bytes


class Reader:
    """Reads a stream and counts its bytes."""

    def __init__(self, stream: ByteStream, position: int = 0) -> None:
        self._stream = stream
        self.position = position

    def take(self, num_bytes: int) -> bytes:
        """Returns so many bytes. Raises ValueError if there are fewer."""
        data = read_exactly(self._stream, num_bytes) if num_bytes else b""
        self.position += len(data)
        if len(data) < num_bytes:
            raise ValueError(f"it ends at byte {self.position}, in the middle of a block")
        return data

    def number(self, first: bytes | None = None) -> int:
        """Returns a signed number.

        Args:
            first: Its first byte, if that was read before.

        Raises:
            ValueError: If it has no end.
        """
        try:
            value, _ = read_varint(chain(first or b"", iter(lambda: self.take(1)[0], -1)))
        except VarintError as error:
            raise ValueError(f"the number at byte {self.position} is too long") from error
        return (value >> 1) ^ -(value & 1)

    def next_byte(self) -> bytes:
        """Returns a byte, none at the end."""
        data = self._stream.read(1)
        self.position += len(data)
        return data


def read_header(reader: Reader) -> Header:
    """Returns the header of a file. Raises ValueError if it is damaged, or the codec is none that is read."""
    if reader.take(len(MAGIC)) != MAGIC:
        raise ValueError("it does not start as an Avro file does")
    metadata: dict[str, bytes] = {}
    while count := reader.number():
        if count < 0:
            reader.number()
        for _ in range(abs(count)):
            key = _short_bytes(reader).decode()
            metadata[key] = _short_bytes(reader)
    codec = metadata.get("avro.codec", b"null").decode()
    if codec not in CODECS:
        raise ValueError(f"it is compressed in an unknown way, {codec!r}")
    if "avro.schema" not in metadata:
        raise ValueError("it has no schema")
    return Header(metadata["avro.schema"], codec, reader.take(SYNC_BYTES), reader.position)


def read_blocks(reader: Reader, header: Header, stop: int, max_bytes: int) -> Iterator[Block]:
    """Yields blocks up to a place where one ends.

    Args:
        reader: Where a block starts.
        stop: Where to end; 0 is the end of the file.
        max_bytes: Longer blocks are refused.

    Raises:
        ValueError: If a block is cut off or damaged.
    """
    while True:
        start = reader.position
        if stop and start >= stop:
            if start > stop:
                raise ValueError(f"the block before byte {start} is longer than it can be")
            return
        first = reader.next_byte()
        if not first:
            if stop:
                raise ValueError(f"it ends at byte {start}, where a block should follow")
            return
        num_rows, num_bytes = reader.number(first), reader.number()
        if num_rows < 0 or num_bytes < 0:
            raise ValueError(f"the block at byte {start} is damaged")
        if num_bytes > max_bytes:
            why = f"{format_size(num_bytes)} is more than the {format_size(max_bytes)} allowed"
            raise ValueError(f"the block at byte {start} is too long, {why}")
        data = reader.take(num_bytes)
        if reader.take(SYNC_BYTES) != header.sync:
            raise ValueError(f"the block at byte {start} does not end with the sync marker")
        yield Block(start, num_rows, data)


def find_block(raw: BinaryIO, header: Header, start: int) -> int | None:
    """Returns where the first block starts behind a sync marker at or after a place, None if there is none."""
    raw.seek(start)
    data = b""
    while chunk := raw.read(_SEARCHED_BYTES):
        data = data[-SYNC_BYTES + 1 :] + chunk
        start += len(chunk)
        found = data.find(header.sync)
        if found >= 0:
            return start - len(data) + found + SYNC_BYTES
    return None


def inflate(data: bytes, codec: str, max_bytes: int) -> bytes:
    """Returns the content of a block. Raises ValueError if it is damaged, or longer than `max_bytes`."""
    try:
        found = data if codec == "null" else _inflate(data, codec, max_bytes)
    except (zlib.error, lzma.LZMAError, pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"a {codec} block is damaged, {str(error) or type(error).__name__}") from error
    if len(found) > max_bytes:
        raise ValueError(f"a {codec} block of {format_size(len(data))} becomes more than {format_size(max_bytes)}")
    return found


def _inflate(data: bytes, codec: str, max_bytes: int) -> bytes:
    if codec == "snappy":
        return _inflate_snappy(data, max_bytes)
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read(max_bytes + 1))
    if codec == "deflate":
        deflate = zlib.decompressobj(-15)
        found = deflate.decompress(data, max_bytes + 1)
        is_complete = deflate.eof
    else:
        other = bz2.BZ2Decompressor() if codec == "bzip2" else lzma.LZMADecompressor()
        found = other.decompress(data, max_bytes + 1)
        is_complete = other.eof
    if not is_complete and len(found) <= max_bytes:
        raise EOFError("it is cut off")
    return found


def _inflate_snappy(data: bytes, max_bytes: int) -> bytes:
    content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    found = snappy_inflate(content, max_bytes)
    if zlib.crc32(found) != int.from_bytes(checksum, "big"):
        raise EOFError("its checksum is wrong")
    return found


def _short_bytes(reader: Reader) -> bytes:
    length = reader.number()
    if not 0 <= length <= _MAX_METADATA_BYTES:
        raise ValueError("its header is damaged")
    return reader.take(length)
