"""How large the manifest of real inputs will be, by writing one of a sample of their rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.conversion.option_forms import SplitShare
from shardkit.conversion.plan import Plan, stored_recipe
from shardkit.dataset.documents import Accounting, InputInfo
from shardkit.dataset.manifest import (
    FORMAT_VERSION,
    FeatureStatistics,
    Manifest,
    SplitInfo,
    TopValue,
    describe_table,
    encode_manifest,
)
from shardkit.features import Feature, Features
from shardkit.forecast.values import ManifestSize
from shardkit.statistics.collector import StatisticsCollector
from shardkit.statistics.frequencies import (
    MAX_LISTED_INTEGERS,
    MAX_VOCABULARY_BYTES,
    NUM_COUNTED,
    NUM_TOP_VALUES,
    SAMPLE_STEP,
)

# Entries of so many files tell of the others.
_FILES_WRITTEN = 1000
# Estimated values are listed if they are one in so many, and were sampled so often.
_LEAST_SHARE, _LEAST_SAMPLES = 1000, 16
_HASH = "0" * 32


def size_of(plan: Plan, rows: pa.Table, num_rows: int, shares: Sequence[SplitShare]) -> ManifestSize:
    """Returns how large the manifest of a conversion will be, by writing one with the known values.

    Args:
        plan: Of the conversion.
        rows: Some rows of all over the inputs, before transformations; all of them if they are few.
        num_rows: In the inputs, as far as it is known.
        shares: Dataset splits and their fractions.
    """
    empty = _written(plan, (), {})
    every = -(-len(plan.files) // _FILES_WRITTEN)
    files = plan.files[:: max(1, every)]
    rows_a_byte = num_rows / max(1, sum(f.num_bytes for f in plan.files))
    inputs = tuple(
        InputInfo(name=f.name, num_bytes=f.num_bytes, num_rows=number, num_examples=number)
        for f in files
        for number in [round(f.num_bytes * rows_a_byte)]
    )
    statistics = {
        s.name: _statistics(rows, plan.transforms.input_features, max(1, round(num_rows * s.fraction))) for s in shares
    }
    return ManifestSize(
        document_bytes=empty,
        file_bytes=-(-(_written(plan, inputs, {}) - empty) // max(1, len(files))),
        statistics_bytes=_written(plan, (), statistics) - empty,
    )


def _written(plan: Plan, inputs: Sequence[InputInfo], statistics: dict[str, dict[str, FeatureStatistics]]) -> int:
    num_rows = sum(i.num_examples for i in inputs)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=_HASH[:8],
        fingerprint=plan.fingerprint,
        created=plan.created,
        recipe=stored_recipe(plan.recipe),
        compression=plan.recipe.compression,
        features=plan.transforms.input_features,
        splits=tuple(
            SplitInfo(
                name=name,
                num_shards=1,
                num_examples=10**6,
                num_bytes=10**8,
                num_uncompressed_bytes=10**8,
                statistics=found,
            )
            for name, found in statistics.items()
        ),
        accounting=Accounting(num_rows=num_rows, num_examples=num_rows, inputs=tuple(inputs)),
        shard_table=describe_table(1, _HASH, b"", 1),
        extensions={"statistics": {"path": f"data/{_HASH}/statistics-{_HASH[:16]}.zst", "sha256": 2 * _HASH}},
    )
    return len(encode_manifest(manifest))


def _statistics(rows: pa.Table, features: Features, num_rows: int) -> dict[str, FeatureStatistics]:
    """Returns the statistics of so many rows, of which some are known; of fewer than those, of so many of them."""
    if num_rows < len(rows):
        chosen = np.sort(np.random.default_rng(0).choice(len(rows), num_rows, replace=False))
        rows = rows.take(pa.array(chosen))
    rows = rows.combine_chunks()
    collector = StatisticsCollector(features)
    for batch in rows.to_batches():
        collector.update(batch)
    found = collector.finish()
    times = num_rows / max(1, len(rows))
    if times <= 1:
        return found
    return {f.name: _of_more(found[f.name], f, column, times) for f, column in zip(features, rows.columns, strict=True)}


class _Values(NamedTuple):
    """The distinct values of a column, and how many of them are there once."""

    values: list[Any]
    num_single: int


def _of_more(known: FeatureStatistics, feature: Feature, column: pa.ChunkedArray, times: float) -> FeatureStatistics:
    """Returns statistics as they will be of so many times as many rows of the same kind."""
    more = msgspec.structs.replace(
        known,
        count=round(known.count * times),
        num_nulls=round(known.num_nulls * times),
        num_values=round(known.num_values * times),
    )
    if known.num_distinct is None:
        return more
    distinct = _distinct_of(column) if known.num_distinct <= NUM_COUNTED else _Values([], 0)
    # Charikar et al. (2000): values that were met once stand for the square root of values that were not met.
    num_distinct = round(known.num_distinct + (math.sqrt(times) - 1) * distinct.num_single)
    is_counted = num_distinct <= NUM_COUNTED and len(distinct.values) > 0
    least = 1 if is_counted else max(_LEAST_SAMPLES * SAMPLE_STEP, more.num_values // _LEAST_SHARE)
    top = [TopValue(value=t.value, count=round(t.count * times)) for t in known.top_values]
    return msgspec.structs.replace(
        more,
        num_distinct=num_distinct,
        num_distinct_is_exact=is_counted,
        top_values=tuple(t for t in top if t.count >= least),
        vocabulary=_vocabulary(feature, distinct.values, num_distinct, more.num_values) if is_counted else (),
    )


def _distinct_of(column: pa.ChunkedArray) -> _Values:
    values = column.combine_chunks().drop_null()
    if pa.types.is_nested(values.type):
        values = values.flatten().drop_null()
    counted = values.value_counts()
    num_single = pc.sum(pc.equal(counted.field(1), 1)).as_py() or 0
    return _Values(counted.field(0).to_pylist(), num_single)


def _vocabulary(
    feature: Feature, values: list[Any], num_distinct: int, num_values: int
) -> tuple[str | int | bool, ...]:
    """Returns values in place of a list of so many; none where they would not be listed."""
    if num_distinct > NUM_TOP_VALUES and num_distinct * 2 > num_values:
        return ()
    if feature.dtype == "string":
        num_bytes = sum(len(v if isinstance(v, bytes) else v.encode()) for v in values) * num_distinct // len(values)
        if num_bytes > MAX_VOCABULARY_BYTES:
            return ()
        values = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in values]
    elif num_distinct > MAX_LISTED_INTEGERS:
        return ()
    return tuple(itertools.islice(itertools.cycle(values), num_distinct))
