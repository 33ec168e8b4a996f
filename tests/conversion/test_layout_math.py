"""The arithmetic of the layout: every record in exactly one shard, shards even, nothing empty."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.conversion.layout_math import (
    MAX_GROUP_BYTES,
    MAX_GROUPS,
    MAX_THREADS,
    MIN_GROUP_BYTES,
    KeyRangeTotals,
    block_bounds,
    check_num_shards,
    choose_group_bytes,
    count_shards,
    deal_workers,
    describe_shard_size,
    even_cuts,
    exact_cuts,
    form_groups,
    needs_exact_cuts,
    shard_file_name,
    shard_of_starts,
)
from shardkit.conversion.option_forms import SplitShare, parse_shares
from shardkit.errors import UsageError

record_sizes = st.lists(st.integers(17, 5000), min_size=1, max_size=300).map(lambda s: np.array(s, dtype=np.int64))


def shard_sizes(sizes, cuts):
    starts = np.cumsum(sizes) - sizes
    shards = shard_of_starts(starts, cuts)
    assert np.all(np.diff(shards) >= 0)
    return np.bincount(shards, weights=sizes, minlength=len(cuts) - 1).astype(int)


@given(record_sizes, st.integers(1, 40))
def test_even_cuts_put_each_record_into_one_shard_less_than_one_record_from_equal(sizes, num_shards):
    total = int(sizes.sum())
    found = shard_sizes(sizes, even_cuts(total, num_shards))
    assert found.sum() == total
    assert np.all(np.abs(found - total / num_shards) < sizes.max() + 1)


@given(record_sizes, st.integers(1, 40))
def test_no_shard_is_empty_when_even_cuts_are_declared_enough(sizes, num_shards):
    total = int(sizes.sum())
    if not needs_exact_cuts(total, num_shards, int(sizes.max())):
        assert np.all(shard_sizes(sizes, even_cuts(total, num_shards)) > 0)


@given(record_sizes, st.data())
def test_exact_cuts_give_every_shard_a_record(sizes, data):
    num_shards = data.draw(st.integers(1, len(sizes)))
    total = int(sizes.sum())
    cuts = exact_cuts(np.cumsum(sizes) - sizes, total, num_shards)
    assert len(cuts) == num_shards + 1
    assert list(cuts) == sorted(set(cuts))
    found = shard_sizes(sizes, cuts)
    assert np.all(found > 0)
    assert found.sum() == total


@given(
    st.dictionaries(st.integers(0, 4095), st.integers(1, 10_000), min_size=1, max_size=200),
    st.integers(1, 50_000),
)
def test_groups_cover_all_buckets_in_order_and_keep_the_limit(key_ranges, group_bytes):
    numbers = np.array(sorted(key_ranges), dtype=np.int64)
    sizes = np.array([key_ranges[n] for n in sorted(key_ranges)], dtype=np.int64)
    totals = KeyRangeTotals(key_ranges=numbers, num_examples=np.ones_like(sizes), num_bytes=sizes, max_record_bytes=17)
    groups = form_groups(totals, group_bytes)
    covered = [n for g in groups for n in numbers if g.first_key_range <= n < g.stop_key_range]
    assert covered == numbers.tolist()
    assert sum(g.num_bytes for g in groups) == sizes.sum()
    assert sum(g.num_examples for g in groups) == len(sizes)
    for before, after in itertools.pairwise(groups):
        assert after.first_byte == before.first_byte + before.num_bytes
    for group in groups:
        assert group.num_bytes <= group_bytes or group.num_examples == 1


@given(st.integers(0, 10**13), st.booleans())
def test_a_group_is_a_32nd_within_what_memory_and_overhead_allow(num_bytes, shuffle):
    group_bytes = choose_group_bytes(num_bytes, shuffle=shuffle)
    if shuffle and num_bytes > MAX_GROUPS * MAX_GROUP_BYTES:
        assert group_bytes == -(-num_bytes // MAX_GROUPS)
        return
    assert MIN_GROUP_BYTES <= group_bytes <= MAX_GROUP_BYTES
    if MIN_GROUP_BYTES < group_bytes < MAX_GROUP_BYTES:
        assert group_bytes == num_bytes // 32


@given(st.integers(1, 1024))
def test_as_many_pieces_at_the_same_time_as_workers_were_asked_for(num_workers):
    num_processes, num_threads = deal_workers(num_workers)
    assert num_processes * num_threads == num_workers
    assert 1 <= num_threads <= MAX_THREADS
    if num_workers <= MAX_THREADS:
        assert num_processes == 1


@given(
    st.integers(1, 10**7),
    st.integers(17, 10**6),
    st.floats(0.01, 1.01),
    st.integers(1, 10**9),
)
def test_shard_count_is_the_nearest_that_leaves_no_shard_empty(num_examples, max_record, fraction, shard_bytes):
    num_bytes = num_examples * max_record
    count = count_shards(
        num_examples=num_examples,
        num_bytes=num_bytes,
        compressed_fraction=fraction,
        shard_bytes=shard_bytes,
        max_record_bytes=max_record,
    )
    assert 1 <= count <= num_examples
    wanted = num_bytes * fraction / shard_bytes
    if 10 <= wanted <= num_examples and wanted <= 10**6:
        # From ten shards on, rounding to a whole number moves the size by at most 5 %.
        assert abs(num_bytes * fraction / count / shard_bytes - 1) <= 0.053


def test_a_missed_shard_size_is_said_and_a_met_one_is_not():
    met = describe_shard_size("train", num_bytes=1000, num_shards=10, compressed_fraction=0.5, shard_bytes=51)
    small = describe_shard_size("train", num_bytes=1000, num_shards=1, compressed_fraction=0.5, shard_bytes=4096)
    assert met is None
    assert small == "split 'train': 500 B is too little data for 4.00 KiB; it becomes 1 shard of 500 B"


@given(record_sizes, st.integers(1, 20_000))
def test_blocks_cover_all_records_and_none_is_empty(sizes, block_bytes):
    bounds = block_bounds(sizes, block_bytes)
    assert [i for a, b in bounds for i in range(a, b)] == list(range(len(sizes)))
    assert all(b > a for a, b in bounds)
    for a, b in bounds:
        assert sizes[a:b].sum() < block_bytes + sizes[a:b].max()


def test_shares_default_to_one_split_and_keep_their_order():
    assert [(s.name, s.fraction) for s in parse_shares([])] == [("train", 1.0)]
    shares = (SplitShare(name="test", fraction=0.1), SplitShare(name="train", fraction=0.9))
    assert parse_shares(shares) == shares


@pytest.mark.parametrize(
    "shares",
    [
        [("train", 0.9)],
        [("train", 0.9), ("test", 0.2)],
        [("train", 0.5), ("train", 0.5)],
        [("../x", 1.0)],
        [("a b", 1.0)],
        [("", 1.0)],
        [("train", 0.0), ("test", 1.0)],
        [("train", -1.0), ("test", 2.0)],
        [("train", float("nan"))],
    ],
)
def test_shares_that_make_no_sense_are_refused(shares):
    with pytest.raises(UsageError):
        parse_shares([SplitShare(name=name, fraction=fraction) for name, fraction in shares])


def test_more_shards_than_examples_are_refused_with_the_number_that_fits():
    with pytest.raises(UsageError, match="--num-shards 3 or less"):
        check_num_shards("test", 4, 3)


def test_shard_names_sort_like_their_indices():
    assert shard_file_name("train", 3, 16, ".tfrecord.gz") == "train-00003-of-00016.tfrecord.gz"
    names = [shard_file_name("train", i, 12_000, ".tfrecord") for i in range(12_000)]
    assert names == sorted(names)
