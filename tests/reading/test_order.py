"""The order of an epoch: every example once, the same batches and steps for any number of workers, found by a seek."""

import math
from collections import Counter
from itertools import chain

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.reading.order import EpochOrder, OrderOptions, Worker, check_options, choose_num_lanes

ALONE = Worker()
PINNED = [[(0, 3), (0, 4), (2, 2), (2, 3)], [(0, 1), (0, 2), (2, 1), (2, 0)], [(0, 0), (1, 0), (1, 2), (1, 1)]]


@st.composite
def epochs(draw):
    """Blocks, an order over them, and a number of workers that divides it."""
    num_workers, num_turns = draw(st.integers(1, 8)), draw(st.sampled_from([1, 1, 2, 3]))
    options = OrderOptions(
        global_batch_size=num_workers * draw(st.integers(1, 12)),
        seed=draw(st.integers(-(2**70), 2**70)),
        shuffle=draw(st.booleans()),
        remainder=draw(st.sampled_from(["drop", "pad"])),
        num_lanes=num_workers * num_turns * draw(st.integers(1, 5)),
        num_turns=num_turns,
    )
    sizes = draw(st.lists(st.integers(0, 60), max_size=40))
    return np.array(sizes, np.int64), options, draw(st.integers(0, 5)), num_workers


def batch(order, step, worker=ALONE):
    """The examples of a batch as (stored block, stored row)."""
    found = []
    for place, start, stop in order.rows(step, worker):
        stored = order.block_order(place)
        rows = range(start, stop) if stored is None else stored[start:stop].tolist()
        found += [(int(order.blocks[place]), row) for row in rows]
    return found


def workers(num_workers):
    return [Worker(index=i, num_workers=num_workers) for i in range(num_workers)]


@given(epochs())
def test_every_example_comes_once_but_for_a_dropped_rest(case):
    sizes, options, epoch, _ = case
    order = EpochOrder(sizes, options, epoch)
    seen = [example for step in range(order.num_steps) for example in batch(order, step)]
    num_examples = int(sizes.sum())
    rest = num_examples % options.global_batch_size if options.remainder == "drop" else 0
    assert len(seen) == len(set(seen)) == num_examples - rest
    assert set(seen) <= {(block, row) for block, size in enumerate(sizes) for row in range(size)}


@given(epochs())
def test_any_number_of_workers_gets_the_same_global_batches_in_equal_steps(case):
    sizes, options, epoch, num_workers = case
    order = EpochOrder(sizes, options, epoch)
    for step in range(order.num_steps):
        parts = [batch(order, step, worker) for worker in workers(num_workers)]
        assert list(chain.from_iterable(parts)) == batch(order, step)
        if step < int(sizes.sum()) // options.global_batch_size:
            assert {len(part) for part in parts} == {options.global_batch_size // num_workers}


@given(epochs())
def test_two_processes_of_a_shuffled_epoch_read_the_same_block_only_where_their_lanes_meet(case):
    sizes, options, epoch, num_workers = case
    order = EpochOrder(sizes, options, epoch)
    if not options.shuffle or not order.num_steps:
        return
    places = [
        {place for step in range(turn, order.num_steps, options.num_turns) for place, _, _ in order.rows(step, worker)}
        for worker in workers(num_workers)
        for turn in range(options.num_turns)
    ]
    num_read = sum(map(len, places))
    assert num_read <= len(set().union(*places)) + num_workers * options.num_turns - 1


@given(epochs())
def test_what_meets_within_a_block_meets_at_the_same_time(case):
    """A block that is let go when a step does not need it is loaded once, whatever part of it which lane reads."""
    sizes, options, epoch, num_workers = case
    order = EpochOrder(
        sizes,
        msgspec.structs.replace(
            options, num_lanes=options.num_lanes // options.num_turns, num_turns=1, remainder="drop"
        ),
        epoch,
    )
    for worker in workers(num_workers):
        loaded, held = Counter(), set()
        for step in range(order.num_steps):
            needed = {place for place, _, _ in order.rows(step, worker)}
            loaded.update(needed - held)
            held = needed
        assert set(loaded.values()) <= {1}


@given(epochs())
def test_without_shuffling_the_order_is_the_stored_one(case):
    sizes, options, epoch, _ = case
    order = EpochOrder(sizes, OrderOptions(global_batch_size=options.global_batch_size, shuffle=False), epoch)
    seen = [example for step in range(order.num_steps) for example in batch(order, step)]
    stored = [(block, row) for block, size in enumerate(sizes) for row in range(size)]
    assert seen == stored[: len(seen)]


def test_seed_and_epoch_change_the_order_and_nothing_else_does():
    sizes = np.full(50, 20)

    def order(seed, epoch):
        order = EpochOrder(sizes, OrderOptions(global_batch_size=100, seed=seed), epoch)
        return tuple(example for step in range(order.num_steps) for example in batch(order, step))

    assert order(1, 0) == order(1, 0)
    assert len({order(seed, epoch) for seed in (0, 1, 2**64 - 1) for epoch in (0, 1, 2)}) == 9
    rows = {tuple(row for block, row in order(1, epoch) if block == 7) for epoch in range(20)}
    assert len(rows) == 20


def test_the_order_is_pinned():
    """A release that gives another order repeats and omits examples of runs that it resumes."""
    order = EpochOrder(np.array([5, 3, 4]), OrderOptions(global_batch_size=4, seed=11, num_lanes=2), 2)
    assert [batch(order, step) for step in range(order.num_steps)] == PINNED


@pytest.mark.full
def test_every_position_of_a_row_in_the_epoch_is_as_likely():
    sizes, counts = np.full(8, 4), Counter()
    for epoch in range(4000):
        order = EpochOrder(sizes, OrderOptions(global_batch_size=4, num_lanes=4), epoch)
        for step in range(order.num_steps):
            counts[step] += (3, 2) in batch(order, step)
    expected = 4000 / 8
    chi_square = sum((counts[step] - expected) ** 2 / expected for step in range(8))
    assert chi_square < 24.3  # 7 degrees of freedom, one in a thousand.


def test_data_sorted_by_class_is_mixed():
    """Ten classes in a row, as `convert --no-shuffle` leaves them: a batch holds them all."""
    num_blocks, rows_a_block = 400, 250
    order = EpochOrder(np.full(num_blocks, rows_a_block), OrderOptions(global_batch_size=1000, num_lanes=96), 0)
    counts = np.zeros((order.num_steps, 10))
    for step in range(order.num_steps):
        for place, start, stop in order.rows(step, ALONE):
            counts[step, order.blocks[place] * 10 // num_blocks] += stop - start
    assert (counts > 0).sum(axis=1).mean() > 9.98
    # 96 blocks give 10 or 11 rows each, so the variance is that of 96 draws, not of 1,000.
    expected = 100
    chi_square = ((counts - expected) ** 2 / expected).sum(axis=1) / (1000 / 96)
    assert 6 < chi_square.mean() < 12  # 9 degrees of freedom.


def test_a_seek_needs_nothing_of_what_comes_before():
    sizes = np.random.default_rng(0).integers(1, 4000, 100_000)
    order = EpochOrder(sizes, OrderOptions(global_batch_size=960), 3)
    step = order.num_steps - 7
    assert len(order.rows(step, ALONE)) <= 2 * 48
    assert len(batch(order, step)) == 960


@pytest.mark.parametrize("num_workers", range(1, 70))
def test_the_default_lanes_suit_any_number_of_workers(num_workers):
    options = OrderOptions(global_batch_size=num_workers, num_lanes=choose_num_lanes(num_workers))
    check_options(options, Worker(index=num_workers - 1, num_workers=num_workers))
    assert options.num_lanes >= 48
    assert (options.num_lanes == 48) == (math.gcd(48, num_workers) == num_workers)


@pytest.mark.parametrize(
    ("options", "worker", "words"),
    [
        ({"global_batch_size": 0}, {}, "global_batch_size is 0"),
        ({"global_batch_size": 8, "num_lanes": 0}, {}, "num_lanes is 0"),
        ({"global_batch_size": 8}, {"num_workers": 0}, "num_workers is 0"),
        ({"global_batch_size": 8}, {"index": 2, "num_workers": 2}, "from 0 to 1"),
        ({"global_batch_size": 10}, {"num_workers": 4}, "8 or 12"),
        ({"global_batch_size": 2}, {"num_workers": 4}, "Use 4"),
        ({"global_batch_size": 10}, {"num_workers": 5}, "num_lanes=45 or 50"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_some_that_do(options, worker, words):
    with pytest.raises(UsageError) as refused:
        check_options(OrderOptions(**options), Worker(**worker))
    assert words in str(refused.value)
    assert refused.value.next_step
