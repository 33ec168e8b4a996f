"""The arithmetic of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from train.options.step_plan import TrainPlan, choose_batch_size, choose_lanes, worker_counts

sizes = st.integers(1, 10_000)


def plan(num_train: int, batch: int | None, replicas: int = 1, num_validation: int = 0, epochs: int = 3) -> TrainPlan:
    return TrainPlan(
        num_train_examples=num_train,
        num_validation_examples=num_validation,
        num_replicas=replicas,
        num_epochs=epochs,
        global_batch_size=choose_batch_size(batch, 256, num_train, replicas),
    )


@given(per_replica=st.integers(1, 64), replicas=st.integers(1, 8), extra=sizes, num_validation=sizes)
def test_every_replica_gets_equal_full_steps(per_replica: int, replicas: int, extra: int, num_validation: int) -> None:
    batch = per_replica * replicas
    made = plan(batch + extra, batch, replicas, num_validation)
    assert made.replica_batch_size * replicas == batch
    assert made.steps_per_epoch * batch + made.num_dropped == made.num_train_examples
    assert 0 <= made.num_dropped < batch
    assert made.num_steps == made.steps_per_epoch * 3
    assert 0 <= made.num_validation_steps * batch - num_validation < batch


@given(st.integers(2, 50), st.integers(0, 500))
def test_a_step_stands_in_one_epoch(num_batches: int, step: int) -> None:
    made = plan(num_batches * 4 + 3, 4, epochs=20)
    epoch, in_epoch = made.position(step)
    assert epoch * made.steps_per_epoch + in_epoch == step
    assert 0 <= in_epoch < made.steps_per_epoch


@given(sizes, st.integers(1, 8))
def test_the_default_batch_fits_split_and_replicas(num_train: int, replicas: int) -> None:
    if num_train < replicas:
        with pytest.raises(UsageError, match="fewer replicas"):
            plan(num_train, None, replicas)
        return
    made = plan(num_train, None, replicas)
    assert made.global_batch_size % replicas == 0
    assert made.steps_per_epoch >= 1
    assert made.global_batch_size <= max(256, replicas)


@pytest.mark.parametrize(
    ("batch", "replicas", "advice"),
    [(100, 8, "96 or 104"), (3, 4, "--global-batch-size 4"), (7, 2, "6 or 8")],
)
def test_a_batch_that_does_not_divide_names_the_nearest_sizes(batch: int, replicas: int, advice: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(1000, batch, replicas)
    assert advice in str(error.value)


def test_a_split_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="holds 50 examples, less than one global batch of 64"):
        plan(50, 64)


@given(st.integers(1, 12), st.integers(1, 50))
def test_workers_that_are_fewer_share_batches_and_lanes_evenly(num_workers: int, factor: int) -> None:
    sizes = {"num_train_examples": 10_000, "num_validation_examples": 0, "num_epochs": 1}
    plan = TrainPlan(
        **sizes,
        num_replicas=num_workers,
        global_batch_size=num_workers * factor,
        num_workers=num_workers,
        num_lanes=choose_lanes(None, num_workers),
    )
    counts = worker_counts(plan)
    assert {1, num_workers} <= set(counts)
    for count in counts:
        batch = choose_batch_size(plan.global_batch_size, 1, 10_000, count)
        lanes = choose_lanes(plan.num_lanes, count)
        assert (batch, lanes) == (plan.global_batch_size, plan.num_lanes)
        same = TrainPlan(
            **sizes, num_replicas=count, global_batch_size=batch, num_workers=count, num_lanes=plan.num_lanes
        )
        assert same.steps_per_epoch == plan.steps_per_epoch


def test_workers_that_cannot_share_the_lanes_are_refused() -> None:
    with pytest.raises(UsageError, match="5 workers cannot share the 48 lanes"):
        choose_lanes(48, 5)
