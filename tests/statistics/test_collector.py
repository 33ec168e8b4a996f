"""Statistics: what pandas, numpy and exact arithmetic say, however the rows were dealt to parts."""

import datetime
import decimal
import math
import random
from collections import Counter
from fractions import Fraction

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import DamageError
from shardkit.features import arrow_schema, make_feature
from shardkit.statistics.collector import StatisticsCollector, combine_statistics, merge_statistics
from shardkit.statistics.frequencies import MAX_VALUE_BYTES, NUM_COUNTED, hash_values
from tests.support.examples import draws

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def collect(features, batches):
    collector = StatisticsCollector(features)
    for batch in batches:
        collector.update(batch)
    return collector.to_bytes()


def batch_of(feature, rows):
    return pa.record_batch([pa.array(rows, feature.arrow_type)], schema=arrow_schema((feature,)))


def statistics_of(feature, *parts):
    """Returns the statistics of parts, each a list of batches, each a list of rows."""
    encoded = [collect((feature,), [batch_of(feature, rows) for rows in batches]) for batches in parts]
    return merge_statistics(encoded, (feature,))[feature.name]


def deal(rows, seed):
    """Deals rows to some parts of some batches, in order."""
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(6)))
    batches = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    parts = [[] for _ in range(rng.randrange(1, 4))]
    for batch in batches:
        parts[rng.randrange(len(parts))].append(batch)
    return parts


def top_of(values):
    order = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    return [(v, n) for v, n in order[:20]]


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50)), st.integers())
def test_integers_are_exact_for_any_dealing(rows, seed):
    found = statistics_of(make_feature("x", "int64", nullable=True), *deal(rows, seed))
    present = [v for v in rows if v is not None]
    assert (found.count, found.num_nulls, found.num_values) == (len(present), rows.count(None), len(present))
    assert found.min == min(present, default=None)
    assert found.max == max(present, default=None)
    assert found.num_distinct == len(set(present))
    assert [(t.value, t.count) for t in found.top_values] == top_of(present)
    if present:
        mean = Fraction(sum(present), len(present))
        assert found.mean == float(mean)
        variance = sum((v - mean) ** 2 for v in present) / len(present)
        assert found.std == pytest.approx(math.sqrt(variance), rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1)), st.integers())
def test_unsigned_integers_keep_all_64_bits(rows, seed):
    found = statistics_of(make_feature("x", "uint64"), *deal(rows, seed))
    assert (found.min, found.max) == (min(rows, default=None), max(rows, default=None))
    assert [(t.value, t.count) for t in found.top_values] == top_of(rows)
    if rows:
        assert found.mean == sum(rows) / len(rows)


@settings(deadline=None)
@given(st.lists(st.none() | finite | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])), st.integers())
def test_floats_agree_with_pandas(rows, seed):
    found = statistics_of(make_feature("x", "float64", nullable=True), *deal(rows, seed))
    present = [v for v in rows if v is not None]
    series = pd.Series([v for v in present if math.isfinite(v)], dtype="float64")
    assert (found.count, found.num_nulls) == (len(present), rows.count(None))
    assert (found.num_nans, found.num_infs) == (sum(map(math.isnan, present)), sum(map(math.isinf, present)))
    assert found.num_distinct is None
    if series.empty:
        assert (found.min, found.max, found.mean, found.std) == (None, None, None, None)
    else:
        scale = max(series.abs().max(), 1e-30)
        assert (found.min, found.max) == (series.min(), series.max())
        assert found.mean == pytest.approx(math.fsum(series) / len(series), rel=1e-9, abs=1e-12 * scale)
        assert found.std == pytest.approx(float(np.std(series / scale)) * scale, rel=1e-9, abs=1e-7 * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rest", [1e9, -3.0, 0.1])
def test_deviations_are_right_wherever_the_first_values_lie(dtype, rest):
    # Sums of squares around a value far from the mean would lose all digits.
    rng = np.random.default_rng(7)
    values = np.concatenate([rng.normal(0, 1e-3, 140_000), rest + rng.normal(0, 1e-3, 900_000)]).astype(dtype)
    feature = make_feature("x", dtype)
    found = statistics_of(feature, [values])
    assert found.mean == pytest.approx(np.longdouble(values).mean(), rel=1e-12)
    assert found.std == pytest.approx(float(np.longdouble(values).std()), rel=1e-9)
    constant = statistics_of(feature, [np.full(300_000, rest, dtype)])
    assert (constant.mean, constant.std) == (float(np.dtype(dtype).type(rest)), pytest.approx(0.0, abs=1e-12))


@settings(max_examples=draws(30), deadline=None)
@given(
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]),
    st.integers(0, 2**32),
    st.integers(1, 70_000),
    st.booleans(),
)
def test_integers_of_every_width_have_exact_sums(dtype, seed, num_rows, is_narrow):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    low = int(rng.integers(info.min, info.max, dtype=dtype))
    high = min(int(info.max), low + 1000) if is_narrow else int(info.max)
    values = rng.integers(low, high, num_rows, dtype=dtype, endpoint=True)
    found = statistics_of(make_feature("x", dtype), [values[:100], values[100:]])
    assert (found.min, found.max) == (int(values.min()), int(values.max()))
    assert found.mean == sum(values.tolist()) / num_rows
    distances = np.array([v - low for v in values.tolist()], np.longdouble)
    assert found.std == pytest.approx(float(distances.std()), rel=1e-9, abs=1e-9)


def test_floats_at_the_end_of_their_range_give_no_infinity():
    found = statistics_of(make_feature("x", "float64"), [[1.7e308, 1.7e308, -1.7e308]], [[1.7e308, -1.7e308]])
    assert found.mean == pytest.approx(0.2 * 1.7e308)
    assert found.std is None
    assert b"null" not in msgspec.json.encode(found.mean)


@settings(deadline=None)
@given(st.lists(st.none() | words), st.integers())
def test_strings_are_counted_and_measured_in_bytes(rows, seed):
    found = statistics_of(make_feature("x", "string", nullable=True), *deal(rows, seed))
    present = [v for v in rows if v is not None]
    lengths = [len(v.encode()) for v in present]
    assert [(t.value, t.count) for t in found.top_values] == top_of(present)
    assert (found.num_distinct, found.num_distinct_is_exact) == (len(set(present)), True)
    assert (found.min_length, found.max_length) == (min(lengths, default=None), max(lengths, default=None))
    assert found.mean_length == (sum(lengths) / len(lengths) if lengths else None)


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(st.integers(-3, 3), max_size=4)), st.integers())
def test_lists_are_counted_by_value_and_measured_in_values(rows, seed):
    found = statistics_of(make_feature("x", "int16", (None,), nullable=True), *deal(rows, seed))
    present = [v for v in rows if v is not None]
    values = [v for row in present for v in row]
    assert (found.count, found.num_nulls, found.num_values) == (len(present), rows.count(None), len(values))
    assert [(t.value, t.count) for t in found.top_values] == top_of(values)
    assert found.max_length == max(map(len, present), default=None)
    assert found.mean == (sum(values) / len(values) if values else None)


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(finite, min_size=3, max_size=3)), st.integers())
def test_vectors_are_described_by_all_their_values(rows, seed):
    found = statistics_of(make_feature("x", "float32", (3,), nullable=True), *deal(rows, seed))
    values = [v for row in rows if row is not None for v in row]
    assert found.num_values == len(values)
    assert (found.min, found.max) == (min(values, default=None), max(values, default=None))


@settings(deadline=None)
@given(st.lists(st.none() | st.booleans()), st.integers())
def test_booleans_are_counted_as_true_and_false(rows, seed):
    found = statistics_of(make_feature("x", "bool", nullable=True), *deal(rows, seed))
    present = [v for v in rows if v is not None]
    assert [(t.value, t.count) for t in found.top_values] == top_of(present)
    assert all(isinstance(t.value, bool) for t in found.top_values)
    assert found.mean == (sum(present) / len(present) if present else None)


@pytest.mark.parametrize(
    ("dtype", "rows", "low", "high"),
    [
        ("date", [datetime.date(1970, 1, 3), datetime.date(1969, 12, 31)], -1, 2),
        ("timestamp[s]", [datetime.datetime(1970, 1, 2), datetime.datetime(2000, 1, 1)], 86_400, 946_684_800),
        ("time[ms]", [datetime.time(0, 0, 1), datetime.time(1)], 1_000, 3_600_000),
        ("duration[us]", [datetime.timedelta(seconds=-1), datetime.timedelta(seconds=1)], -1_000_000, 1_000_000),
    ],
)
def test_times_are_described_as_they_are_stored(dtype, rows, low, high):
    found = statistics_of(make_feature("x", dtype), [rows])
    assert (found.min, found.max, found.mean) == (low, high, (low + high) / 2)
    assert found.num_distinct is None


def test_nanoseconds_keep_a_deviation_smaller_than_a_float_can_tell_them_apart():
    base = 1_700_000_000_000_000_000
    feature = make_feature("x", "timestamp[ns]")
    rows = [base, base + 2]
    encoded = [collect((feature,), [batch_of(feature, [v])]) for v in rows]
    assert merge_statistics(encoded, (feature,))["x"].std == 1.0


def test_decimals_have_a_mean_and_bytes_only_a_length():
    decimals = statistics_of(make_feature("x", "decimal(5,2)"), [[None, decimal.Decimal("1.50")]])
    assert (decimals.min, decimals.mean, decimals.num_nulls) == (1.5, 1.5, 1)
    blobs = statistics_of(make_feature("x", "bytes", media_type="image/*"), [[b"\xff" * 7, b""]])
    assert (blobs.min_length, blobs.max_length, blobs.num_distinct, blobs.top_values) == (0, 7, None, ())


def test_the_same_parts_give_the_same_bytes_and_the_same_statistics():
    rng = np.random.default_rng(5)
    features = (make_feature("a", "float32"), make_feature("b", "string"), make_feature("c", "int64"))
    batches = [
        pa.record_batch(
            [
                pa.array(rng.normal(size=3000).astype(np.float32)),
                pa.array([f"w{v}" for v in rng.integers(0, 9000, 3000)]),
                pa.array(rng.integers(0, 2**40, 3000)),
            ],
            schema=arrow_schema(features),
        )
        for _ in range(6)
    ]
    parts = [collect(features, batches[:2]), collect(features, batches[2:])]
    assert parts == [collect(features, batches[:2]), collect(features, batches[2:])]
    once, again = merge_statistics(parts, features), merge_statistics(parts, features)
    assert msgspec.json.encode(once) == msgspec.json.encode(again)


@settings(max_examples=draws(20), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["int64", "string"]), st.integers(NUM_COUNTED - 2, 3 * NUM_COUNTED))
def test_the_number_of_distinct_values_does_not_depend_on_the_dealing(seed, dtype, num_distinct):
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(np.concatenate([np.arange(num_distinct), rng.integers(0, num_distinct, 5000)]))
    scattered = numbers * 0x1E3779B97F4A7C15 & (2**63 - 1)
    rows = [int(v) for v in scattered] if dtype == "int64" else [f"value-{v:x}" for v in scattered]
    feature = make_feature("x", dtype)
    whole = statistics_of(feature, [rows])
    dealt = statistics_of(feature, *deal(rows, seed))
    assert (dealt.num_distinct, dealt.num_distinct_is_exact) == (whole.num_distinct, whole.num_distinct_is_exact)
    assert whole.num_distinct_is_exact == (num_distinct <= NUM_COUNTED)
    assert whole.num_distinct == pytest.approx(num_distinct, rel=0 if whole.num_distinct_is_exact else 0.08)


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_values_that_stand_out_are_found_among_very_many(dtype):
    rng = np.random.default_rng(3)
    numbers = rng.integers(10**6, 10**12, 100_000)
    numbers[rng.permutation(100_000)[:30_000]] = np.repeat([7, 8, 9], [20_000, 8_000, 2_000])
    rows = numbers.tolist() if dtype == "int64" else [f"id{v}" for v in numbers]
    found = statistics_of(make_feature("x", dtype), [rows[:40_000], rows[40_000:60_000]], [rows[60_000:]])
    assert not found.num_distinct_is_exact
    assert found.num_distinct == pytest.approx(len(set(rows)), rel=0.08)
    assert [str(t.value).removeprefix("id") for t in found.top_values] == ["7", "8", "9"]
    assert [t.count for t in found.top_values] == pytest.approx([20_000, 8_000, 2_000], rel=0.15)


def test_values_that_are_all_different_have_no_top():
    found = statistics_of(make_feature("x", "int64"), [list(range(0, 10**9, 20_000))])
    assert found.top_values == ()
    assert found.num_distinct == pytest.approx(50_000, rel=0.08)


@pytest.mark.parametrize("first", ["long", "short"])
def test_free_text_is_not_listed_but_its_distinct_values_are_counted(first):
    texts = ["y" * (MAX_VALUE_BYTES + 1 + i) for i in range(50)]
    parts = [[texts], [["a", "b", "a"]]]
    found = statistics_of(make_feature("x", "string"), *(parts if first == "long" else reversed(parts)))
    assert found.top_values == ()
    assert (found.num_distinct, found.num_distinct_is_exact) == (52, True)
    assert found.max_length == MAX_VALUE_BYTES + 50


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60, unique=True), st.integers(0, 3))
def test_hashes_depend_on_the_value_alone(values, offset):
    array = pa.array([b"?" * 300] * offset + values, pa.binary())[offset:]
    hashes = hash_values(array).tolist()
    assert len(set(hashes)) == len(values)
    assert [hash_values(pa.array([v], pa.binary()))[0] for v in values] == hashes


def test_rounded_values_are_added_up():
    feature = make_feature("x", "float32")
    collector = StatisticsCollector((feature,))
    collector.update(batch_of(feature, [0.5]))
    collector.add_rounded({"x": 3, "other": 9})
    collector.add_rounded({"x": 4})
    parts = [collector.to_bytes(), collector.to_bytes()]
    assert merge_statistics(parts, (feature,))["x"].num_rounded == 14


def test_parts_of_other_features_or_of_noise_are_refused():
    part = collect((make_feature("a", "int64"),), [])
    for wrong in (part, b"noise", part[:-3]):
        with pytest.raises(DamageError):
            merge_statistics([wrong], (make_feature("b", "int64"),))


def test_no_rows_at_all():
    features = (make_feature("a", "int64"), make_feature("b", "string"), make_feature("c", "float32", (2,)))
    for parts in ([], [collect(features, [])]):
        for found in merge_statistics(parts, features).values():
            assert (found.count, found.mean, found.std, found.min, found.top_values) == (0, None, None, None, ())


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-40, 40) | st.integers(-(2**40), 2**40), max_size=12), min_size=1, max_size=4))
def test_splits_combine_to_what_their_rows_give_together(splits):
    feature = make_feature("x", "int64")
    combined = combine_statistics([statistics_of(feature, [rows]) for rows in splits])
    together = statistics_of(feature, [[v for rows in splits for v in rows]])
    assert (combined.count, combined.min, combined.max) == (together.count, together.min, together.max)
    if together.count:
        assert combined.mean == pytest.approx(together.mean, rel=1e-9, abs=1e-6)
        assert combined.std == pytest.approx(together.std, rel=1e-6, abs=1e-3)
    # What finished statistics cannot tell is left out rather than guessed.
    assert (combined.num_distinct, combined.top_values) == (None, ())


def test_statistics_survive_the_manifest():
    feature = make_feature("x", "uint64")
    found = statistics_of(feature, [[2**64 - 1, 0]])
    assert msgspec.json.decode(msgspec.json.encode(found), type=FeatureStatistics) == found


def test_parts_that_contradict_themselves_are_damage():
    feature = make_feature("a", "int64")
    (column,) = msgspec.msgpack.decode(collect((feature,), [batch_of(feature, [1, 2, 2])]))
    moments, frequencies = column[7], column[9]
    wrong = [
        [*column[:7], [*moments[:6], -1e9], *column[8:]],
        [*column[:7], [*moments[:4], "three", *moments[5:]], *column[8:]],
        [*column[:9], [frequencies[0], bytes(8), *frequencies[2:]], *column[10:]],
    ]
    for one in wrong:
        with pytest.raises(DamageError, match="contradicts itself"):
            merge_statistics([msgspec.msgpack.encode([one])], (feature,))
    part = msgspec.msgpack.encode([column]).replace(b"\xa1a", b"\xa1\xff", 1)
    with pytest.raises(DamageError, match="cannot be read"):
        merge_statistics([part], (feature,))
