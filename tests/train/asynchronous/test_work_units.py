"""Units cover every batch once, whatever their size is, and end where all workers have to wait for each other."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamageError
from train.asynchronous.input import UnitSource, error_of_worker
from train.asynchronous.work_units import (
    MAX_STEPS_A_UNIT,
    MAX_UNIT_S,
    bounded_size,
    next_stop,
    plan_work_units,
    steps_a_unit,
)

pytestmark = pytest.mark.full

STEPS = st.integers(1, 5_000)


@given(st.integers(0, 1_000), st.integers(0, 1_000), st.integers(1, 300))
def test_units_cover_each_batch_once_in_order(first, num_steps, size) -> None:
    units = list(plan_work_units(first, first + num_steps, lambda: size))
    assert [step for unit in units for step in range(unit.first, unit.end)] == list(range(first, first + num_steps))
    assert all(1 <= unit.size <= size for unit in units)


@given(STEPS, st.integers(1, 64))
def test_all_workers_have_units_if_there_are_as_many_steps(num_steps, num_workers) -> None:
    size = steps_a_unit(num_steps, num_workers)
    assert 1 <= size <= MAX_STEPS_A_UNIT
    assert len(list(plan_work_units(0, num_steps, lambda: size))) >= min(num_steps, num_workers)


@given(st.integers(1, 256), st.none() | st.floats(0, 1e6))
def test_no_unit_takes_long_once_it_is_known_how_long_a_step_takes(size, step_s) -> None:
    bounded = bounded_size(size, step_s)
    assert 1 <= bounded <= size
    assert bounded == 1 or bounded * step_s <= MAX_UNIT_S


@given(STEPS, st.none() | st.integers(1, 100), st.integers(1, 5))
def test_all_wait_at_each_checkpoint_and_at_the_end_of_each_epoch(steps_per_epoch, every, num_epochs) -> None:
    stops = [0]
    while stops[-1] < num_epochs * steps_per_epoch:
        stops.append(next_stop(stops[-1], steps_per_epoch, every))
    assert all(before < after for before, after in pairwise(stops))
    assert set(stops) >= {steps_per_epoch * epoch for epoch in range(num_epochs + 1)}
    assert {s for s in range(stops[-1]) if every is not None and s % every == 0} <= set(stops)


def test_what_one_worker_takes_is_read_on_and_sought_where_another_one_was_between() -> None:
    begun = []

    def begin(step: int):
        begun.append(step)
        return (number for number in range(step, 9))

    given_away = []
    source = UnitSource(lambda step: map(tf.constant, begin(step)), nullcontext, given_away.append)
    for step in (0, 1, 4, 5, 0):
        _, batch = source(np.int64(step))
        assert batch == step
    assert begun == [0, 4, 0]
    assert given_away == [0, 1, 4, 5, 0]
    with pytest.raises(ValueError, match="fewer examples") as raised:
        source(np.int64(9))
    assert isinstance(error_of_worker(raised.value), DamageError)


def test_an_error_is_the_same_on_the_other_side() -> None:
    error = BadInputError("an image cannot be decoded", where="a.tfrecord, record 3", why='"oops": é', next_step="Go")

    def fail(step: int):
        raise error

    with pytest.raises(ValueError, match="oops") as raised:
        UnitSource(fail, nullcontext)(np.int64(0))
    received = error_of_worker(RuntimeError(f"{{function}} {raised.value}\n\t [[node PyFunc]]"))
    assert received is not None
    assert received.to_dict() == error.to_dict()
    assert error_of_worker(RuntimeError("another one")) is None
