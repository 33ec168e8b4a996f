"""Keras optimizers and their learning rate, made from `OptimizerOptions`."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from train.options.optimizer_options import DROP_FACTOR, DROPS, FINAL_SHARE, FIRST_SHARE, OptimizerOptions, Schedule


class PlannedRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of every step, as a graph."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the learning rate of the update that follows `step` updates."""
        plan = self.schedule
        now = tf.cast(step, tf.float32)
        num_left = max(1, plan.num_steps - plan.num_warm_up_steps)
        done = tf.clip_by_value((now - plan.num_warm_up_steps) / num_left, 0.0, 1.0)
        if plan.kind == "cosine":
            share = FINAL_SHARE + (1 - FINAL_SHARE) * (1 + tf.cos(math.pi * done)) / 2
        elif plan.kind == "linear":
            share = 1 - (1 - FINAL_SHARE) * done
        elif plan.kind == "step":
            share = tf.add_n([tf.cast(done >= drop, tf.float32) for drop in DROPS])
            share = tf.pow(DROP_FACTOR, share)
        else:
            share = tf.ones_like(done)
        if plan.num_warm_up_steps:
            warm = FIRST_SHARE + (1 - FIRST_SHARE) * now / plan.num_warm_up_steps
            share = tf.where(now < plan.num_warm_up_steps, warm, share)
        return plan.peak * share

    def get_config(self) -> dict[str, Any]:
        """Returns the values that the schedule was made from."""
        plan = self.schedule
        return {
            "kind": plan.kind,
            "peak": plan.peak,
            "num_steps": plan.num_steps,
            "num_warm_up_steps": plan.num_warm_up_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PlannedRate:
        """Returns the schedule that `get_config` described."""
        return cls(Schedule(**config))


def make_optimizer(options: OptimizerOptions, schedule: Schedule) -> keras.optimizers.Optimizer:
    """Returns the optimizer; weight decay, clipping, averages and the loss scale are `train.optimization.updater`'s."""
    rate = PlannedRate(schedule)
    if options.name == "sgd":
        return keras.optimizers.SGD(rate, momentum=options.momentum)
    if options.name == "lion":
        return keras.optimizers.Lion(rate)
    return keras.optimizers.Adam(rate)
