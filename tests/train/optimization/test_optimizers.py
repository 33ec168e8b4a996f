"""The learning rate of every step, as the graph computes it."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import draws
from train.optimization.updater import PlannedRate
from train.options.optimizer_options import Schedule, plan_schedule

KINDS = ("cosine", "linear", "constant", "step")

schedules = st.builds(
    lambda kind, peak, num_steps, share: plan_schedule(kind, peak, num_steps, int(share * num_steps)),
    st.sampled_from(KINDS),
    st.floats(1e-6, 10),
    st.integers(1, 100_000),
    st.floats(0, 0.99),
)


def rates_at(schedule: Schedule, steps: list[int]) -> np.ndarray:
    return PlannedRate(schedule)(tf.constant(steps)).numpy()


def learning_rate_at(schedule: Schedule, step: int) -> float:
    """Returns the learning rate in float64, step by step."""
    num_warm_up_steps = schedule.num_warm_up_steps
    if step < num_warm_up_steps:
        return schedule.peak * (0.01 + 0.99 * step / num_warm_up_steps)
    done = min(1.0, (step - num_warm_up_steps) / max(1, schedule.num_steps - num_warm_up_steps))
    shares = {
        "cosine": 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2,
        "linear": 1 - 0.99 * done,
        "step": 0.1 ** sum(done >= drop for drop in (0.5, 0.75)),
        "constant": 1.0,
    }
    return schedule.peak * shares[schedule.kind]


@settings(deadline=None)
@given(schedules, st.integers(0, 120_000))
def test_a_learning_rate_stays_between_a_hundredth_of_the_peak_and_the_peak(schedule: Schedule, step: int) -> None:
    (rate,) = rates_at(schedule, [step])
    assert 0.0099 * schedule.peak <= rate <= schedule.peak * (1 + 1e-6)


@settings(deadline=None)
@given(schedules)
def test_it_rises_to_its_peak_and_never_again(schedule: Schedule) -> None:
    peak_at = schedule.num_warm_up_steps
    assert rates_at(schedule, [peak_at]) == pytest.approx(schedule.peak)
    steps = sorted({*np.linspace(0, schedule.num_steps, 50, dtype=int).tolist(), peak_at})
    rises = np.diff(rates_at(schedule, steps)) / schedule.peak
    num_rising = steps.index(peak_at)
    assert (rises[:num_rising] >= 0).all()
    assert (rises[num_rising:] <= 1e-6).all()
    if schedule.kind in ("cosine", "linear"):
        assert rates_at(schedule, [schedule.num_steps]) == pytest.approx(schedule.peak / 100, rel=1e-4)


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
    assert rates_at(schedule, [step]) == pytest.approx(float(theirs(step)), rel=3e-5)


def test_a_schedule_survives_serialization() -> None:
    schedule = plan_schedule("step", 0.1, 100, 7)
    assert PlannedRate.from_config(PlannedRate(schedule).get_config()).schedule == schedule
