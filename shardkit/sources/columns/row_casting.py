"""Columns that are there whole made to fit their features, and the rows of them that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import Features, arrow_schema
from shardkit.messages import shown
from shardkit.sources.columns.bad_values import cast_exactly, find_bad_values, without_rows
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.halving import parse_parts


class CastRows(NamedTuple):
    """The rows that fit, and those that do not.

    Attributes:
        batch: Columns in the order of the features.
        kept: 0-based positions of its rows among all.
        num_rounded: By column, values that a narrower float could not hold; columns without any are left out.
        bad_values: The position of each other row, and why it does not fit.
    """

    batch: pa.RecordBatch
    kept: npt.NDArray[np.int64]
    num_rounded: dict[str, int]
    bad_values: Sequence[tuple[int, BadValueError]] = ()


TakeRows = Callable[[int, int], Mapping[str, pa.Array]]


def cast_rows(take: TakeRows, num_rows: int, features: Features, *, tolerates_bad_rows: bool) -> CastRows:
    """Returns rows as the features have them.

    Args:
        take: Gives the columns of rows from one position up to another, by name; may raise BadValueError too.
        tolerates_bad_rows: Whether rows that do not fit are left out.

    Raises:
        BadValueError: If a row does not fit and may not be left out.
        UsageError: If no value of a column's type could fit.
    """
    try:
        batch, num_rounded = _fit(take(0, num_rows), features)
        return CastRows(batch, np.arange(num_rows), num_rounded)
    except BadValueError:
        if not tolerates_bad_rows:
            raise
    bad_values: dict[int, BadValueError] = {}
    batches, kept, num_rounded = [], [np.zeros(0, dtype=np.int64)], {}
    for start, stop, columns in parse_parts(take, num_rows, BadValueError):
        if isinstance(columns, BadValueError):
            bad_values[start] = columns
            continue
        is_good = np.ones(stop - start, dtype=np.bool_)
        for feature in features:
            for row, error in find_bad_values(columns[feature.name], feature).items():
                bad_values.setdefault(start + row, error)
                is_good[row] = False
        batch, rounded = _fit({name: without_rows(column, is_good) for name, column in columns.items()}, features)
        batches.append(batch)
        kept.append(start + np.flatnonzero(is_good))
        for name, count in rounded.items():
            num_rounded[name] = num_rounded.get(name, 0) + count
    whole = pa.concat_batches(batches or [pa.RecordBatch.from_pylist([], schema=arrow_schema(features))])
    return CastRows(whole, np.concatenate(kept), num_rounded, sorted(bad_values.items()))


def bad_value_error(error: BadValueError, where: str) -> BadInputError:
    """Returns the error for a row that does not fit."""
    return BadInputError(
        f"column {shown(error.column)} does not fit",
        where=where,
        why=f"expected {error.expected}, got {error.got}",
        next_step="Correct the row, or declare the column in a --schema file",
    )


def _fit(columns: Mapping[str, pa.Array], features: Features) -> tuple[pa.RecordBatch, dict[str, int]]:
    arrays, rounded = [], {}
    for feature in features:
        cast = cast_exactly(columns[feature.name], feature)
        arrays.append(cast.column)
        if cast.num_rounded:
            rounded[feature.name] = cast.num_rounded
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(features)), rounded
