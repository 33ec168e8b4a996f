"""What the messages of an Arrow file announce, read without Arrow: how many rows, and how much memory they will take.

A few bytes can announce a batch of any size, and a stream that is cut off between two messages looks complete to
Arrow. So lengths are checked here before anything is allocated: FlatBuffers by the layout of
https://github.com/apache/arrow/blob/main/format/Message.fbs and File.fbs.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

FILE_MAGIC = b"ARROW1"
CONTINUATION = b"\xff\xff\xff\xff"
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3

_MAX_METADATA_BYTES = 2**28
# Numbers of fields in Message.fbs and File.fbs.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 1, 2, 3
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = range(4)
_DICTIONARY_DATA = 1
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BLOCK, _PAIR = struct.Struct("<qi4xq"), struct.Struct("<qq")
_TAIL = struct.Struct("<i6s")


class Message(NamedTuple):
    """What the metadata of a message announces.

    Attributes:
        kind: SCHEMA, DICTIONARY, RECORD_BATCH or another number.
        body_bytes: Length of what follows the metadata.
        null_counts: Of its fields and their children, parents first.
        buffers: Offset and length of each buffer in the body.
        is_compressed: Whether each buffer is, behind 8 bytes that tell how long it will be.
    """

    kind: int
    body_bytes: int
    num_rows: int = 0
    null_counts: tuple[int, ...] = ()
    buffers: tuple[tuple[int, int], ...] = ()
    is_compressed: bool = False


class Block(NamedTuple):
    """Where a message is in a file.

    Attributes:
        offset: Where its prefix starts.
        metadata_bytes: Length of prefix, metadata and padding.
        body_bytes: Length of the body, which follows.
    """

    offset: int
    metadata_bytes: int
    body_bytes: int


def parse_message(metadata: bytes) -> Message:
    """Returns the counts and sizes that a message announces. Raises ValueError if it is damaged."""
    try:
        root = _Table.root(metadata)
        kind, body_bytes = root.number(_MESSAGE_HEADER_TYPE, "<B"), root.number(_MESSAGE_BODY_LENGTH, "<q")
        header = root.table(_MESSAGE_HEADER)
        if kind == DICTIONARY and header is not None:
            header = header.table(_DICTIONARY_DATA)
        if kind not in (DICTIONARY, RECORD_BATCH) and body_bytes >= 0:
            return Message(kind, body_bytes)
        if header is None or body_bytes < 0:
            raise ValueError("a message is damaged")
        return _parse_batch(kind, body_bytes, header)
    except (struct.error, IndexError) as error:
        raise ValueError("the metadata of a message is damaged") from error


def parse_footer(footer: bytes) -> tuple[list[Block], list[Block]]:
    """Returns where the dictionaries and the batches of a file are. Raises ValueError if the footer is damaged."""
    try:
        root = _Table.root(footer)
        dictionaries = [Block(*item) for item in root.structs(_FOOTER_DICTIONARIES, _BLOCK)]
        batches = [Block(*item) for item in root.structs(_FOOTER_BATCHES, _BLOCK)]
    except (struct.error, IndexError) as error:
        raise ValueError("the footer is damaged") from error
    if any(min(block) < 0 for block in (*dictionaries, *batches)):
        raise ValueError("the footer is damaged")
    return dictionaries, batches


def footer_length(tail: bytes) -> int:
    """Returns how long the footer of a file is.

    Args:
        tail: The last bytes of the file, 10 of them.

    Raises:
        ValueError: If the file does not end as an Arrow file does.
    """
    if len(tail) < _TAIL.size:
        raise ValueError("the file is too short")
    length, magic = _TAIL.unpack(tail[-_TAIL.size :])
    if magic != FILE_MAGIC or not 0 < length <= _MAX_METADATA_BYTES:
        raise ValueError("it does not end as an Arrow file does")
    return int(length)


def metadata_length(prefix: bytes) -> tuple[int, int]:
    """Returns how many bytes a message starts with, 4 or 8, and how long its metadata is; 0 at the end of a stream.

    Args:
        prefix: The first 8 bytes of the message, or 4 where the stream ends behind them.

    Raises:
        ValueError: If no message starts so.
    """
    start = 4 if prefix[:4] == CONTINUATION else 0
    if len(prefix) < start + 4:
        raise ValueError("it ends within a message")
    (length,) = struct.unpack_from("<i", prefix, start)
    if not 0 <= length <= _MAX_METADATA_BYTES:
        raise ValueError("no message starts where one should")
    return start + 4, int(length)


def starts_stream(head: bytes) -> bool:
    """Returns whether a file starts with the schema message of an Arrow stream."""
    if not head.startswith(CONTINUATION) or len(head) < 16:
        return False
    try:
        start, length = metadata_length(head[:8])
        return length > 0 and parse_message(head[start : start + length]).kind == SCHEMA
    except ValueError:
        return False


def _parse_batch(kind: int, body_bytes: int, header: _Table) -> Message:
    num_rows = header.number(_BATCH_LENGTH, "<q")
    null_counts = tuple(num_nulls for _, num_nulls in header.structs(_BATCH_NODES, _PAIR))
    buffers = [(offset, length) for offset, length in header.structs(_BATCH_BUFFERS, _PAIR)]
    if num_rows < 0 or any(a < 0 or n < 0 or a + n > body_bytes for a, n in buffers):
        raise ValueError("a message is damaged")
    is_compressed = header.table(_BATCH_COMPRESSION) is not None
    return Message(kind, body_bytes, num_rows, null_counts, tuple(buffers), is_compressed)


class _Table(NamedTuple):
    """A table of a FlatBuffer. Reading past the end raises struct.error or IndexError."""

    data: bytes
    position: int

    @staticmethod
    def root(data: bytes) -> _Table:
        return _Table(data, _unpack("<I", data, 0))

    def number(self, field: int, kind: str) -> int:
        position = self._position_of(field)
        return 0 if position is None else _unpack(kind, self.data, position)

    def table(self, field: int) -> _Table | None:
        position = self._position_of(field)
        return None if position is None else _Table(self.data, position + _unpack("<I", self.data, position))

    def structs(self, field: int, item: struct.Struct) -> list[tuple[int, ...]]:
        position = self._position_of(field)
        if position is None:
            return []
        position += _unpack("<I", self.data, position)
        stop = position + 4 + _unpack("<I", self.data, position) * item.size
        if stop > len(self.data):
            raise IndexError
        return list(item.iter_unpack(self.data[position + 4 : stop]))

    def _position_of(self, field: int) -> int | None:
        vtable = self.position - _unpack("<i", self.data, self.position)
        if vtable < 0:
            raise IndexError
        if 4 + 2 * field >= _unpack("<H", self.data, vtable):
            return None
        offset = _unpack("<H", self.data, vtable + 4 + 2 * field)
        return self.position + offset if offset else None


def _unpack(kind: str, data: bytes, position: int) -> int:
    return int(struct.unpack_from(kind, data, position)[0])
