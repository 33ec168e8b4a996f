"""Rows of arrays as batches of the conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import Features
from shardkit.messages import shown
from shardkit.sources.arrays.columns import Array, ArrayColumn, field_of, to_arrow
from shardkit.sources.base import (
    MAX_RAW_BYTES,
    InputSplit,
    RawFile,
    RejectedRow,
    RowBatch,
    SourceOptions,
    place,
    rejected_row,
    row_identities,
)
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.row_casting import bad_value_error, cast_rows
from shardkit.units import format_size


class ArrayPart(NamedTuple):
    """Some rows of an array.

    Attributes:
        columns: What it holds.
        values: By row.
    """

    columns: tuple[ArrayColumn, ...]
    values: Array


def make_batch(
    parts: Sequence[ArrayPart],
    features: Features,
    split: InputSplit,
    file: RawFile,
    first_row: int,
    options: SourceOptions,
) -> RowBatch:
    """Returns rows of arrays that belong together.

    Args:
        parts: The same rows of each array.
        features: What is wanted; each is a column of one of the arrays.
        split: That is read; starts at a row.
        file: That the rows are counted in.
        first_row: 0-based number of the first row, in the file.
        options: Say whether bad rows are tolerated.

    Raises:
        BadInputError: If a row does not fit and may not be left out.
    """
    num_rows = len(parts[0].values)
    wanted = {f.name for f in features}

    def take(start: int, stop: int) -> Mapping[str, pa.Array]:
        return {
            column.name: to_arrow(field_of(part.values[start:stop], column), column)
            for part in parts
            for column in part.columns
            if column.name in wanted
        }

    try:
        cast = cast_rows(take, num_rows, features, tolerates_bad_rows=options.tolerates_bad_rows)
    except BadValueError as error:
        raise bad_value_error(error, place(file, row=first_row + error.row + 1)) from error
    identities = row_identities(file, split.start, first_row - split.start, num_rows)
    rejected = [_rejected(parts, row, first_row + row + 1, error, split, file) for row, error in cast.bad_values]
    identities = identities[cast.kept] if rejected else identities
    return RowBatch(cast.batch, identities, split.file_start, cast.num_rounded, rejected)


def check_row_size(row_bytes: int, file: RawFile, max_record_bytes: int) -> None:
    """Checks that the rows of arrays are not too large.

    Raises:
        BadInputError: If they are.
    """
    if row_bytes > min(max_record_bytes, 2**31 - 1):
        why = f"each has {format_size(row_bytes)}, more than the {format_size(max_record_bytes)} that a record may have"
        raise BadInputError("the rows are too large", where=place(file), why=why)


def check_has_columns(columns: Sequence[ArrayColumn], features: Features, file: RawFile) -> None:
    """Checks that a file has the columns that were planned.

    Raises:
        BadInputError: If not.
    """
    names = {c.name for c in columns}
    missing = [f.name for f in features if f.name not in names]
    if missing:
        why = f"{', '.join(map(shown, missing))} was there when planned"
        raise BadInputError("a column is missing", where=place(file), why=why)


def _rejected(
    parts: Sequence[ArrayPart], row: int, number: int, error: BadValueError, split: InputSplit, file: RawFile
) -> RejectedRow:
    # Bytes of the array, because some values make no Python object.
    raw = b"".join(part.values[row : row + 1].tobytes() for part in parts)[:MAX_RAW_BYTES]
    bad = bad_value_error(error, place(file, row=number))
    return rejected_row(bad, file_index=split.file_start, position=f"row {number}", first_byte=None, raw=raw)
