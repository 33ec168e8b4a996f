"""When workers average what they learned, and what does not go with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from train.distribution.launch import plan_launch
from train.options.config import TrainOptions
from train.options.step_plan import TrainPlan, choose_lanes
from train.options.strategy_checks import check_one_replica, is_sync_due, num_syncs


@given(steps_per_epoch=st.integers(1, 400), every=st.integers(1, 50), epoch=st.integers(0, 5))
def test_an_epoch_ends_with_a_sync_and_has_no_more_than_its_share(steps_per_epoch: int, every: int, epoch: int) -> None:
    steps = range(epoch * steps_per_epoch + 1, (epoch + 1) * steps_per_epoch + 1)
    syncs = [step for step in steps if is_sync_due(step, steps_per_epoch, every)]
    assert syncs[-1] == steps[-1]
    assert len(syncs) == num_syncs(steps_per_epoch, every)
    assert len(syncs) == 1 or len(syncs) * every <= steps_per_epoch
    gaps = [after - before for before, after in zip([steps[0] - 1, *syncs], syncs, strict=False)]
    assert max(gaps) - min(gaps) <= 1
    assert min(gaps) >= min(every, steps_per_epoch)


@given(num_syncs_=st.integers(1, 50), every=st.integers(1, 50), step=st.integers(1, 10_000))
def test_where_it_divides_an_epoch_it_is_every_so_many_steps(num_syncs_: int, every: int, step: int) -> None:
    assert is_sync_due(step, num_syncs_ * every, every) == (step % every == 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers_per_host": 1}, "needs several workers"),
        ({"workers_per_host": 2, "prune": 0.5}, "--prune"),
        ({"workers_per_host": 2, "reduce_in": "bfloat16"}, "--reduce-in bfloat16"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_starts(settings, words: str) -> None:
    options = TrainOptions(dataset="d", label="y", output="o", sync_every=8, **settings)
    with pytest.raises(UsageError, match=words):
        plan_launch(options, ("run",), {})


def test_workers_of_several_devices_are_refused() -> None:
    check_one_replica(2, 2)
    with pytest.raises(UsageError, match="one device each"):
        check_one_replica(4, 2)


@given(steps_per_epoch=st.integers(1, 200), every=st.one_of(st.none(), st.integers(1, 50)))
def test_communication_counts_as_often_as_workers_meet(steps_per_epoch: int, every: int | None) -> None:
    plan = TrainPlan(
        num_train_examples=steps_per_epoch * 4, num_validation_examples=0, num_replicas=2, num_epochs=1,
        global_batch_size=4, num_workers=2, num_lanes=choose_lanes(None, 2), sync_every=every,
    )  # fmt: skip
    met = sum(plan.is_sync_due(step) for step in range(1, steps_per_epoch + 1))
    assert plan.syncs_a_step == met / steps_per_epoch
