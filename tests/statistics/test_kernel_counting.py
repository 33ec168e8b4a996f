"""The kernel counts and hashes as NumPy does, so that statistics do not tell whether it was built."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.features import arrow_schema, make_feature
from shardkit.hashing import mix64
from shardkit.statistics import frequencies, key_counts
from shardkit.statistics.collector import StatisticsCollector
from shardkit.statistics.frequencies import MAX_VALUE_BYTES, hash_values
from shardkit.statistics.key_counts import NUM_BUCKETS, CompiledKeyCounts, KeyCounts
from tests.support.examples import draws
from tests.support.wire.kernel_threads import runs_beside_python

_kernel = pytest.importorskip("shardkit._kernel", reason="the kernel was not built here", exc_type=ImportError)

KINDS = {"float64": ["float64", "float32", "int32", "uint16"], "int64": ["int64", "int32", "int8", "uint32"]}
PAIRS = [(kind, dtype) for kind, dtypes in {**KINDS, "uint64": ["uint64"]}.items() for dtype in dtypes]
seeds = st.integers(0, 2**32)
sizes = st.sampled_from([0, 1, 90, NUM_BUCKETS - 1, NUM_BUCKETS, NUM_BUCKETS + 1, 9_000, 40_000])


def any_values(rng, dtype, size):
    """Returns values of any bits, of any size, or of few kinds, and the extremes of the type."""
    dtype = np.dtype(dtype)
    bits = rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype)
    style = rng.integers(4)
    if style and dtype.kind == "f":
        with np.errstate(over="ignore"):
            bits = (rng.normal(size=size) * 10.0 ** rng.integers(-330, 300 if style == 1 else 3)).astype(dtype)
    elif style:
        bits = (bits.astype(np.int64) % (1 << int(rng.integers(1, 40)))).astype(dtype)
    if style == 3:
        bits = bits.repeat(5)[rng.integers(0, 2) : size]
    if dtype.kind == "f":
        info = np.finfo(dtype)
        extremes = [0.0, -0.0, np.inf, -np.inf, info.max, info.min, info.tiny, info.smallest_subnormal]
        bits = bits[~np.isnan(bits)]
    else:
        extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0]
    return rng.permutation(np.concatenate([bits, np.array(extremes, dtype)[: rng.integers(0, 9)]]))


def in_pieces(rng, values):
    return np.split(values, np.sort(rng.integers(0, len(values) + 1, rng.integers(0, 5))))


def assert_same(compiled, numpy):
    entries = compiled.entries(), numpy.entries()
    assert compiled.dropped == numpy.dropped
    for one, other in zip(*entries, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("kind", "dtype"), PAIRS)
@given(seeds, sizes)
@settings(max_examples=draws(25), deadline=None)
def test_numbers_are_counted_as_numpy_counts_them(kind, dtype, seed, size):
    rng = np.random.default_rng(seed)
    values = any_values(rng, dtype, size)
    compiled, numpy = CompiledKeyCounts(kind), KeyCounts(kind)
    for piece in in_pieces(rng, values):
        compiled.add(piece)
    for piece in in_pieces(rng, values[::-1]):
        numpy.add(piece)
    assert int(compiled.entries()[1].sum()) == len(values)
    assert len(compiled.entries()[0]) <= NUM_BUCKETS
    assert_same(compiled, numpy)


@given(seeds, sizes, sizes, st.integers(0, 52), st.sampled_from(["float64", "int64", "uint64"]))
@settings(max_examples=draws(60), deadline=None)
def test_keys_of_any_level_are_added_as_numpy_adds_them(seed, size, other_size, least, kind):
    rng = np.random.default_rng(seed)
    values, others = any_values(rng, kind, size), any_values(rng, kind, other_size)
    found = []
    for make in (CompiledKeyCounts, KeyCounts):
        counted, part = make(kind), make(kind)
        counted.add(values)
        part.add(others)
        keys, counts = part.entries()
        if max(part.dropped, least) > counted.dropped:
            counted.drop_to(max(part.dropped, least))
        counted.add_keys(keys, counts, part.dropped)
        found.append(counted)
    assert_same(*found)


slices = st.lists(st.binary(max_size=40) | st.binary(min_size=MAX_VALUE_BYTES - 20, max_size=1_200), max_size=40)


def without_kernel(monkeypatch):
    monkeypatch.setattr(frequencies, "HAS_KERNEL", False)
    monkeypatch.setattr(key_counts, "HAS_KERNEL", False)


@given(slices, st.integers(0, 5), st.integers(0, 40))
@settings(max_examples=draws(200), deadline=None)
def test_strings_are_hashed_and_counted_as_in_python(values, first, num_repeated):
    array = pa.array(values + values[:num_repeated] + values[:1] * 5, pa.binary())[first:]
    compiled, counted = hash_values(array), frequencies._count_binary(array)
    with pytest.MonkeyPatch.context() as patch:
        without_kernel(patch)
        np.testing.assert_array_equal(compiled, hash_values(array))
        expected = frequencies._count_binary(array)
    assert counted[0].equals(expected[0])
    np.testing.assert_array_equal(counted[1], expected[1])


@pytest.mark.parametrize("size", [*range(240, 330), 1_023, 1_024, 1_025, 1_088, 1_089, 2_048, 100_003])
def test_long_strings_are_hashed_to_their_last_byte(size):
    value = np.random.default_rng(size).bytes(size)
    changed = value[:-1] + bytes([value[-1] ^ 1])
    array = pa.array([value, changed, value], pa.binary())
    compiled = hash_values(array)
    assert compiled[0] == compiled[2] != compiled[1]
    with pytest.MonkeyPatch.context() as patch:
        without_kernel(patch)
        np.testing.assert_array_equal(compiled, hash_values(array))


@given(seeds, st.integers(0, 300), st.integers(1, 3))
def test_integers_are_hashed_as_in_python(seed, size, step):
    values = np.random.default_rng(seed).integers(0, 2**64, size, np.uint64)[::step]
    np.testing.assert_array_equal(frequencies._hash_words(values), mix64(values))


def test_many_distinct_strings_are_counted_in_the_order_in_which_they_appear():
    values = [b"%d" % (i % 20_000) for i in range(50_000)]
    distinct, counts = frequencies._count_binary(pa.array(values, pa.binary()))
    assert distinct.to_pylist() == values[:20_000]
    assert counts.tolist() == [3] * 10_000 + [2] * 10_000


@given(seeds, st.sampled_from(["float32", "float64", "int64", "uint64", "string", "timestamp[us]"]), sizes)
@settings(max_examples=draws(40), deadline=None)
def test_statistics_do_not_tell_whether_there_is_a_kernel(seed, dtype, size):
    rng = np.random.default_rng(seed)
    features = (make_feature("x", dtype, nullable=True),)
    values = any_values(rng, dtype if "int" in dtype or "float" in dtype else "int64", size)
    if dtype == "string":
        values = np.array([f"{v}" * (1 + 9 * (v % 3000 == 0)) for v in values.tolist()], object)
    column = pa.array(values, features[0].arrow_type, mask=rng.random(len(values)) < 0.1)
    batches = [
        pa.record_batch([column[a:b]], schema=arrow_schema(features))
        for a, b in ((0, len(column) // 3), (len(column) // 3, len(column)))
    ]

    def part():
        collector = StatisticsCollector(features)
        for batch in batches:
            collector.update(batch)
        other = StatisticsCollector(features)
        other.merge(collector.to_bytes())
        other.merge(collector.to_bytes())
        return collector.to_bytes(), other.to_bytes(), other.finish()

    compiled = part()
    with pytest.MonkeyPatch.context() as patch:
        without_kernel(patch)
        assert part() == compiled


def slots(size=16):
    return np.zeros((size, 2), np.uint64)


NUMBERS = np.arange(4, dtype=np.int64)


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", "d", 2, -1, 0, NUMBERS, False, -1, None),
        (slots(12), "d", 2, -1, 0, NUMBERS, False, -1, None),
        (slots(), "x", 2, -1, 0, NUMBERS, False, -1, None),
        (slots(), "d", 9, -1, 0, NUMBERS, False, -1, None),
        (slots(), "d", 1, -1, 0, NUMBERS, False, -1, None),
        (slots(), "d", 8, -1, 9, NUMBERS, False, -1, None),
        (slots(), "d", 8, -1, -1, NUMBERS, False, -1, None),
        (slots(), "d", 8, 64, 0, NUMBERS, False, -1, None),
        (slots(), "d", 8, -1, 0, NUMBERS, False, 0, None),
        (slots(), "q", 8, -1, 0, NUMBERS, True, -1, None),
        (slots(), "d", 8, -1, 0, b"1234567", False, -1, None),
        (slots(), "d", 8, -1, 0, NUMBERS, False, -1, NUMBERS),
        (slots(), "d", 8, -1, 0, NUMBERS, False, -1, NUMBERS[1:]),
        (slots(), "d", 8, 62, 0, NUMBERS + 4, False, 62, NUMBERS + 1),
    ],
)
def test_what_contradicts_itself_is_refused(arguments):
    with pytest.raises((ValueError, BufferError)):
        _kernel.count_keys(*arguments)


@pytest.mark.parametrize("offsets", [[], [-1, 3], [0, 4], [2, 1], [0, 2, 1, 3], [2**31 - 1, 2**31 - 1]])
def test_offsets_that_leave_the_data_are_refused(offsets):
    for call in (_kernel.hash_slices, _kernel.count_slices):
        with pytest.raises(ValueError, match="offsets"):
            call(np.array(offsets, np.int32), b"abc")
        with pytest.raises(ValueError, match="offsets"):
            call(b"12345", b"abc")


def test_tables_of_any_size_end_with_what_fits():
    for num_slots in (4, 8, 64):
        table = slots(num_slots)
        values = np.random.default_rng(num_slots).integers(0, 2**64, 10_000, np.uint64)
        dropped, num_keys = _kernel.count_keys(table, "d", num_slots // 2, -1, 0, values, False, -1, None)
        assert num_keys <= num_slots // 2
        assert table[:, 1].sum() == 10_000
        assert num_keys == len(np.unique(values >> np.uint64(dropped))) == np.count_nonzero(table[:, 1])


def test_python_runs_while_the_kernel_counts():
    values = np.random.default_rng(0).normal(size=2**20)
    strings = pa.array([b"%d" % i for i in range(2**16)], pa.binary())
    arguments = np.frombuffer(strings.buffers()[1], np.int32), strings.buffers()[2]
    assert runs_beside_python(lambda: _kernel.count_keys(slots(8192), "d", 4096, -1, 0, values, False, -1, None))
    assert runs_beside_python(lambda: [_kernel.hash_slices(*arguments) for _ in range(20)])
    assert runs_beside_python(lambda: [_kernel.count_slices(*arguments) for _ in range(20)])
