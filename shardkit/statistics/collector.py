"""What each feature holds, collected batch by batch, merged over parts, the same for the same parts.

A part is what one worker saw. Counts, extremes and sums of integers are exact; means and deviations are merged by
Chan, Golub and LeVeque's rule (1983), so they depend on how rows were dealt to parts by rounding only. Values are
counted exactly up to `frequencies.NUM_COUNTED` distinct ones. Quantiles and vocabularies are the same for
any dealing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.dataset.manifest import FeatureStatistics, Quantiles
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import DamageError
from shardkit.features import Feature, Features
from shardkit.statistics.frequencies import Frequencies, FrequenciesPart
from shardkit.statistics.key_counts import Kind
from shardkit.statistics.moments import Lengths, Moments, moments_of_floats, moments_of_integers
from shardkit.statistics.quantile_buckets import exact_quantiles
from shardkit.statistics.quantiles import QuantileSketch, QuantilesPart

_MAX_ARRAY = 64  # Values of a longer one (pixels, an embedding) are many and seldom of one kind: no quantiles.


class StatisticsCollector:
    """Statistics of the rows of one dataset split, or of a part of them.

    Args:
        features: In the order of the columns of the batches.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self._columns = [_Column(feature) for feature in features]

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of a batch whose columns are the features, each of the feature's `arrow_type`."""
        with np.errstate(over="ignore", invalid="ignore"):
            for column, values in zip(self._columns, batch.columns, strict=True):
                column.update(values)

    def add_rounded(self, counts: dict[str, int]) -> None:
        """Adds, by feature name, how many float64 values float32 could not hold."""
        for column in self._columns:
            column.num_rounded += counts.get(column.feature.name, 0)

    def merge(self, part: bytes) -> None:
        """Adds the values of another collector of the same features.

        Raises:
            DamageError: If the bytes are not such a part.
        """
        try:
            columns = _DECODER.decode(part)
        except DECODE_ERRORS as error:
            raise DamageError("a part of the statistics cannot be read", why=str(error)) from error
        names = [f.name for f in self.features]
        if [c.name for c in columns] != names:
            raise DamageError("a part of the statistics has other features", why=f"{names} expected")
        for column, other in zip(self._columns, columns, strict=True):
            column.merge(other)

    def to_bytes(self) -> bytes:
        """Returns the collected values as MessagePack, the same bytes for the same updates."""
        return msgspec.msgpack.encode([column.to_part() for column in self._columns])

    def finish(self) -> dict[str, FeatureStatistics]:
        """Returns the statistics by feature name."""
        return {column.feature.name: column.finish() for column in self._columns}


def merge_parts(parts: Iterable[bytes], features: Features) -> bytes:
    """Returns one part in place of all, merged in the given order, of which `merge_statistics` makes the same.

    Raises:
        DamageError: If a part cannot be read, contradicts itself or is of other features.
    """
    with _refusing_contradictions():
        return _merged(parts, features).to_bytes()


def merge_statistics(parts: Iterable[bytes], features: Features) -> dict[str, FeatureStatistics]:
    """Returns the statistics of all parts together, merged in the given order.

    The same parts in the same order give the same result to the bit. How the rows were dealt to the parts changes
    means and deviations by rounding, and the counts of top values where the distinct values are too many to be
    counted exactly; nothing else.

    Raises:
        DamageError: If a part cannot be read, contradicts itself or is of other features.
    """
    with _refusing_contradictions():
        return _merged(parts, features).finish()


def _merged(parts: Iterable[bytes], features: Features) -> StatisticsCollector:
    total = StatisticsCollector(features)
    for part in parts:
        total.merge(part)
    return total


@contextmanager
def _refusing_contradictions() -> Iterator[None]:
    # Parts may come from the file of a version, whose numbers need not fit together.
    try:
        yield
    except (ArithmeticError, IndexError, TypeError, ValueError, pa.ArrowException) as error:
        raise DamageError("a part of the statistics contradicts itself", why=str(error)) from error


def combine_statistics(splits: Sequence[FeatureStatistics]) -> FeatureStatistics:
    """Returns one feature's statistics over several splits, as far as finished statistics tell.

    Counts, extremes, means, deviations and lengths combine; distinct and top values, vocabularies and quantiles do not
    and are left out.
    """
    moments = Moments(is_integer=False)
    for one in map(_moments_of, splits):
        moments.merge(one)
    lengths = _combine_lengths(splits)
    return FeatureStatistics(
        count=sum(s.count for s in splits),
        num_nulls=sum(s.num_nulls for s in splits),
        num_values=sum(s.num_values for s in splits),
        min=moments.min,
        max=moments.max,
        mean=moments.finished_mean(),
        std=moments.finished_std(),
        num_nans=sum(s.num_nans for s in splits),
        num_infs=sum(s.num_infs for s in splits),
        num_rounded=sum(s.num_rounded for s in splits),
        min_length=lengths.min,
        max_length=lengths.max,
        mean_length=lengths.mean,
    )


class _ColumnPart(msgspec.Struct, array_like=True, kw_only=True):
    name: str
    count: int
    num_nulls: int
    num_values: int
    num_nans: int
    num_infs: int
    num_rounded: int
    moments: Moments
    lengths: Lengths
    frequencies: FrequenciesPart | None
    quantiles: QuantilesPart | None
    length_quantiles: QuantilesPart | None


_DECODER = msgspec.msgpack.Decoder(list[_ColumnPart])


class _Column:
    """Statistics of one feature."""

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self.num_rounded = 0
        self._kind = _kind_of(feature)
        self._count = self._num_nulls = self._num_values = self._num_nans = self._num_infs = 0
        self._moments = Moments(is_integer=self._kind in ("integer", "boolean", "temporal"))
        self._lengths = Lengths()
        self._quantiles = _sketch_for(feature, self._kind)
        has_counts = self._kind in _KEY_TYPES
        self._frequencies = Frequencies(_KEY_TYPES[self._kind](feature), self._quantiles) if has_counts else None
        has_lengths = feature.num_values is None or (feature.is_scalar and self._kind in ("string", "bytes"))
        self._length_quantiles = QuantileSketch("int64") if has_lengths else None

    def update(self, column: pa.Array) -> None:
        present = column.drop_null() if column.null_count else column
        self._num_nulls += len(column) - len(present)
        self._count += len(present)
        values = present
        if not self.feature.is_scalar:
            values = present.flatten()
            values = values.drop_null() if values.null_count else values
            if self.feature.num_values is None:
                self._add_lengths(pc.list_value_length(present).to_numpy())
        self._num_values += len(values)
        if len(values):
            self._add_values(values)

    def merge(self, other: _ColumnPart) -> None:
        self._count += other.count
        self._num_nulls += other.num_nulls
        self._num_values += other.num_values
        self._num_nans += other.num_nans
        self._num_infs += other.num_infs
        self.num_rounded += other.num_rounded
        self._moments.merge(other.moments)
        self._lengths.merge(other.lengths)
        if self._frequencies is not None and other.frequencies is not None:
            self._frequencies.merge(other.frequencies)
        if self._quantiles is not None and other.quantiles is not None:
            self._quantiles.merge(other.quantiles)
        if self._length_quantiles is not None and other.length_quantiles is not None:
            self._length_quantiles.merge(other.length_quantiles)

    def to_part(self) -> _ColumnPart:
        # First, because it may find that there are too many values to count, and pass them on to the quantiles.
        frequencies = None if self._frequencies is None else self._frequencies.to_part()
        return _ColumnPart(
            name=self.feature.name,
            count=self._count,
            num_nulls=self._num_nulls,
            num_values=self._num_values,
            num_nans=self._num_nans,
            num_infs=self._num_infs,
            num_rounded=self.num_rounded,
            moments=self._moments,
            lengths=self._lengths,
            frequencies=frequencies,
            quantiles=None if self._quantiles is None else self._quantiles.to_part(),
            length_quantiles=None if self._length_quantiles is None else self._length_quantiles.to_part(),
        )

    def finish(self) -> FeatureStatistics:
        counted = self._frequencies
        num_distinct, is_exact = counted.num_distinct() if counted else (None, True)
        return FeatureStatistics(
            count=self._count,
            num_nulls=self._num_nulls,
            num_values=self._num_values,
            min=self._moments.min,
            max=self._moments.max,
            mean=self._moments.finished_mean(),
            std=self._moments.finished_std(),
            num_nans=self._num_nans,
            num_infs=self._num_infs,
            num_rounded=self.num_rounded,
            num_distinct=num_distinct,
            num_distinct_is_exact=is_exact,
            top_values=counted.top_values(self.feature.dtype) if counted else (),
            vocabulary=counted.vocabulary(self.feature.dtype) if counted else (),
            quantiles=self._finish_quantiles(),
            min_length=self._lengths.min,
            max_length=self._lengths.max,
            mean_length=self._lengths.mean,
            length_quantiles=self._length_quantiles.finish(self._lengths.min, self._lengths.max)
            if self._length_quantiles
            else None,
        )

    def _finish_quantiles(self) -> Quantiles | None:
        if self._quantiles is None:
            return None
        counts = self._frequencies.exact_counts() if self._frequencies else None
        if counts is not None:
            return exact_quantiles(counts[0].to_numpy(), counts[1])
        return self._quantiles.finish(self._moments.min, self._moments.max)

    def _add_values(self, values: pa.Array) -> None:
        if self._kind in ("string", "bytes"):
            self._add_bytes(values)
        elif self._kind == "boolean":
            self._add_integers(values.cast(pa.uint8()).to_numpy())
        elif self._kind in ("integer", "temporal"):
            if self._kind == "temporal":
                values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
            self._add_integers(values.to_numpy())
        else:
            if self._kind == "decimal":
                values = values.cast(pa.float64())
            self._add_floats(values.to_numpy())

    def _add_bytes(self, values: pa.Array) -> None:
        keys = values.view(pa.binary())
        lengths = pc.binary_length(keys).to_numpy()
        if self.feature.is_scalar:
            self._add_lengths(lengths)
        if self._frequencies is not None:
            self._frequencies.add(keys, int(lengths.max()))

    def _add_lengths(self, lengths: npt.NDArray[Any]) -> None:
        self._lengths.add(lengths)
        if self._length_quantiles is not None and self._lengths.max is not None:
            self._length_quantiles.add_lengths(lengths, self._lengths.max)

    def _add_integers(self, values: npt.NDArray[Any]) -> None:
        moments, counted = moments_of_integers(values)
        self._moments.merge(moments)
        if self._frequencies is None:
            if self._quantiles is not None:
                self._quantiles.add(values)
        elif counted is None:
            self._frequencies.add_integers(values)
        else:
            self._frequencies.add_counted(counted.values, counted.counts)

    def _add_floats(self, values: npt.NDArray[Any]) -> None:
        moments = moments_of_floats(values)
        if moments is None:
            finite = values[np.isfinite(values)]
            num_nans = int(np.count_nonzero(np.isnan(values)))
            self._num_nans += num_nans
            self._num_infs += len(values) - len(finite) - num_nans
            moments = moments_of_floats(finite) if len(finite) else None
            values = finite
        if moments is not None:
            self._moments.merge(moments)
        if self._quantiles is not None:
            self._quantiles.add(values)


def _kind_of(feature: Feature) -> str:
    if feature.dtype in ("string", "bytes"):
        return feature.dtype
    if feature.dtype == "bool":
        return "boolean"
    if feature.dtype.startswith(("int", "uint")):
        return "integer"
    if feature.dtype.startswith("float"):
        return "float"
    return "decimal" if feature.dtype.startswith("decimal") else "temporal"


def _sketch_for(feature: Feature, kind: str) -> QuantileSketch | None:
    if kind in ("string", "bytes", "boolean") or (feature.num_values or 0) > _MAX_ARRAY:
        return None
    whole: Kind = "uint64" if feature.dtype == "uint64" else "int64"
    return QuantileSketch(whole if kind in ("integer", "temporal") else "float64")


_KEY_TYPES = {
    "string": lambda feature: pa.binary(),
    "boolean": lambda feature: pa.int64(),
    "integer": lambda feature: pa.uint64() if feature.dtype == "uint64" else pa.int64(),
}


def _moments_of(statistics: FeatureStatistics) -> Moments:
    count = statistics.num_values - statistics.num_nans - statistics.num_infs
    if statistics.mean is None:
        return Moments(is_integer=False)
    std = statistics.std if statistics.std is not None else math.inf
    return Moments(
        is_integer=False,
        count=count,
        min=statistics.min,
        max=statistics.max,
        running_mean=statistics.mean,
        deviation=std * std * count,
    )


def _combine_lengths(splits: Sequence[FeatureStatistics]) -> Lengths:
    total = Lengths()
    for s in splits:
        if s.mean_length is not None:
            total.merge(Lengths(s.count, round(s.mean_length * s.count), s.min_length, s.max_length))
    return total
