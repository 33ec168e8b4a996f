"""Columns that are there whole made to fit their features, and the rows of them that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import Features, arrow_schema
from shardkit.sources.fitting import UnfitValueError, fit_column
from shardkit.sources.streams import shown


class FittedRows(NamedTuple):
    """The rows that fit, and those that do not.

    Attributes:
        batch: Columns in the order of the features.
        kept: 0-based positions of its rows among all.
        num_rounded: By column, values that a narrower float could not hold; columns without any are left out.
        unfit: The position of each other row, and why it does not fit.
    """

    batch: pa.RecordBatch
    kept: npt.NDArray[np.int64]
    num_rounded: dict[str, int]
    unfit: Sequence[tuple[int, UnfitValueError]] = ()


TakeRows = Callable[[int, int], Mapping[str, pa.Array]]


def fit_rows(take: TakeRows, num_rows: int, features: Features, *, tolerates_bad_rows: bool) -> FittedRows:
    """Returns rows as the features have them.

    Args:
        take: Gives the columns of rows from one position up to another, by name; may raise UnfitValueError too.
        num_rows: How many there are.
        features: What is wanted; each has a column.
        tolerates_bad_rows: Whether rows that do not fit are left out.

    Raises:
        UnfitValueError: If a row does not fit and may not be left out.
        UsageError: If no value of a column's type could fit.
    """
    pieces: list[tuple[int, int, pa.RecordBatch]] = []
    unfit: list[tuple[int, UnfitValueError]] = []
    num_rounded: dict[str, int] = {}
    # Halves of what does not fit are tried until a bad row stands alone.
    ranges = [(0, num_rows)]
    while ranges:
        start, stop = ranges.pop()
        try:
            batch, rounded = _fit(take(start, stop), features)
        except UnfitValueError as error:
            if not tolerates_bad_rows:
                raise
            middle = (start + stop) // 2
            if stop - start == 1:
                unfit.append((start, error))
            else:
                ranges += [(middle, stop), (start, middle)]
            continue
        pieces.append((start, stop, batch))
        for name, count in rounded.items():
            num_rounded[name] = num_rounded.get(name, 0) + count
    if len(pieces) == 1:
        start, stop, batch = pieces[0]
        return FittedRows(batch, np.arange(start, stop), num_rounded, unfit)
    schema = arrow_schema(features)
    whole = pa.concat_batches([b for _, _, b in pieces] or [pa.RecordBatch.from_pylist([], schema=schema)])
    kept = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(a, b) for a, b, _ in pieces)])
    return FittedRows(whole, kept, num_rounded, unfit)


def unfit_error(error: UnfitValueError, where: str) -> BadInputError:
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
        fitted = fit_column(columns[feature.name], feature)
        arrays.append(fitted.column)
        if fitted.num_rounded:
            rounded[feature.name] = fitted.num_rounded
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(features)), rounded
