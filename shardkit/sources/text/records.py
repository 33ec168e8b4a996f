"""Plain text cut into lines or paragraphs, as positions in blocks of bytes; a line is never an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.encoding.byte_stream import ByteStream
from shardkit.sources.base import MAX_RAW_BYTES, RawFile
from shardkit.sources.files.many_files import map_remote
from shardkit.sources.files.streams import open_raw
from shardkit.sources.text.blocks import NEWLINE, RETURN, Positions, filled, larger
from shardkit.storage import files as storage
from shardkit.units import KiB

_SEARCH_BYTES = 64 * KiB
_MIN_BUFFER_BYTES = 64
# A line ends with a line feed; a paragraph with a line that is empty, but for a carriage return.
_LINE_ENDS = (b"\n",)
_PARAGRAPH_ENDS = (b"\n\n", b"\n\r\n")


class Records(NamedTuple):
    """Where the records of a block are.

    Attributes:
        starts, stops: Half-open; the stop of a record leaves out its last line end.
        lines: Number of line ends before each.
        num_lines: Line ends in the block.
    """

    starts: Positions
    stops: Positions
    lines: Positions
    num_lines: int


class TextPart(NamedTuple):
    """Some whole records, or one that is too long to be held.

    Attributes:
        data: Their bytes, overwritten when the next part is asked for; of a record that is too long the first ones.
        offset: Of the first byte.
        num_skipped_lines: Line ends in a record that is too long; None for whole records.
        stop: Where a record that is too long ends.
    """

    data: memoryview
    offset: int
    num_skipped_lines: int | None = None
    stop: int = 0


class TextRule(NamedTuple):
    """How text is cut into records.

    Attributes:
        ends: What ends a record: any of these.
    """

    ends: tuple[bytes, ...]

    @property
    def is_line(self) -> bool:
        """Whether a record is one line."""
        return self.ends == _LINE_ENDS

    def last_end(self, data: bytearray, stop: int) -> int:
        """Returns where the last whole record before `stop` ends, 0 if none does."""
        return max(position + len(end) if (position := data.rfind(end, 0, stop)) >= 0 else 0 for end in self.ends)

    def first_end(self, data: bytes | bytearray, stop: int) -> int:
        """Returns where the first record ends before `stop`, 0 if none does."""
        found = [position + len(end) for end in self.ends if (position := data.find(end, 0, stop)) >= 0]
        return min(found, default=0)

    def find(self, data: npt.NDArray[np.uint8]) -> Records:
        """Returns the records of a text that starts with a line; those that are empty are left out."""
        feeds = np.flatnonzero(data == NEWLINE)
        stops = feeds if len(feeds) and feeds[-1] == len(data) - 1 else np.append(feeds, len(data))
        starts = np.concatenate([np.zeros(1, dtype=np.int64), stops[:-1] + 1])
        # A carriage return belongs to the line feed behind it, not to the text; without one it stands for itself.
        is_return = data[np.maximum(stops - 1, 0)] == RETURN if len(data) else np.zeros(len(stops), dtype=np.bool_)
        if is_return.any():
            is_return &= stops > starts
            is_return[len(feeds) :] = False
            stops = stops - is_return
        filled = stops > starts
        lines = np.arange(len(stops), dtype=np.int64)
        if self.is_line:
            if not filled.all():
                starts, stops, lines = starts[filled], stops[filled], lines[filled]
            return Records(starts, stops, lines, len(feeds))
        edges = np.diff(filled, prepend=False, append=False)
        first, last = np.flatnonzero(edges & np.append(filled, False)), np.flatnonzero(edges[1:] & filled)
        return Records(starts[first], stops[last], lines[first], len(feeds))


LINES, PARAGRAPHS = TextRule(_LINE_ENDS), TextRule(_PARAGRAPH_ENDS)


def take_texts(data: npt.NDArray[np.uint8], records: Records) -> pa.Array:
    """Returns the bytes of the records, of the type `binary`."""
    # Records and gaps alternate, so the positions are offsets as they are.
    offsets = np.empty(2 * len(records.starts), dtype=np.int32)
    offsets[::2], offsets[1::2] = records.starts, records.stops
    if not len(offsets):
        return pa.array([], pa.binary())
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    both = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return both.take(pa.array(np.arange(0, len(offsets), 2), pa.int32()))


def read_parts(
    stream: ByteStream, rule: TextRule, *, offset: int, stop: int | None, max_record_bytes: int, block_bytes: int
) -> Iterator[TextPart]:
    """Yields the rest of a stream in parts of whole records; the last record need not be ended.

    A record that is too long is passed over with the memory of one that is not.

    Args:
        stream: Stands at the start of a record.
        offset: Byte at which the stream is.
        stop: Byte to stop at, None for the end of the stream.
        max_record_bytes: Longest record; longer ones that fit into a block anyway are handed over with the others.
    """
    reader = _Reader(stream, offset, stop, block_bytes)
    while reader.fill():
        end = reader.num_held if reader.is_over else rule.last_end(reader.buffer, reader.num_held)
        if end:
            yield TextPart(reader.view(end), reader.offset)
            reader.drop(end)
        elif reader.num_held <= max_record_bytes:
            reader.grow(max_record_bytes + 2)
        else:
            yield _skip_record(reader, rule)


def find_cuts(file: RawFile, rule: TextRule, split_bytes: int) -> list[int]:
    """Returns where to cut a file: the first ends of records behind every multiple of the size of a split.

    Only what is around the cuts is read. The last split takes what would be less than a quarter of one.

    Args:
        file: Not compressed, and UTF-8.
    """
    wanted = range(split_bytes, file.num_bytes - split_bytes // 4, split_bytes)
    is_local = storage.is_local(file.path)
    found = map_remote(lambda start: _find_cut(file, rule, start, split_bytes), wanted, is_local=is_local)
    return sorted({cut for cut in found if cut is not None and cut < file.num_bytes})


def _find_cut(file: RawFile, rule: TextRule, start: int, num_bytes: int) -> int | None:
    with open_raw(file) as stream:
        stream.seek(start)
        tail, position, limit = b"", start, start + num_bytes
        while position < limit and (data := stream.read(min(_SEARCH_BYTES, limit - position))):
            data = tail + data
            if end := rule.first_end(data, len(data)):
                return position - len(tail) + end
            position += len(data) - len(tail)
            tail = data[-2:]
    return None


class _Reader:
    # Holds the bytes that were read and not yet handed over.

    def __init__(self, stream: ByteStream, offset: int, stop: int | None, block_bytes: int) -> None:
        self.buffer, self._room = bytearray(), max(_MIN_BUFFER_BYTES, block_bytes)
        self.offset, self.num_held, self.is_over = offset, 0, False
        self._stream, self._stop = stream, stop

    def fill(self) -> bool:
        limit = self._room if self._stop is None else min(self._room, self._stop - self.offset)
        self.buffer, self.num_held = filled(self._stream, self.buffer, self.num_held, limit)
        self.is_over = self.num_held < limit or self.offset + self.num_held == self._stop
        return self.num_held > 0

    def view(self, stop: int) -> memoryview:
        return memoryview(self.buffer)[:stop]

    def drop(self, num_bytes: int) -> None:
        rest = bytes(self.view(self.num_held)[num_bytes:])
        self.buffer[: len(rest)] = rest
        self.offset, self.num_held = self.offset + num_bytes, len(rest)

    def grow(self, num_bytes: int) -> None:
        self.buffer = larger(self.buffer, self.num_held, num_bytes)
        self._room = len(self.buffer)


def _skip_record(reader: _Reader, rule: TextRule) -> TextPart:
    start, head = reader.offset, bytes(reader.view(min(reader.num_held, MAX_RAW_BYTES)))
    num_lines = 0
    while not (end := rule.first_end(reader.buffer, reader.num_held)) and not reader.is_over:
        # The last two bytes may begin the end of the record.
        num_passed = reader.num_held - 2
        num_lines += reader.buffer.count(b"\n", 0, num_passed)
        reader.drop(num_passed)
        reader.fill()
    end = end or reader.num_held
    num_lines += reader.buffer.count(b"\n", 0, end)
    reader.drop(end)
    return TextPart(memoryview(head), start, num_lines, reader.offset)
