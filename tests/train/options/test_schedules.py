"""The learning rate of every step, and the options that decide it."""

from __future__ import annotations

import math

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import UsageError
from tests.support.examples import draws
from train.optimization.optimizers import PlannedRate
from train.options.config import TrainOptions
from train.options.model_table import Defaults
from train.options.optimizer_options import OptimizerOptions, check_micro_batches, choose_optimizer, describe_optimizer
from train.options.schedules import Schedule, learning_rate_at, plan_schedule

pytestmark = pytest.mark.full

DEFAULTS = Defaults(epochs=5, global_batch_size=256, learning_rate=2e-3, weight_decay=1e-3)
KINDS = ("cosine", "linear", "constant", "step")

schedules = st.builds(
    lambda kind, peak, num_steps, share: plan_schedule(kind, peak, num_steps, int(share * num_steps)),
    st.sampled_from(KINDS),
    st.floats(1e-6, 10),
    st.integers(1, 100_000),
    st.floats(0, 0.99),
)


@given(schedules, st.integers(0, 120_000))
def test_a_learning_rate_stays_between_a_hundredth_of_the_peak_and_the_peak(schedule: Schedule, step: int) -> None:
    assert 0.0099 * schedule.peak <= learning_rate_at(schedule, step) <= schedule.peak * (1 + 1e-12)


@given(schedules)
def test_it_rises_to_its_peak_and_never_again(schedule: Schedule) -> None:
    peak_at = schedule.num_warm_up_steps
    assert learning_rate_at(schedule, peak_at) == pytest.approx(schedule.peak)
    steps = sorted({*np.linspace(0, schedule.num_steps, 50, dtype=int).tolist(), peak_at})
    rates = [learning_rate_at(schedule, s) for s in steps]
    rising = [r for s, r in zip(steps, rates, strict=True) if s <= peak_at]
    falling = [r for s, r in zip(steps, rates, strict=True) if s >= peak_at]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    if schedule.kind in ("cosine", "linear"):
        assert learning_rate_at(schedule, schedule.num_steps) == pytest.approx(schedule.peak / 100)


@settings(deadline=None, max_examples=draws(60))
@given(schedules, st.floats(0, 1.1))
def test_the_graph_follows_the_same_schedule(schedule: Schedule, part: float) -> None:
    step = int(part * schedule.num_steps)
    drops = [schedule.num_warm_up_steps + d * (schedule.num_steps - schedule.num_warm_up_steps) for d in (0.5, 0.75)]
    if schedule.kind == "step" and any(abs(step - d) < 1e-3 * d for d in drops):
        return  # On which side of a drop a step falls is a matter of rounding.
    assert float(PlannedRate(schedule)(tf.constant(step))) == pytest.approx(learning_rate_at(schedule, step), rel=3e-5)


@settings(deadline=None, max_examples=draws(30))
@given(st.integers(2, 50_000), st.floats(1e-6, 1), st.integers(0, 60_000))
def test_cosine_is_that_of_keras(num_steps: int, peak: float, step: int) -> None:
    schedule = plan_schedule("cosine", peak, num_steps, None)
    warm = schedule.num_warm_up_steps
    theirs = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=peak * (0.01 if warm else 1.0),
        decay_steps=num_steps - warm,
        alpha=0.01,
        warmup_target=peak if warm else None,
        warmup_steps=warm,
    )
    assert learning_rate_at(schedule, step) == pytest.approx(float(theirs(step)), rel=3e-5)


def test_a_schedule_survives_serialization() -> None:
    schedule = plan_schedule("step", 0.1, 100, 7)
    assert PlannedRate.from_config(PlannedRate(schedule).get_config()).schedule == schedule


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(UsageError, match="--warmup-steps"):
        plan_schedule("cosine", 0.1, 100, 100)


def options(**typed: object) -> TrainOptions:
    return TrainOptions(dataset="d", label="l", output="o", **typed)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_a_learning_rate_is_scaled_by_the_batch_and_says_so(scaling: str, factor: float) -> None:
    chosen = choose_optimizer(options(scale_learning_rate=scaling, learning_rate=0.01), DEFAULTS, 1024)
    assert math.isclose(chosen.learning_rate, 0.01 * factor)
    text = describe_optimizer(chosen, 25, scaling, 1024, 256)
    assert "warm-up 25 steps" in text
    assert f"learning rate {0.01 * factor:g}" in text
    assert (f"(0.01 x {factor:g}" in text) == (scaling != "none")


def test_every_optimizer_has_its_own_defaults() -> None:
    chosen = {name: choose_optimizer(options(optimizer=name), DEFAULTS, 256) for name in ("adamw", "sgd", "lion")}
    assert (chosen["adamw"].learning_rate, chosen["adamw"].weight_decay) == (2e-3, 1e-3)
    assert (chosen["sgd"].momentum, chosen["sgd"].weight_decay) == (0.9, 0.0)
    product = chosen["lion"].learning_rate * chosen["lion"].weight_decay
    assert product == pytest.approx(chosen["adamw"].learning_rate * chosen["adamw"].weight_decay)
    with pytest.raises(UsageError, match="--momentum is for sgd"):
        choose_optimizer(options(momentum=0.5), DEFAULTS, 256)


def test_the_options_survive_the_record_of_a_run() -> None:
    chosen = choose_optimizer(options(optimizer="sgd", clip_norm=1.0, ema=0.9, prune=0.5, accumulate=3), DEFAULTS, 9)
    assert msgspec.json.decode(msgspec.json.encode(chosen), type=OptimizerOptions) == chosen


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 5000))
def test_micro_batches_that_do_not_divide_name_a_batch_that_does(parts: int, replicas: int, batch: int) -> None:
    if batch % (parts * replicas) == 0:
        check_micro_batches(parts, batch, replicas)
        return
    with pytest.raises(UsageError) as error:
        check_micro_batches(parts, batch, replicas)
    advised = str(error.value.next_step).partition("--global-batch-size ")[2].partition(",")[0]
    for size in map(int, advised.split(" or ")):
        check_micro_batches(parts, size, replicas)
