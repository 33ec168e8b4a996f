"""Blocks ahead of their steps: each is loaded once, however many steps need it, and dropped after the last."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.reading.prefetch import BlockPrefetcher, Step


class Loaded:
    """What a load gives."""


def lanes(num_lanes, steps_a_block, num_steps):
    """Steps that take from every lane, and change each lane's block after some steps."""
    return [[((lane, step // steps_a_block), 0, 1) for lane in range(num_lanes)] for step in range(num_steps)]


@given(
    num_lanes=st.integers(1, 4),
    steps_a_block=st.integers(1, 5),
    num_steps=st.integers(0, 20),
    max_steps=st.integers(0, 30),
    max_bytes=st.integers(1, 20),
)
def test_every_block_is_loaded_once_and_given_to_each_of_its_steps(
    num_lanes, steps_a_block, num_steps, max_steps, max_bytes
):
    steps, begun = lanes(num_lanes, steps_a_block, num_steps), []

    def begin(epoch, places):
        begun.extend((epoch, place) for place in places)
        return [f"block {place} of epoch {epoch}" for place in places]

    wanted = [Step(epoch, step) for epoch in range(2) for step in range(num_steps)]
    ahead = BlockPrefetcher(
        iter(wanted), lambda at: steps[at.step], begin, lambda *_: 1, max_steps=max_steps, max_bytes=max_bytes
    )
    found = []
    for planned in ahead:
        found.append(planned.step)
        epoch, step = planned.step
        assert planned.blocks == [f"block {place} of epoch {epoch}" for place, _, _ in steps[step]]
    assert found == wanted
    assert sorted(begun) == sorted({(epoch, place) for epoch in range(2) for rows in steps for place, _, _ in rows})


@pytest.mark.full
def test_a_block_is_dropped_when_no_step_needs_it_any_more():
    steps, alive = lanes(3, 4, 40), weakref.WeakSet()

    def begin(epoch, places):
        blocks = [Loaded() for _ in places]
        alive.update(blocks)
        return blocks

    wanted = iter([Step(0, step) for step in range(40)])
    ahead = BlockPrefetcher(wanted, lambda at: steps[at.step], begin, lambda *_: 1, max_steps=0, max_bytes=1)
    gc.collect()
    # What other tests left here need not be looked through forty times.
    gc.freeze()
    try:
        for planned in ahead:
            del planned
            gc.collect()
            assert len(alive) <= 6
    finally:
        gc.unfreeze()
