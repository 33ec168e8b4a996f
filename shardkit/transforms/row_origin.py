"""Bad rows with their origin, which is found from their identities, because batches carry no row numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.sources.base import (
    MAX_ROWS_OF_A_SPLIT,
    InputSplit,
    RawFile,
    RejectedRow,
    RowBatch,
    SourceOptions,
    place,
    rejected_row,
    row_identities,
)
from shardkit.sources.formats import format_named
from shardkit.transforms.steps import Positions, RowFailure

_MAX_ITEMS = 2**20
_NEXT_STEP = "Correct the row, leave it out with --select or --map, or use --on-bad-record skip or quarantine"


class Origin(NamedTuple):
    """Position in the list of files and where in the file, such as `row 5`; empty where the file is the row."""

    file_index: int
    position: str


def origins_of(
    rows: RowBatch, positions: Positions, files: tuple[RawFile, ...], split: InputSplit, source: SourceOptions
) -> list[Origin]:
    """Returns where some rows came from. Rows are counted from 1, and from the start of the split.

    Args:
        source: How they are read. Its format says what a split's start counts.
    """
    indices = rows.file_indices
    file_indices = np.full(len(positions), indices, dtype=np.int64) if isinstance(indices, int) else indices[positions]
    found, inverse = np.unique(file_indices, return_inverse=True)
    firsts = [int(row_identities(files[index], split.start, 0, 1)[0]) for index in found.tolist()]
    # Identities wrap around at 2**64.
    numbers = rows.identities[positions] - np.array(firsts, dtype=np.uint64)[inverse]
    behind = f" counted from {format_named(source.format).split_unit} {split.start}" if split.start else ""

    def position(number: int) -> str:
        item, row = divmod(number, MAX_ROWS_OF_A_SPLIT)
        if source.explode is None or item >= _MAX_ITEMS:
            return "" if item else f"row {row + 1}{behind}"
        return f"row {row + 1}{behind}, item {item + 1}"

    return [Origin(i, position(number)) for i, number in zip(file_indices.tolist(), numbers.tolist(), strict=True)]


def origin_of(rows: RowBatch, row: int, files: tuple[RawFile, ...], split: InputSplit, source: SourceOptions) -> Origin:
    """Returns where one row came from, as `origins_of` does."""
    return origins_of(rows, np.array([row], dtype=np.int64), files, split, source)[0]


def place_of(origin: Origin, files: tuple[RawFile, ...]) -> str:
    """Returns the origin for a message, such as `a.csv, row 5`."""
    name = place(files[origin.file_index])
    return f"{name}, {origin.position}" if origin.position else name


def bad_row(
    failure: RowFailure,
    rows: RowBatch,
    files: tuple[RawFile, ...],
    split: InputSplit,
    source: SourceOptions,
    next_step: str = _NEXT_STEP,
) -> BadInputError:
    """Returns the error of a row that ends the conversion."""
    where = place_of(origin_of(rows, failure.row, files, split, source), files)
    return BadInputError(failure.error.what, where=where, why=failure.error.why, next_step=next_step)


def rejected_rows(
    failures: list[RowFailure],
    rows: RowBatch,
    files: tuple[RawFile, ...],
    split: InputSplit,
    source: SourceOptions,
) -> list[RejectedRow]:
    """Returns rows that are left out, each with its reason and what the source gave."""
    positions = np.array([f.row for f in failures], dtype=np.int64)
    origins = origins_of(rows, positions, files, split, source)
    raws = raw_rows(rows.batch, positions[[f.error.raw is None for f in failures]])
    return [
        rejected_row(
            BadInputError(f.error.what, why=f.error.why),
            file_index=origin.file_index,
            position=origin.position,
            first_byte=None,
            raw=next(raws) if f.error.raw is None else f.error.raw,
        )
        for f, origin in zip(failures, origins, strict=True)
    ]


def raw_rows(batch: pa.RecordBatch, positions: Positions) -> Iterator[bytes]:
    """Yields rows as the source gave them, as JSON: bytes in base64, values without a form in JSON as text."""
    columns = [_values(column, positions) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield msgspec.json.encode(dict(zip(batch.schema.names, values, strict=True)), enc_hook=str)


def raw_row(batch: pa.RecordBatch, row: int) -> bytes:
    """Returns one row as `raw_rows` does."""
    return next(raw_rows(batch, np.array([row], dtype=np.int64)))


def _values(column: pa.Array, positions: Positions) -> list[Any]:
    try:
        found: list[Any] = column.take(pa.array(positions, pa.int64())).to_pylist()
    except (ValueError, OverflowError, pa.ArrowNotImplementedError):
        return [as_python(column[position]) for position in positions.tolist()]
    return found


def as_python(scalar: Any) -> Any:
    """Returns the value of a scalar, as text where Python has no value for it."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(scalar)
