"""Where the messages of an Arrow file or stream are, and those of one split as a stream that Arrow can read."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from shardkit.encoding.byte_stream import ByteStream
from shardkit.errors import DamagedFileError
from shardkit.sources.base import RawFile, place
from shardkit.sources.columnar.arrow_messages import (
    DICTIONARY,
    FILE_MAGIC,
    RECORD_BATCH,
    SCHEMA,
    Block,
    Message,
    footer_length,
    metadata_length,
    parse_footer,
    parse_message,
)
from shardkit.sources.files.streams import read_exactly
from shardkit.units import GiB, MiB, format_size

# A stream of more batches is not walked through in advance, and so read by one worker.
MAX_WALKED_BATCHES = 1024

_MAX_BATCH_BYTES = 2 * GiB
_SMALL_BATCH_BYTES = 256 * MiB
_SPARE_ROWS = 2**20
_TAIL_BYTES = 10
_FILE_START_BYTES = 8
_PREFIX_BYTES = 8
_LENGTH_BYTES = 8
_MAX_PADDING_BYTES = 80  # To a multiple of 64, and a mark of the end.


class Layout(NamedTuple):
    """Where the messages of a file are.

    Attributes:
        schema: The first message.
        dictionaries: In the order in which they are to be read.
    """

    schema: Block
    dictionaries: list[Block]
    batches: list[Block]


def read_layout(raw: BinaryIO, num_bytes: int) -> Layout | None:
    """Returns where the messages of a file or stream are, None for a stream of very many batches.

    Raises:
        ValueError: If it is cut off or damaged.
    """
    raw.seek(0)
    if raw.read(len(FILE_MAGIC)) != FILE_MAGIC:
        return _walk(raw, num_bytes)
    raw.seek(-min(_TAIL_BYTES, num_bytes), io.SEEK_END)
    length = footer_length(raw.read(_TAIL_BYTES))
    end = num_bytes - _TAIL_BYTES - length
    if end < _FILE_START_BYTES:
        raise ValueError("its footer is longer than the file")
    raw.seek(end)
    dictionaries, batches = parse_footer(raw.read(length))
    raw.seek(_FILE_START_BYTES)
    start, length = metadata_length(raw.read(_PREFIX_BYTES))
    layout = Layout(Block(_FILE_START_BYTES, start + length, 0), dictionaries, batches)
    _check_complete(layout, end)
    return layout


def read_message(raw: BinaryIO, block: Block) -> tuple[bytes, Message]:
    """Returns the metadata of a message with their prefix, and what they announce; its body is next in the file.

    Raises:
        ValueError: If no batch or dictionary of this size is there, or it is damaged.
    """
    raw.seek(block.offset)
    # A read of a file in a store costs more than one of memory.
    metadata, message = _next_message(io.BytesIO(raw.read(block.metadata_bytes)).read) or (b"", None)
    if message is None or message.kind not in (DICTIONARY, RECORD_BATCH):
        raise ValueError("no batch stands where the footer says")
    if len(metadata) != block.metadata_bytes or message.body_bytes > block.body_bytes:
        raise ValueError("a message is not as long as the footer says")
    return metadata, message


def split_messages(raw: BinaryIO, layout: Layout, start: int, stop: int, file: RawFile) -> Iterator[bytes]:
    """Yields a stream of some of the batches: schema, dictionaries, batches, in pieces.

    Args:
        start, stop: Batches to read, half-open.
        file: Says how many times as large a large batch may become by being decompressed.

    Raises:
        ValueError: If a message is damaged.
        DamagedFileError: If one takes up too much memory.
    """
    raw.seek(layout.schema.offset)
    yield raw.read(layout.schema.metadata_bytes)
    blocks = [*layout.dictionaries, *layout.batches[start:stop]]
    # Dictionaries of a stream may replace each other; dictionaries of a file are anywhere.
    for block in blocks if layout.schema.offset > 0 else sorted(blocks):
        yield from _with_body(*read_message(raw, block), raw.read, file)


def stream_messages(stream: ByteStream, file: RawFile) -> Iterator[bytes]:
    """Yields a stream from front to back, in pieces, each checked before it is read.

    Args:
        file: Says how many times as large a large batch may become by being decompressed.

    Raises:
        ValueError: If it is damaged, or does not end with the mark that says that it is complete.
        DamagedFileError: If a message takes up too much memory.
    """
    read = partial(read_exactly, stream)
    while (found := _next_message(read)) is not None:
        yield from _with_body(*found, read, file)


class MessageStream(io.RawIOBase):
    """Pieces of bytes as a file that can be read from front to back.

    Args:
        pieces: Made when they are asked for.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__()
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """Returns that it is."""
        return True

    def read(self, num_bytes: int, /) -> bytes | memoryview:  # type: ignore[override]
        """Returns up to `num_bytes` bytes of one piece, none at the end; Arrow never reads across pieces."""
        while not len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece = memoryview(piece)
        part, self._piece = self._piece[:num_bytes], self._piece[num_bytes:]
        return part


def _check_complete(layout: Layout, end: int) -> None:
    # A footer that is damaged may leave out a batch, or name one twice.
    position = layout.schema.offset
    for block in (layout.schema, *sorted([*layout.dictionaries, *layout.batches])):
        if not 0 <= block.offset - position < _MAX_PADDING_BYTES:
            raise ValueError("its footer does not name all that lies in it, or some twice")
        position = block.offset + block.metadata_bytes + block.body_bytes
    if not 0 <= end - position < _MAX_PADDING_BYTES:
        raise ValueError("its footer does not name all that lies in it")


def _walk(raw: BinaryIO, num_bytes: int) -> Layout | None:
    blocks: dict[int, list[Block]] = {SCHEMA: [], DICTIONARY: [], RECORD_BATCH: []}
    position = 0
    while len(blocks[RECORD_BATCH]) <= MAX_WALKED_BATCHES:
        raw.seek(position)
        found = _next_message(raw.read)
        if found is None:
            if not blocks[SCHEMA]:
                raise ValueError("it has no schema")
            return Layout(blocks[SCHEMA][0], blocks[DICTIONARY], blocks[RECORD_BATCH])
        metadata, message = found
        block = Block(position, len(metadata), message.body_bytes)
        position += block.metadata_bytes + block.body_bytes
        if position > num_bytes:
            raise ValueError("it ends within a message")
        if message.kind not in blocks or (message.kind == SCHEMA and blocks[SCHEMA]):
            raise ValueError("it holds a message of an unknown kind")
        blocks[message.kind].append(block)
    return None


def _next_message(read: Callable[[int], bytes]) -> tuple[bytes, Message] | None:
    # Returns the metadata of a message with their prefix, and what they announce; None at the end of the stream.
    prefix = read(_PREFIX_BYTES)
    if not prefix:
        raise ValueError("it has no end-of-stream mark")
    start, length = metadata_length(prefix)
    if length == 0:
        if len(prefix) > start or read(1):
            raise ValueError("bytes follow the end of the stream")
        return None
    metadata = prefix + read(max(0, start + length - len(prefix)))
    if len(metadata) < start + length:
        raise ValueError("it ends within a message")
    return metadata, parse_message(metadata[start : start + length])


def _with_body(metadata: bytes, message: Message, read: Callable[[int], bytes], file: RawFile) -> Iterator[bytes]:
    _check_size(message.body_bytes, file)
    body = read(message.body_bytes) if message.body_bytes else b""
    if len(body) < message.body_bytes:
        raise ValueError("it ends within a message")
    num_bytes = _held_bytes(message, body)
    _check_size(num_bytes, file)
    if num_bytes > max(_SMALL_BATCH_BYTES, file.max_expansion * len(body)):
        raise _too_large(
            f"a record batch of {format_size(len(body))} becomes {format_size(num_bytes)}, more than the "
            f"{file.max_expansion}-fold that is allowed",
            file,
        )
    if message.num_rows > 8 * num_bytes + _SPARE_ROWS:
        raise ValueError(f"a batch of {format_size(num_bytes)} says that it has {message.num_rows} rows")
    yield metadata
    yield body


def _held_bytes(message: Message, body: bytes) -> int:
    # Size of the buffers after they are decompressed; -1 says that one is stored as it is.
    if not message.is_compressed:
        return message.body_bytes
    filled = [(offset, length) for offset, length in message.buffers if length]
    announced = [int.from_bytes(body[offset : offset + _LENGTH_BYTES], "little", signed=True) for offset, _ in filled]
    if any(length < _LENGTH_BYTES for _, length in filled) or min(announced, default=0) < -1:
        raise ValueError("a compressed buffer has a wrong length")
    return sum(length if size == -1 else size for (_, length), size in zip(filled, announced, strict=True))


def _check_size(num_bytes: int, file: RawFile) -> None:
    if num_bytes > _MAX_BATCH_BYTES:
        limit = f"more than the {format_size(_MAX_BATCH_BYTES)} that are held in memory at once"
        raise _too_large(f"a record batch takes up {format_size(num_bytes)}, {limit}", file)


def _too_large(why: str, file: RawFile) -> DamagedFileError:
    what, next_step = "the Arrow file takes up too much memory", "Write it again in smaller record batches"
    return DamagedFileError(what, where=place(file), why=why, next_step=next_step)
