"""What a step is: rows in, rows out, and which of them came through.

A step that fails on a batch is asked again about its halves, down to the row that it fails on. So a step may work on
whole columns and still say which row is the bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.messages import shown
from shardkit.sources.columns.casting import BadValueError, CastColumn, cast_column
from shardkit.sources.columns.halving import parse_parts

Positions = npt.NDArray[np.int64]

_LISTED_COLUMNS = 40


class RowError(Exception):
    """Some row of a batch cannot be taken; if the batch has one row, it is that one.

    Args:
        what: What went wrong, starting in lower case.
        raw: The bytes of the value that is to blame, if it is one.
        row: The first row that is to blame, if that is known.
    """

    def __init__(self, what: str, why: str, raw: bytes | None = None, row: int | None = None) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why
        self.raw = raw
        self.row = row


class RowFailure(NamedTuple):
    """A row that cannot be taken: its position in the batch, and why."""

    row: int
    error: RowError


class Taken(NamedTuple):
    """Rows that came through.

    Attributes:
        kept: Ascending positions that they had; None if all rows came through.
        num_rounded: By column, values that a narrower float could not hold.
    """

    batch: pa.RecordBatch
    kept: Positions | None = None
    num_rounded: Mapping[str, int] = {}


class StepResult(NamedTuple):
    """What a step made of a batch: the rows that came through, and those that failed. All others were left out."""

    taken: Taken
    failures: tuple[RowFailure, ...] = ()


class Step(Protocol):
    """One transformation."""

    @property
    def option(self) -> str:
        """The option that asked for it."""
        ...

    @property
    def features(self) -> Features:
        """What it makes of the features."""
        ...

    @property
    def sources(self) -> Mapping[str, str] | None:
        """The columns that it passes on, by their new names; None if no column gets another name."""
        ...

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the result of a batch.

        Args:
            is_tolerant: Whether to go on behind a row that fails. If not, the rows from there on are left aside.
        """
        ...


@dataclass(frozen=True)
class RowwiseStep:
    """A step that is a function of whole batches.

    Attributes:
        call: The function; raises RowError if any row cannot be taken.
        sources: The columns that it passes on, by their new names; None if no column gets another name.
    """

    option: str
    features: Features
    call: Callable[[pa.RecordBatch], Taken]
    sources: Mapping[str, str] | None = None

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the result of a batch."""
        return run_halving(self.call, self.features, batch, is_tolerant=is_tolerant)


def run_halving(
    call: Callable[[pa.RecordBatch], Taken], features: Features, batch: pa.RecordBatch, *, is_tolerant: bool
) -> StepResult:
    """Returns the result of a function on a batch; where it fails, it is called on smaller and smaller parts.

    Args:
        call: The function; it is never asked about no rows.
        is_tolerant: Whether to go on behind a row that it fails on.
    """
    if batch.num_rows == 0:
        return StepResult(Taken(empty_batch(features)))
    parts: list[tuple[int, int, Taken]] = []
    failures: list[RowFailure] = []

    for start, stop, found in parse_parts(lambda a, b: call(batch.slice(a, b - a)), batch.num_rows, RowError):
        if isinstance(found, Taken):
            parts.append((start, stop, found))
            continue
        failures.append(RowFailure(start, found))
        if not is_tolerant:
            break
    if not failures and len(parts) == 1:
        return StepResult(parts[0][2])
    if not parts:
        parts = [(0, 0, Taken(empty_batch(features)))]
    return StepResult(_joined(parts), tuple(failures))


def _joined(parts: list[tuple[int, int, Taken]]) -> Taken:
    num_rounded: dict[str, int] = {}
    positions = []
    for start, stop, taken in parts:
        kept = np.arange(stop - start, dtype=np.int64) if taken.kept is None else taken.kept
        positions.append(kept + start)
        for name, count in taken.num_rounded.items():
            num_rounded[name] = num_rounded.get(name, 0) + count
    return Taken(pa.concat_batches([t.batch for _, _, t in parts]), np.concatenate(positions), num_rounded)


def batch_of(features: Features, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Returns a batch of columns that have their features' types."""
    return pa.RecordBatch.from_arrays(list(columns), schema=arrow_schema(features))


def empty_batch(features: Features) -> pa.RecordBatch:
    """Returns a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.arrow_type) for f in features], schema=arrow_schema(features))


def cast_result(column: pa.Array, feature: Feature, what: str) -> CastColumn:
    """Returns a column as its feature has it.

    Raises:
        RowError: If a value does not fit.
        UsageError: If no value of the column's type could fit.
    """
    try:
        return cast_column(column, feature)
    except BadValueError as error:
        raise RowError(what, f"expected {error.expected}, got {error.got}") from error


def find_feature(features: Features, name: str, option: str) -> Feature:
    """Returns the feature of a name. Raises UsageError if there is none; names the option and the columns there are."""
    for feature in features:
        if feature.name == name:
            return feature
    raise no_such_column(features, name, option)


def no_such_column(features: Features, name: str, option: str) -> UsageError:
    """Returns the error that an option names a column that is not there."""
    names = [f.name for f in features]
    listed = ", ".join(names[:_LISTED_COLUMNS]) + (", ..." if len(names) > _LISTED_COLUMNS else "")
    return UsageError(
        f"{option} names a column {shown(name)} that is not there", next_step=f"The columns are by then: {listed}"
    )


def check_distinct(names: list[str], option: str) -> None:
    """Checks that no column is named twice. Raises UsageError if one is."""
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{option} names the column {shown(name)} twice", next_step="Name it once")
