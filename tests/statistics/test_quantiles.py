"""Quantiles: what numpy says within the stated error, the same to the bit however the values are dealt and merged."""

import datetime
import decimal
import math
import random

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import DamageError
from shardkit.features import arrow_schema, make_feature
from shardkit.statistics.collector import StatisticsCollector, combine_statistics, merge_statistics
from shardkit.statistics.frequencies import MAX_LISTED_INTEGERS, MAX_VOCABULARY_BYTES, NUM_COUNTED
from shardkit.statistics.key_counts import NUM_BUCKETS
from shardkit.statistics.quantile_buckets import PERCENTS
from shardkit.statistics.quantiles import QuantileSketch, QuantilesPart
from tests.support.examples import draws

SHARES = [percent / 100 for percent in PERCENTS]
NAMES = [f"p{percent:02}" for percent in PERCENTS]


def normal(rng, size):
    return rng.normal(size=size)


def prices(rng, size):
    return np.round(rng.lognormal(2, 1, size), 2)


def mostly_zero(rng, size):
    return np.where(rng.random(size) < 0.6, 0.0, rng.lognormal(2, 3, size))


def longitudes(rng, size):
    return -87.6 + rng.normal(size=size) * 0.05


def of_all_sizes(rng, size):
    return np.exp(rng.uniform(-300, 300, size)) * rng.choice([-1.0, 1.0], size)


def of_any_bits(rng, size):
    found = rng.integers(0, 2**64, size, dtype=np.uint64).view(np.float64)
    return found[np.isfinite(found)]


def ascending(rng, size):
    return np.cumsum(rng.random(size))


FLOATS = [normal, prices, mostly_zero, longitudes, of_all_sizes, of_any_bits, ascending]


def sketch_of(values, kind="float64"):
    sketch = QuantileSketch(kind)
    sketch.add(values)
    return sketch


def quantiles_of(values, kind="float64"):
    return sketch_of(values, kind).finish(values.min().item(), values.max().item())


def true_quantiles(values):
    return np.quantile(values, SHARES, method="inverted_cdf").tolist()


def shown(quantiles):
    return [getattr(quantiles, name) for name in NAMES]


def assert_within_bound(quantiles, values):
    for found, true in zip(shown(quantiles), true_quantiles(values), strict=True):
        assert abs(found - true) <= quantiles.relative_error * abs(true) + 2.0**-1022


@pytest.mark.parametrize("draw", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 99, NUM_BUCKETS, 30_000, 300_000])
def test_floats_are_as_near_to_numpy_as_stated(draw, size):
    values = draw(np.random.default_rng(size), size)
    found = quantiles_of(values)
    assert_within_bound(found, values)
    if len(np.unique(values)) <= NUM_BUCKETS:
        assert found.relative_error == 0.0
        assert shown(found) == true_quantiles(values)
    else:
        assert 0.0 < found.relative_error <= 1.0


@pytest.mark.parametrize(("draw", "most"), [(normal, 2**-7), (prices, 2**-8), (longitudes, 2**-18), (ascending, 2**-8)])
def test_the_error_of_common_distributions_is_small(draw, most):
    assert quantiles_of(draw(np.random.default_rng(1), 200_000)).relative_error <= most


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_integers_are_as_near_to_numpy_as_stated(kind):
    info = np.iinfo(kind)
    rng = np.random.default_rng(4)
    for low, high in [(0, 9), (0, 100_000), (info.max // 2, info.max), (info.min, info.max), (info.max - 9, info.max)]:
        values = rng.integers(low, high, 50_000, dtype=kind, endpoint=True)
        found = quantiles_of(values, kind)
        assert all(isinstance(v, int) and info.min <= v <= info.max for v in shown(found))
        exact = np.sort(values)[[max(0, math.ceil(len(values) * p / 100) - 1) for p in PERCENTS]].tolist()
        for estimate, true in zip(shown(found), exact, strict=True):
            # One rounding of an integer to float64 comes on top where it is beyond 2**53.
            assert abs(estimate - true) <= (found.relative_error + (2**-52 if found.relative_error else 0)) * abs(true)


def test_integers_that_have_a_bucket_of_their_own_are_found_again():
    values = np.repeat(np.arange(-5_000, 5_000), 3)
    found = quantiles_of(values, "int64")
    assert found.relative_error > 0
    assert (found.p50, found.p05) == (-1, pytest.approx(-4_500, abs=2))


@settings(max_examples=draws(60), deadline=None)
@given(
    st.sampled_from([*FLOATS, "int64", "uint64"]),
    st.integers(0, 2**32),
    st.sampled_from([3, 700, NUM_BUCKETS - 1, NUM_BUCKETS + 1, 12_000, 60_000]),
    st.booleans(),
)
def test_any_dealing_and_any_order_of_merging_give_the_same_bytes(draw, seed, size, is_sorted):
    rng = np.random.default_rng(seed)
    kind = draw if isinstance(draw, str) else "float64"
    values = rng.integers(0, 2 ** int(rng.integers(3, 63)), size, dtype=kind) if kind == draw else draw(rng, size)
    if is_sorted:
        values = np.sort(values)
    parts = []
    for piece in np.array_split(values, np.sort(rng.integers(0, len(values) + 1, rng.integers(0, 8)))):
        sketch = QuantileSketch(kind)
        for batch in np.array_split(rng.permutation(piece) if rng.random() < 0.5 else piece, rng.integers(1, 6)):
            if rng.random() < 0.3:
                sketch.add_counted(*np.unique(batch, return_counts=True))
            else:
                sketch.add(batch)
        parts.append(sketch.to_part())
    while len(parts) > 1:
        merged = QuantileSketch(kind)
        merged.add(values[:0])
        for _ in range(rng.integers(2, len(parts) + 1)):
            merged.merge(parts.pop(rng.integers(len(parts))))
        parts.append(merged.to_part())
    assert msgspec.msgpack.encode(parts[0]) == msgspec.msgpack.encode(sketch_of(values, kind).to_part())
    assert parts[0].num_keys <= NUM_BUCKETS


def test_a_sketch_can_be_asked_and_go_on():
    values = np.random.default_rng(2).normal(size=50_000)
    sketch = QuantileSketch("float64")
    for piece in np.array_split(values, 23):
        sketch.add(piece)
        assert sketch.finish(values.min(), values.max()) is not None
    assert sketch.to_part() == sketch_of(values).to_part()


def test_a_sketch_keeps_nothing_of_a_batch():
    values = np.arange(10.0)
    sketch = sketch_of(values)
    values[:] = 77.0
    assert sketch.finish(0.0, 9.0).p50 == 4.0


def test_extremes_of_float64_stay_in_range():
    tiny, huge = 5e-324, 1.7976931348623157e308
    values = np.concatenate([huge * np.linspace(-1, 1, 5_001), np.linspace(-1, 1, 5_000) * 1e-310, [tiny, -0.0, 0.0]])
    found = quantiles_of(values)
    assert all(math.isfinite(v) and -huge <= v <= huge for v in shown(found))
    assert found.p50 == 0.0
    assert math.copysign(1.0, found.p50) == 1.0
    zeros = quantiles_of(np.array([-0.0, -0.0]))
    assert math.copysign(1.0, zeros.p01) == 1.0


def test_a_part_stays_small():
    part = sketch_of(np.random.default_rng(3).normal(size=400_000)).to_part()
    assert len(msgspec.msgpack.encode(part)) < 8 * NUM_BUCKETS


@pytest.mark.parametrize(
    "part",
    [
        QuantilesPart(-1, 2, b"123", b"12"),
        QuantilesPart(-1, 1, b"123", b"1"),
        QuantilesPart(77, 1, b"1", b"1"),
        QuantilesPart(-1, -1, b"1", b"1"),
        QuantilesPart(-1, 0, b"1", b""),
    ],
)
def test_parts_that_contradict_themselves_are_refused(part):
    with pytest.raises(DamageError):
        QuantileSketch("float64").merge(part)


def collect(feature, parts):
    """Returns the statistics of parts, each a list of batches, each a list of rows."""
    encoded = []
    for batches in parts:
        collector = StatisticsCollector((feature,))
        for rows in batches:
            array = pa.array(rows, feature.arrow_type)
            collector.update(pa.record_batch([array], schema=arrow_schema((feature,))))
        encoded.append(collector.to_bytes())
    random.Random(len(parts)).shuffle(encoded)
    return merge_statistics(encoded, (feature,))[feature.name]


def deal(rows, seed):
    rng = random.Random(seed)
    rows = rng.sample(rows, len(rows))
    cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(7)))
    batches = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    parts = [[] for _ in range(rng.randrange(1, 5))]
    for batch in batches:
        parts[rng.randrange(len(parts))].append(batch)
    return parts


def lasting(found):
    """Returns what does not depend on the dealing: all but the rounding of floats and estimated counts."""
    kept = msgspec.structs.replace(found, mean=None, std=None, mean_length=None)
    return kept if found.num_distinct_is_exact else msgspec.structs.replace(kept, top_values=())


@settings(max_examples=draws(40), deadline=None)
@given(
    st.sampled_from(["int64", "int32", "float32", "string", "list", "timestamp[us]", "bool"]),
    st.integers(0, 2**32),
    st.sampled_from([0, 5, 3_000, 9_000]),
    st.integers(1, 40),
)
def test_quantiles_vocabularies_and_counts_do_not_depend_on_the_dealing(dtype, seed, num_rows, num_bits):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 2 ** min(num_bits, 30 if dtype == "int32" else 40), num_rows).tolist()
    as_rows = {
        "string": lambda: [f"v{n}" for n in numbers],
        "list": lambda: [[n] * (n % 5) for n in numbers],
        "float32": lambda: [float(np.float32(n / 7)) for n in numbers],
        "bool": lambda: [n % 2 == 0 for n in numbers],
    }
    rows = as_rows.get(dtype, lambda: numbers)()
    rows = [None if i % 11 == 3 else row for i, row in enumerate(rows)]
    feature = make_feature("x", *(("int64", (None,)) if dtype == "list" else (dtype,)), nullable=True)
    whole = collect(feature, [[rows]])
    assert lasting(collect(feature, deal(rows, seed))) == lasting(whole)
    present = [r for r in rows if r is not None]
    if dtype in ("int64", "int32", "float32", "timestamp[us]") and present:
        assert_within_bound(whole.quantiles, np.array(present, np.float64))


def test_integers_that_become_too_many_to_count_are_all_in_the_quantiles():
    few, many = list(range(100)) * 300, np.random.default_rng(0).permutation(10**6)[:20_000].tolist()
    feature = make_feature("x", "int64")
    found = collect(feature, [[few], [many[:50]], [few, many[50:]]])
    assert not found.num_distinct_is_exact
    assert_within_bound(found.quantiles, np.array(few + few + many))


def test_values_that_are_no_numbers_do_not_count():
    found = collect(make_feature("x", "float64"), [[[math.nan, math.inf, 1.0, 2.0, -math.inf, 3.0]]])
    assert (found.quantiles.p01, found.quantiles.p50, found.quantiles.p99) == (1.0, 2.0, 3.0)
    none = collect(make_feature("x", "float64"), [[[math.nan]]])
    assert none.quantiles is None


def test_times_and_decimals_have_quantiles_and_classes_have_none():
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=n) for n in range(101)]
    dates = collect(make_feature("x", "date"), [[days]])
    assert dates.quantiles.p50 == (datetime.date(2020, 2, 20) - datetime.date(1970, 1, 1)).days
    base = 1_700_000_000_000_000_001
    nanoseconds = collect(make_feature("x", "timestamp[ns]"), [[[base, base + 2, base + 4]]])
    assert nanoseconds.quantiles.p50 == base + 2
    decimals = collect(make_feature("x", "decimal(5,2)"), [[[decimal.Decimal("1.25"), decimal.Decimal("1.50")]]])
    assert (decimals.quantiles.p50, decimals.quantiles.p75) == (1.25, 1.5)
    for dtype, rows in (("bool", [True]), ("string", ["a"]), ("bytes", [b"a"])):
        assert collect(make_feature("x", dtype), [[rows]]).quantiles is None


def test_lengths_of_texts_and_lists_have_quantiles():
    lengths = np.random.default_rng(5).geometric(0.01, 3_000) - 1
    texts = collect(make_feature("x", "string"), deal(["é" * n for n in lengths], 1))
    assert shown(texts.length_quantiles) == true_quantiles(2 * lengths)
    lists = collect(make_feature("x", "float32", (None,)), deal([[0.5] * n for n in lengths], 2))
    assert shown(lists.length_quantiles) == true_quantiles(lengths)
    blobs = collect(make_feature("x", "bytes"), deal([b"x" * (n * 100) for n in lengths], 3))
    assert shown(blobs.length_quantiles) == true_quantiles(100 * lengths)
    assert collect(make_feature("x", "int64"), [[[1]]]).length_quantiles is None


@pytest.mark.parametrize(
    ("dtype", "rows", "is_listed"),
    [
        ("string", ["b", "a", "b"], True),
        ("string", [f"v{i % NUM_COUNTED}" for i in range(2 * NUM_COUNTED)], True),
        ("string", [f"v{i % (NUM_COUNTED + 1)}" for i in range(3 * NUM_COUNTED)], False),
        ("string", [f"v{i}" for i in range(20)], True),
        ("string", [f"v{i}" for i in range(21)], False),
        ("string", [f"{i % 2000:0240}" for i in range(6_000)], False),
        ("int64", [i % MAX_LISTED_INTEGERS - 3 for i in range(4_000)], True),
        ("int64", [i % (MAX_LISTED_INTEGERS + 1) for i in range(4_000)], False),
        ("uint64", [2**64 - 1, 0, 0], True),
        ("bool", [True, False, True], True),
        ("float64", [0.5, 0.5], False),
        ("bytes", [b"a", b"a"], False),
    ],
)
def test_a_vocabulary_lists_what_repeats_most_frequent_first(dtype, rows, is_listed):
    assert MAX_VOCABULARY_BYTES < 2_000 * 240
    found = collect(make_feature("x", dtype), deal(rows, 1))
    order = sorted(set(rows), key=lambda v: (-rows.count(v) if len(rows) < 5_000 else 0, v)) if is_listed else []
    if len(rows) >= 5_000:
        assert sorted(found.vocabulary) == order
    else:
        assert list(found.vocabulary) == order
    assert all(type(v) is type(rows[0]) for v in found.vocabulary)


def test_statistics_with_quantiles_survive_the_manifest_and_older_ones_are_read():
    found = collect(make_feature("x", "string"), [[["a", "bb", "a"]]])
    assert msgspec.json.decode(msgspec.json.encode(found), type=FeatureStatistics) == found
    older = msgspec.json.decode(b'{"count": 1, "num_nulls": 0, "num_values": 1}', type=FeatureStatistics)
    assert (older.quantiles, older.length_quantiles, older.vocabulary) == (None, None, ())
    combined = combine_statistics([found, found])
    assert (combined.vocabulary, combined.quantiles, combined.length_quantiles) == ((), None, None)
