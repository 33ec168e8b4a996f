"""Records of text formats that do not fit: the fault of each, and where they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError, NarrowTypesError
from shardkit.sources.base import RawFile, RejectedRow, RowBatch, place, rejected_row, row_identities
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.row_casting import bad_value_error
from shardkit.sources.text.blocks import NEWLINE, RETURN, Text, TextBlock
from shardkit.sources.text.line_numbers import LineNumbers


class Problem(NamedTuple):
    """Why a record does not fit.

    Attributes:
        num_lines: Line ends in the record before the place that is wrong.
        is_of_wider_type: Whether a column of another type would hold it.
    """

    what: str
    why: str | None
    next_step: str | None = None
    num_lines: int = 0
    is_of_wider_type: bool = False

    def error(self, where: str) -> BadInputError:
        """Returns the error for a record that is somewhere."""
        kind = NarrowTypesError if self.is_of_wider_type else BadInputError
        return kind(self.what, where=where, why=self.why, next_step=self.next_step)


def bad_value_problem(error: BadValueError) -> Problem:
    """Returns the fault of a record with a value that does not fit."""
    plain = bad_value_error(error, "")
    return Problem(plain.what, plain.why, plain.next_step)


class BadRecord(NamedTuple):
    """A record of a block that does not fit.

    Attributes:
        number: 0-based among those of the block that are rows.
        start, stop: Its bytes in the block, without the line end.
        num_lines: Line ends in the block before it.
    """

    number: int
    start: int
    stop: int
    num_lines: int
    problem: Problem


class GoodRecords(NamedTuple):
    """A block of which some records do not fit.

    Attributes:
        batch: The rows of the others.
        num_rounded: By column, values that a narrower float could not hold.
        bad: In order.
    """

    batch: pa.RecordBatch
    num_rounded: dict[str, int]
    bad: Sequence[BadRecord]


class BatchMaker:
    """Makes batches of the blocks of one split, and errors or rejected rows of bad records.

    Args:
        tolerates_bad_rows: Whether bad rows are handed over as rejected.
        rows_before: Counts the rows before the split, for positions that name the row too because many may be in
            one line; None where the line is enough.
    """

    def __init__(
        self,
        file: RawFile,
        file_index: int,
        split_start: int,
        lines: LineNumbers,
        *,
        tolerates_bad_rows: bool,
        rows_before: Callable[[], int] | None = None,
    ) -> None:
        self._file = file
        self._file_index = file_index
        self._split_start = split_start
        self._lines = lines
        self._tolerates_bad_rows = tolerates_bad_rows
        self._rows_before = None if rows_before is None else functools.cache(rows_before)
        self._num_rows = 0

    def clean(self, block: TextBlock, batch: pa.RecordBatch, num_rounded: dict[str, int]) -> RowBatch:
        """Returns the batch of a block of which every record fits."""
        self._lines.leave(block)
        return RowBatch(batch, self._identities(batch.num_rows), self._file_index, num_rounded)

    def good_records(self, block: TextBlock, data: bytes, good_records: GoodRecords) -> RowBatch:
        """Returns the batch of a block of which some records do not fit.

        Raises:
            BadInputError: For the first of them, unless bad rows are tolerated.
        """
        if not good_records.bad:
            return self.clean(block, good_records.batch, good_records.num_rounded)
        line = self._lines.first_of(block)
        if not self._tolerates_bad_rows:
            raise self._error(good_records.bad[0], line)
        rejected = [self._rejected(bad, data, block.offset, line) for bad in good_records.bad]
        identities = self._identities(good_records.batch.num_rows + len(rejected))
        identities = np.delete(identities, [bad.number for bad in good_records.bad])
        self._lines.leave(block)
        return RowBatch(good_records.batch, identities, self._file_index, good_records.num_rounded, rejected)

    def _identities(self, num_rows: int) -> npt.NDArray[np.uint64]:
        first_row, self._num_rows = self._num_rows, self._num_rows + num_rows
        return row_identities(self._file, self._split_start, first_row, num_rows)

    def _rejected(self, bad: BadRecord, data: bytes, offset: int, first_line: int) -> RejectedRow:
        return rejected_row(
            self._error(bad, first_line),
            file_index=self._file_index,
            position=self._position(bad, first_line),
            first_byte=offset + bad.start,
            raw=data[bad.start : bad.stop],
        )

    def _error(self, bad: BadRecord, first_line: int) -> BadInputError:
        return bad.problem.error(f"{place(self._file)}, {self._position(bad, first_line)}")

    def _position(self, bad: BadRecord, first_line: int) -> str:
        line = f"line {first_line + bad.num_lines + bad.problem.num_lines}"
        if self._rows_before is None:
            return line
        return f"row {self._rows_before() + self._num_rows + bad.number + 1}, {line}"


def error_at(problem: Problem, file: RawFile, line: int) -> BadInputError:
    """Returns the error for a record that begins at a line."""
    return problem.error(place(file, line=line + problem.num_lines))


def without_line_end(data: Text, start: int, end: int) -> int:
    """Returns where a record stops that ends behind a line end."""
    if end > start and data[end - 1] == NEWLINE:
        end -= 1
    return end - 1 if end > start and data[end - 1] == RETURN else end
