"""The order of batches of similar length: the same bucket on every worker, and every example once."""

from collections import Counter
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.reading.bucket_order import BucketedOrder
from shardkit.reading.length_buckets import (
    MAX_WASTE,
    NO_BUCKET,
    BucketOrder,
    Lengths,
    bucket_num_rows,
    choose_boundaries,
    find_buckets,
    goes_up,
    num_batches,
)
from shardkit.reading.order import OrderOptions, Worker
from tests.support.examples import draws

ALONE = Worker()
PINNED = [
    [(0, 4), (1, 1)],
    [(0, 3), (1, 2), (2, 1), (2, 3)],
    [(0, 1), (2, 5)],
    [(0, 0), (1, 0), (2, 0), (2, 4)],
    [(0, 2), (2, 2)],
]


@st.composite
def epochs(draw, has_one_size=None):
    """Blocks of examples in buckets, and an order over them, whose batches may all have the same rows."""
    num_buckets = draw(st.integers(1, 5))
    num_groups, num_turns = draw(st.sampled_from([1, 2, 3, 4, 6])), draw(st.sampled_from([1, 1, 2, 3]))
    sizes = np.array(draw(st.lists(st.integers(0, 60), max_size=25)), np.int64)
    codes = draw(st.lists(st.sampled_from([*range(num_buckets), NO_BUCKET]), min_size=1, max_size=20))
    # Runs of one bucket, as in data that is sorted by length, or none.
    repeats = draw(st.sampled_from([1, 7, 100]))
    bucket_of = np.resize(np.repeat(np.array(codes, np.uint8), repeats), sizes.sum())
    num_rows = tuple(num_groups * draw(st.integers(1, 6)) for _ in range(num_buckets))
    if has_one_size is None:
        has_one_size = draw(st.booleans())
    global_batch_size = num_groups * draw(st.integers(1, 6)) if has_one_size else 0
    if global_batch_size:
        num_rows = (global_batch_size,) * num_buckets
    options = OrderOptions(
        global_batch_size=global_batch_size,
        seed=draw(st.integers(0, 2**64)),
        shuffle=draw(st.booleans()),
        remainder=draw(st.sampled_from(["drop", "pad"])),
        num_lanes=num_groups * num_turns * draw(st.integers(1, 5)),
        num_turns=num_turns,
        buckets=BucketOrder(
            feature="tokens",
            tokens_per_batch=None if global_batch_size else 1,
            boundaries=tuple(range(1, num_buckets + 1)),
            too_long="drop",
            num_groups=num_groups,
        ),
    )
    return sizes, bucket_of, num_rows, options, draw(st.integers(0, 5))


def batch(order, step, worker=ALONE):
    """The examples of a batch as (stored block, stored row)."""
    found = []
    for part, start, stop in order.rows(step, worker):
        in_block = order.part_rows(part.place)[part.bucket]
        assert 0 <= start < stop <= len(in_block)
        stored = order.sequence.block_order(part.place)
        rows = in_block if stored is None else stored[in_block]
        found += [(int(order.sequence.blocks[part.place]), row) for row in rows[start:stop].tolist()]
    return found


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


def workers(num_workers):
    return [Worker(index=i, num_workers=num_workers) for i in range(num_workers)]


@given(epochs())
@settings(deadline=None, max_examples=draws(60))
def test_every_example_comes_once_but_for_less_than_a_batch(case):
    sizes, bucket_of, num_rows, options, _ = case
    order = BucketedOrder(*case)
    firsts = np.cumsum(sizes) - sizes
    seen = Counter()
    num_mixed = 0
    for step in range(order.num_steps):
        found = batch(order, step)
        buckets = {bucket_of[firsts[block] + row] for block, row in found}
        assert max(buckets) <= order.buckets[step]
        num_mixed += buckets != {order.buckets[step]}
        assert 0 < len(found) <= order.num_rows(step) == num_rows[order.buckets[step]]
        assert options.remainder == "pad" or len(found) == order.num_rows(step)
        seen.update(found)
    assert set(seen.values()) <= {1}
    there = np.bincount(bucket_of, minlength=256)[: len(num_rows)]
    ups = goes_up(tuple(there.tolist()), num_rows, always=options.global_batch_size > 0)
    num_left = 0 if options.remainder == "pad" else there.sum() - len(seen)
    assert num_left <= sum(size - 1 for size, is_up in zip(num_rows, ups, strict=True) if not is_up)
    # What goes up makes eight batches at most, the last of them with rows of the bucket itself.
    assert num_mixed <= 8 * len(num_rows)
    if options.remainder == "pad":
        assert len(seen) == there.sum()


@given(epochs())
@settings(deadline=None, max_examples=draws(60))
def test_the_number_of_batches_is_that_of_the_data(case):
    _, bucket_of, num_rows, options, _ = case
    counts = tuple(int((bucket_of == bucket).sum()) for bucket in range(len(num_rows)))
    pads, size = options.remainder == "pad", options.global_batch_size
    num_steps = BucketedOrder(*case).num_steps
    assert num_steps == num_batches(counts, num_rows, pads=pads, always_up=size > 0)
    if size:
        assert num_steps == (-(-sum(counts) // size) if pads else sum(counts) // size)


@given(epochs(has_one_size=True))
@settings(deadline=None, max_examples=draws(60))
def test_batches_of_one_size_leave_out_the_end_of_the_sequence_whatever_its_length(case):
    sizes, bucket_of, _, options, _ = case
    order = BucketedOrder(*case)
    firsts = np.cumsum(sizes) - sizes
    sequence = []
    for place, block in enumerate(order.sequence.blocks.tolist()):
        rows = order.sequence.block_order(place)
        sequence += [(block, row) for row in (range(sizes[block]) if rows is None else rows.tolist())]
    used = [(block, row) for block, row in sequence if bucket_of[firsts[block] + row] != NO_BUCKET]
    seen = {example for step in range(order.num_steps) for example in batch(order, step)}
    assert seen == set(used[: order.num_steps * options.global_batch_size])


@given(epochs())
@settings(deadline=None, max_examples=draws(60))
def test_any_number_of_workers_gets_the_same_global_batches(case):
    order = BucketedOrder(*case)
    for step in range(order.num_steps):
        for num_workers in divisors(case[3].buckets.num_groups):
            parts = [batch(order, step, worker) for worker in workers(num_workers)]
            assert list(chain.from_iterable(parts)) == batch(order, step)
            if len(batch(order, step)) == order.num_rows(step):
                assert len(set(map(len, parts))) == 1


@given(epochs(), st.data())
@settings(deadline=None, max_examples=draws(60))
def test_a_part_is_said_to_be_the_last_when_no_later_step_of_the_reader_needs_it(case, data):
    order, options = BucketedOrder(*case), case[3]
    num_workers = data.draw(st.sampled_from(divisors(options.buckets.num_groups)))
    worker = Worker(index=data.draw(st.integers(0, num_workers - 1)), num_workers=num_workers)
    turn = data.draw(st.integers(0, options.num_turns - 1))
    last_steps = order.last_steps(worker, turn)
    done = set()
    for step in range(turn, order.num_steps, options.num_turns):
        parts = {part for part, _, _ in order.rows(step, worker, last_steps)}
        assert not {(p.place, p.bucket) for p in parts} & done
        done |= {(p.place, p.bucket) for p in parts if p.is_last}
    needed = {(int(p), int(b)) for p, b in np.argwhere(last_steps >= 0)}
    assert done == needed


def test_the_order_is_pinned():
    """A release that gives another order repeats and omits examples of runs that it resumes."""
    order = BucketOrder(feature="t", tokens_per_batch=8, boundaries=(1, 2), too_long="error", num_groups=2)
    options = OrderOptions(global_batch_size=0, seed=11, num_lanes=4, buckets=order)
    bucket_of = np.array([0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1], np.uint8)
    found = BucketedOrder(np.array([5, 3, 6]), bucket_of, (4, 2), options, 2)
    assert [batch(found, step) for step in range(found.num_steps)] == PINNED


@given(st.dictionaries(st.integers(0, 40), st.integers(1, 50), min_size=1, max_size=9))
@settings(deadline=None)
def test_chosen_boundaries_are_the_best_of_the_fewest_that_do(counts):
    values = np.array(sorted(counts))
    lengths = Lengths(values, np.array([counts[value] for value in values.tolist()]))
    chosen = choose_boundaries(lengths)
    num_tokens = int((lengths.values * lengths.counts).sum())

    def num_padded(boundaries):
        return sum(counts[v] * next(b for b in boundaries if v <= b) for v in counts)

    def least_padded(number):
        return min(num_padded((*some, ends[-1])) for some in combinations(ends[:-1], number - 1))

    ends = [value for value in values.tolist() if value > 0]
    if not ends:
        assert chosen == (1,)
        return
    assert num_padded(chosen) == least_padded(len(chosen))
    # Examples without any token are padding in whichever bucket.
    assert num_tokens >= (1 - MAX_WASTE) * num_padded(chosen) or len(chosen) == len(ends)
    assert len(chosen) == 1 or num_tokens < (1 - MAX_WASTE) * least_padded(len(chosen) - 1)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3])
def test_padding_of_zipf_lengths_is_under_a_tenth(exponent):
    weights = 1 / np.arange(1, 513) ** exponent
    lengths = np.random.default_rng(0).choice(np.arange(1, 513), 100_000, p=weights / weights.sum())
    chosen = choose_boundaries(Lengths(*np.unique(lengths, return_counts=True)))
    padded = np.array(chosen)[find_buckets(lengths, chosen)]
    assert 1 - lengths.sum() / padded.sum() < 0.1
    assert len(chosen) <= 24
    assert min(bucket_num_rows(chosen, 32_768, 8)) == 64
