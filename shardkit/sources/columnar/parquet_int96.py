"""INT96 timestamps of Parquet, which reach further and are finer than any one unit of Arrow, read without wrapping.

Arrow reads those of the Julian day 0, in the year -4713, as 1970-01-01; nothing tells them from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardkit.features import Feature, Features
from shardkit.sources.columnar.arrow_columns import flatten_batch

UNIT = "us"
"""What such a column is unless its first values need nanoseconds: it holds what Spark writes, such as the year 9999."""

_DAY_MS = 86_400_000
_EPOCH_DAY = 2_440_588
_NS = {"ms": 1_000_000, "us": 1_000, "ns": 1}


class _Times(NamedTuple):
    # Milliseconds since 1970, and the nanoseconds in each.
    ms: npt.NDArray[np.int64]
    rest_ns: npt.NDArray[np.int64]


def int96_paths(metadata: pq.FileMetaData) -> list[str]:
    """Returns the paths of the leaves that are INT96."""
    schema = metadata.schema
    columns = (schema.column(i) for i in range(metadata.num_columns))
    return [c.path for c in columns if c.physical_type == "INT96"]


def exact_times(
    coarse: Iterator[pa.RecordBatch], fine: Iterator[pa.RecordBatch], features: Features
) -> Iterator[pa.RecordBatch]:
    """Yields the rows with their INT96 columns in the unit of the feature; structs are flattened.

    A time that the unit cannot hold is there as text, which its feature then refuses.

    Args:
        coarse: All columns, INT96 in milliseconds, which no such value overflows.
        fine: The INT96 columns alone, in nanoseconds modulo 2**64.
    """
    wanted = {f.name: f for f in features}
    for rows, times in _aligned(coarse, fine):
        flat = flatten_batch(rows)
        found = {n: _Column(flat[n], c, _unit_of(wanted[n])) for n, c in flatten_batch(times).items() if n in wanted}
        is_exact = np.ones(rows.num_rows, dtype=np.bool_)
        for column in found.values():
            is_exact &= column.is_exact_row
        for start, stop in _runs(is_exact):
            for name, column in found.items():
                flat[name] = column.as_text() if not is_exact[start] and column.is_text_needed else column.as_times()
            batch = pa.RecordBatch.from_arrays(list(flat.values()), names=list(flat))
            yield batch.slice(start, stop - start)


def fine_columns(coarse: pa.RecordBatch, fine: pa.RecordBatch) -> frozenset[str]:
    """Returns the names of the columns whose values need nanoseconds, and fit in 64 bits as such.

    Args:
        coarse: Rows of the INT96 columns, as `exact_times` takes them.
        fine: The same in nanoseconds.
    """
    flat = flatten_batch(coarse)
    times = flatten_batch(fine)
    return frozenset(
        name
        for name, column in times.items()
        if _Column(flat[name], column, UNIT).is_text_needed and not _Column(flat[name], column, "ns").is_text_needed
    )


def in_nanoseconds(type_: pa.DataType) -> pa.DataType:
    """Returns the type of a column of times, or of lists of them, with nanoseconds as its unit."""
    return pa.timestamp("ns") if pa.types.is_timestamp(type_) else pa.list_(pa.timestamp("ns"))


def _unit_of(feature: Feature) -> str:
    is_ns = pa.types.is_timestamp(feature.value_type) and feature.value_type.unit == "ns"
    return "ns" if is_ns else UNIT


class _Column:
    # A column of times or of lists of times.
    def __init__(self, coarse: pa.Array, fine: pa.Array, unit: str) -> None:
        self._is_list = not pa.types.is_timestamp(coarse.type)
        self._lists = coarse
        self._coarse = coarse.flatten() if self._is_list else coarse
        fine = fine.flatten() if self._is_list else fine
        self._unit = unit
        self._times = _decode(_integers(self._coarse), _integers(fine))
        factor = _NS["ms"] // _NS[self._unit]
        rest, lost = np.divmod(self._times.rest_ns, _NS[self._unit])
        with np.errstate(over="ignore"):
            self._values = self._times.ms * factor + rest
        self._is_exact: npt.NDArray[np.bool_] = (self._values // factor == self._times.ms) & (lost == 0)
        if self._coarse.null_count:
            self._is_exact |= self._coarse.is_null().to_numpy(zero_copy_only=False)
        self.is_text_needed = not self._is_exact.all()

    @property
    def is_exact_row(self) -> npt.NDArray[np.bool_]:
        if not self._is_list:
            return self._is_exact
        rows = np.repeat(np.arange(len(self._lists)), _lengths(self._lists))
        is_exact = np.ones(len(self._lists), dtype=np.bool_)
        is_exact[rows[~self._is_exact]] = False
        return is_exact

    def as_times(self) -> pa.Array:
        values = pa.array(self._values, mask=_mask(self._coarse)).view(pa.timestamp(self._unit))
        return self._as_lists(values)

    def as_text(self) -> pa.Array:
        whole = pa.array(self._times.ms, mask=_mask(self._coarse)).view(pa.timestamp("ms")).cast(pa.string())
        rest = pa.array([f"{ns:06d}" for ns in self._times.rest_ns.tolist()], pa.string())
        texts = pc.binary_join_element_wise(whole, rest, "")
        # Arrow writes years of up to five digits.
        others = pa.array([f"{ms} ms since 1970" for ms in self._times.ms.tolist()], pa.string())
        return self._as_lists(pc.if_else(pc.starts_with(whole, "<"), others, texts))

    def _as_lists(self, values: pa.Array) -> pa.Array:
        if not self._is_list:
            return values
        offsets = np.concatenate([[0], np.cumsum(_lengths(self._lists))])
        mask = self._lists.is_null() if self._lists.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=mask)


def _decode(ms: npt.NDArray[np.int64], ns: npt.NDArray[np.int64]) -> _Times:
    with np.errstate(over="ignore"):
        rest = ns - ms * _NS["ms"]
    # Arrow takes the day for an unsigned number.
    is_negative = ms >= (2**31 - _EPOCH_DAY) * _DAY_MS
    return _Times(np.where(is_negative, ms - 2**32 * _DAY_MS, ms), rest)


def _integers(times: pa.Array) -> npt.NDArray[np.int64]:
    integers: npt.NDArray[np.int64] = pc.fill_null(times.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return integers


def _mask(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lengths


def _runs(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
    return ((a, b) for a, b in itertools.pairwise(edges) if a < b)


def _aligned(
    first: Iterator[pa.RecordBatch], second: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    other = None
    for batch in first:
        position = 0
        while position < batch.num_rows:
            while other is None or not other.num_rows:
                other = next(second)
            num_rows = min(batch.num_rows - position, other.num_rows)
            yield batch.slice(position, num_rows), other.slice(0, num_rows)
            position += num_rows
            other = other.slice(num_rows)
