"""Numbers of lines in text files: every part of a file is counted once, however many messages need a number."""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict

from shardkit.sources.base import RawFile
from shardkit.sources.files.streams import is_seekable, open_stream, read_exactly
from shardkit.sources.text.blocks import RecordRule, TextBlock
from shardkit.units import MiB

_COUNT_BYTES = 8 * MiB
_MAX_FILES = 16


class LineNumbers:
    """Line numbers of the blocks of one part of a file, which are read in order.

    Nothing is counted before the first number is asked for; then the file is read again up to there, and what follows
    is counted on the way.
    """

    def __init__(self, file: RawFile, rule: RecordRule) -> None:
        self._file = file
        self._rule = rule
        self._known: tuple[int, int] | None = None

    def first_of(self, block: TextBlock) -> int:
        """Returns the 1-based number of the line that a block begins with."""
        if self._known is None or self._known[0] != block.offset:
            self._known = block.offset, line_at(self._file, self._rule, block.offset)
        return self._known[1]

    def know(self, offset: int, line: int) -> None:
        """Takes the 1-based number of the line that begins at a byte."""
        self._known = offset, line

    def leave(self, block: TextBlock) -> None:
        """Goes on behind a block."""
        if self._known is not None and self._known[0] == block.offset:
            line = self._known[1] + self._rule.count_lines(block.data)
            self._known = block.offset + len(block.data), line


def line_at(file: RawFile, rule: RecordRule, offset: int) -> int:
    """Returns the 1-based number of the line that begins at `offset`; reads the file again up to there.

    What this process has counted before is not read once more.

    Args:
        offset: Byte where a record starts, after decompression.
    """
    marks = _marks_of(file, rule) if is_seekable(file) else [(0, 1)]
    position, line = marks[bisect.bisect(marks, (offset, 0), key=lambda mark: (mark[0], 0)) - 1]
    with open_stream(file, position) as stream:
        while position < offset:
            data = read_exactly(stream, min(_COUNT_BYTES, offset - position))
            if not data:
                break
            # A return and the line feed behind it are one line end.
            while data.endswith(b"\r") and position + len(data) < offset:
                data += read_exactly(stream, 1)
            line += rule.count_lines(data)
            position += len(data)
    if position == offset and (position, line) not in marks:
        bisect.insort(marks, (position, line))
    return line


_known_marks: OrderedDict[tuple[str, str, str, RecordRule], list[tuple[int, int]]] = OrderedDict()
_lock = threading.Lock()


def _marks_of(file: RawFile, rule: RecordRule) -> list[tuple[int, int]]:
    # Places with known lines, in order. Used only where reading can start at any of them.
    key = (file.path, file.name, file.version, rule)
    with _lock:
        marks = _known_marks.setdefault(key, [(0, 1)])
        _known_marks.move_to_end(key)
        if len(_known_marks) > _MAX_FILES:
            _known_marks.popitem(last=False)
    return marks
