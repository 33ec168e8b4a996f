"""Text cut into blocks of whole records, read through one buffer that is used again for every block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardkit.encoding.byte_stream import ByteStream
from shardkit.sources.base import BATCH_BYTES

Text = bytes | memoryview
Positions = npt.NDArray[np.int64]

NEWLINE, RETURN = 0x0A, 0x0D

_SEARCH_BYTES = 64 * 1024
_SHOWN_BYTES = 1024
_GROWN_BYTES = 1024 * 1024
_FIRST_BYTES = 64 * 1024


class TextBlock(NamedTuple):
    """Some whole records.

    Attributes:
        data: Their bytes; overwritten when the next block is asked for.
        offset: Of the first byte, in the decompressed file.
        is_last: Whether nothing follows.
    """

    data: memoryview
    offset: int
    is_last: bool


class RecordTooLongError(Exception):
    """No record ends within the bytes that one record may have.

    Args:
        offset: Byte where the record starts, in the decompressed file.
    """

    def __init__(self, offset: int, head: bytes) -> None:
        super().__init__(offset)
        self.offset = offset
        self.head = head


class RecordRule(Protocol):
    """How one kind of text is cut into records. All texts that are handed over begin with a record."""

    def last_end(self, data: Text) -> int:
        """Returns where the last whole record of `data` ends, 0 if none does."""
        ...

    def ends(self, data: Text) -> Positions:
        """Returns where the records of `data` end; the last one counts even if nothing ends it."""
        ...

    def count_lines(self, data: Text) -> int:
        """Returns the number of line ends."""
        ...

    def lines_before(self, data: Text, positions: Positions) -> Positions:
        """Returns the number of line ends before each position."""
        ...

    def open_quote(self, data: Text) -> int | None:
        """Returns where the quote stands that nothing in `data` closes, None if all are closed."""
        ...


class Lines(NamedTuple):
    """A record is a line; only the line feed ends it."""

    def last_end(self, data: Text) -> int:
        """Returns where the last whole line ends, 0 if none does."""
        return find_last(data, NEWLINE, len(data)) + 1

    def ends(self, data: Text) -> Positions:
        """Returns where the lines end."""
        return with_end(np.flatnonzero(as_array(data) == NEWLINE) + 1, len(data))

    def count_lines(self, data: Text) -> int:
        """Returns the number of line feeds."""
        return int(np.count_nonzero(as_array(data) == NEWLINE))

    def lines_before(self, data: Text, positions: Positions) -> Positions:
        """Returns the number of line feeds before each position."""
        return np.searchsorted(np.flatnonzero(as_array(data) == NEWLINE), positions)

    def open_quote(self, data: Text) -> int | None:
        """Returns None: quotes keep no line from ending."""
        return None


def iter_blocks(
    stream: ByteStream,
    rule: RecordRule,
    *,
    offset: int,
    stop: int | None,
    max_record_bytes: int,
    block_bytes: int = BATCH_BYTES,
) -> Iterator[TextBlock]:
    """Yields the rest of a stream in blocks of whole records; the last record need not be ended.

    Args:
        stream: Stands at the start of a record.
        offset: Byte at which the stream is.
        stop: Byte to stop at, None for the end of the stream.
        block_bytes: Wanted size of a block; longer records make it larger.

    Raises:
        RecordTooLongError: If a record is longer than it may be.
    """
    room, buffer, num_held = block_bytes, bytearray(), 0
    while True:
        limit = room if stop is None else min(room, stop - offset)
        buffer, num_held = filled(stream, buffer, num_held, limit)
        at_end = num_held < limit or offset + num_held == stop
        view = memoryview(buffer)
        end = num_held if at_end else rule.last_end(view[:num_held])
        _check_lengths(view[:num_held], end, offset, rule, max_record_bytes)
        if end:
            yield TextBlock(view[:end], offset, at_end)
        if at_end:
            return
        if not end:
            view.release()
            buffer = larger(buffer, num_held, max(block_bytes, max_record_bytes + 1))
            room = len(buffer)
            continue
        rest = bytes(view[end:num_held])
        num_held, offset = len(rest), offset + end
        buffer[:num_held] = rest


def larger(buffer: bytearray, num_held: int, most: int) -> bytearray:
    """Returns a buffer with the same first bytes and twice the room; no more than `most`, unless it has that already.

    Args:
        buffer: Not used any more afterwards.
        most: The room for the longest record.
    """
    added = min(len(buffer), max(0, most - len(buffer)))
    try:
        # The system moves large blocks without a copy.
        for start in range(0, added, _GROWN_BYTES):
            buffer += bytes(min(_GROWN_BYTES, added - start))
    except BufferError:  # A view of it is still in use.
        grown = bytearray(len(buffer) + added)
        grown[:num_held] = memoryview(buffer)[:num_held]
        return grown
    return buffer


def as_array(data: Text) -> npt.NDArray[np.uint8]:
    """Returns the bytes as numbers, without a copy."""
    return np.frombuffer(data, dtype=np.uint8)


def find_last(data: Text, byte: int, limit: int) -> int:
    """Returns the last position of a byte before `limit`, -1 if it is not there."""
    values = as_array(data)
    stop = limit
    while stop > 0:
        start = max(0, stop - _SEARCH_BYTES)
        found = np.flatnonzero(values[start:stop] == byte)
        if len(found):
            return start + int(found[-1])
        stop = start
    return -1


def with_end(ends: Positions, num_bytes: int) -> Positions:
    """Returns record ends with the end of the text among them."""
    return ends if not num_bytes or (len(ends) and ends[-1] == num_bytes) else np.append(ends, num_bytes)


def filled(stream: ByteStream, buffer: bytearray, num_held: int, limit: int) -> tuple[bytearray, int]:
    """Returns a buffer that holds `limit` bytes, or all up to the end of the stream, and how many it holds.

    It grows with what is read: to clear a whole block for each of many tiny files takes longer than their rows.

    Args:
        buffer: Not used any more afterwards.
        num_held: How many bytes of it count.
    """
    while num_held < limit:
        if num_held == len(buffer):
            buffer = larger(buffer, num_held, limit) if buffer else bytearray(min(limit, _FIRST_BYTES))
        with memoryview(buffer) as view:
            num_read = stream.readinto(view[num_held:limit])
        if not num_read:
            break
        num_held += num_read
    return buffer, num_held


def _check_lengths(data: memoryview, end: int, offset: int, rule: RecordRule, max_record_bytes: int) -> None:
    if len(data) <= max_record_bytes:
        return
    start = None
    if len(data) - end > max_record_bytes:
        start = end
    elif end:
        ends = np.concatenate([np.zeros(1, dtype=np.int64), rule.ends(data[:end])])
        too_long = np.flatnonzero(np.diff(ends) > max_record_bytes)
        start = int(ends[too_long[0]]) if len(too_long) else None
    if start is not None:
        raise RecordTooLongError(offset + start, bytes(data[start : start + _SHOWN_BYTES]))
