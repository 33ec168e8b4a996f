"""The outer loop: epochs of steps, then validation, a line of metrics and a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shardkit.errors import DamageError, UsageError
from train.batch import Batch
from train.checkpoints import Checkpoints, Restored
from train.config import Task
from train.metrics import EpochMetrics, Meter, Sums, summarize, zero_sums
from train.objectives import Objective
from train.plan import TrainPlan
from train.profiler import Profiler
from train.report import Reporter
from train.step import evaluate_step, train_step

RunStep = Callable[[Batch], tf.Tensor]


class Steps(NamedTuple):
    """The two steps over global batches; each returns the sums over all replicas."""

    train: RunStep
    evaluate: RunStep


class Loop:
    """Trains from where a checkpoint stands to the end of the plan.

    Args:
        plan: Sizes and steps.
        task: Names the metrics.
        steps: From `distribute_steps`.
        validation: One pass over the validation split; None without one.
        checkpoints: Where to save.
        checkpoint_every: Steps between checkpoints besides those after each epoch; None for those only.
        reporter: Told about every step.
        profiler: Told about every step, too.
        on_epoch: Told about every finished epoch, before its checkpoint is written.
        explained: Makes the context that explains errors of TensorFlow, by `train` or `validation`.
    """

    def __init__(
        self,
        *,
        plan: TrainPlan,
        task: Task,
        steps: Steps,
        validation: tf.data.Dataset | None,
        checkpoints: Checkpoints,
        checkpoint_every: int | None,
        reporter: Reporter,
        profiler: Profiler,
        on_epoch: Callable[[EpochMetrics], None],
        explained: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._plan = plan
        self._task = task
        self._steps = steps
        self._validation = validation
        self._checkpoints = checkpoints
        self._checkpoint_every = checkpoint_every
        self._reporter = reporter
        self._profiler = profiler
        self._on_epoch = on_epoch
        self._explained = explained
        self._meter = Meter()

    def run(self, batches: tf.data.Dataset, start: Restored) -> None:
        """Trains.

        Args:
            batches: Of all steps that are left, in order.
            start: Steps that are done, and the sums of the epoch that is under way.

        Raises:
            DamageError: If the shards do not hold what the manifest promises.
            UsageError: If the loss is no longer a number.
        """
        step, sums = start
        with self._explained("train"):
            iterator = iter(batches)
        while step < self._plan.num_steps:
            epoch = self._plan.position(step).epoch
            started_at = time.monotonic()
            with self._explained("train"):
                sums = self._train_epoch(iterator, step, sums)
            step = (epoch + 1) * self._plan.steps_per_epoch
            self._profiler.at_step(step)
            trained_at = time.monotonic()
            with self._explained("validation"):
                validation = self._evaluate()
            line = EpochMetrics(
                epoch=epoch,
                step=step,
                train=summarize(self._task, sums),
                validation=validation,
                examples_per_s=self._meter.examples_per_s,
                waiting_share=self._meter.waiting_share,
                train_s=trained_at - started_at,
                validation_s=time.monotonic() - trained_at,
            )
            self._on_epoch(line)
            sums = zero_sums()
            with self._explained("train"):
                self._checkpoints.save(step, sums)
        self._profiler.close(step)
        with self._explained("train"):
            # The last epoch, too, reads its shards to their ends, where their records are counted.
            if next(iterator, None) is not None:
                raise DamageError(
                    "the shards hold more examples than the manifest says", next_step="Run `shardkit verify`"
                )

    def _train_epoch(self, iterator: Iterator[Batch], first_step: int, sums: Sums) -> Sums:
        plan, meter = self._plan, self._meter
        epoch, num_done = plan.position(first_step)
        meter.start_epoch()
        before: tf.Tensor | None = None
        with self._reporter.epoch(f"epoch {epoch + 1} of {plan.num_epochs}", plan.steps_per_epoch, num_done):
            for step in range(first_step, first_step - num_done + plan.steps_per_epoch):
                batch = next(iterator, None)
                if batch is None:
                    raise DamageError(
                        "the shards hold fewer examples than the manifest says", next_step="Run `shardkit verify`"
                    )
                meter.got_input()
                with self._profiler.step(step):
                    now = self._steps.train(batch)
                # Reading the sums of the step before, not of this one, keeps an accelerator busy.
                sums = sums if before is None else _add(sums, before, step)
                before = now
                meter.finished_step(plan.global_batch_size)
                if self._is_checkpoint_due(step + 1):
                    sums, before = _add(sums, before, step + 1), None
                    self._checkpoints.save(step + 1, sums)
                self._reporter.step(step + 1 - first_step + num_done, _mean_loss(sums), meter)
        return sums if before is None else _add(sums, before, step + 1)

    def _evaluate(self) -> dict[str, float] | None:
        if self._validation is None:
            return None
        sums = zero_sums()
        for batch in self._validation:
            sums = sums + self._steps.evaluate(batch).numpy().astype(np.float64)
        return summarize(self._task, sums)

    def _is_checkpoint_due(self, num_steps: int) -> bool:
        every = self._checkpoint_every
        return every is not None and num_steps % every == 0 and num_steps % self._plan.steps_per_epoch != 0


def distribute_steps(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    objective: Objective,
    plan: TrainPlan,
) -> Steps:
    """Returns the two steps as graphs over global batches."""

    def share_of_replica(batch: Batch) -> Batch:
        if plan.num_replicas == 1:
            return batch
        size = plan.replica_batch_size
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * size
        with tf.device("/device:CPU:0"):  # Cut where the batch lies; only the share travels to the device.
            return tf.nest.map_structure(
                lambda t: tf.ensure_shape(t[first : first + size], [size, *t.shape[1:]]), batch
            )

    def train(batch: Batch) -> tf.Tensor:
        return train_step(model, optimizer, objective, share_of_replica(batch))

    def evaluate(batch: Batch) -> tf.Tensor:
        return evaluate_step(model, objective, share_of_replica(batch))

    @tf.function(reduce_retracing=True)
    def train_all(batch: Batch) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train, args=(batch,)), axis=None)

    @tf.function(reduce_retracing=True)
    def evaluate_all(batch: Batch) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(evaluate, args=(batch,)), axis=None)

    return Steps(train_all, evaluate_all)


def _add(sums: Sums, result: tf.Tensor, step: int) -> Sums:
    total = sums + result.numpy().astype(np.float64)
    if not np.isfinite(total).all():
        raise UsageError(
            f"the loss is no longer a number at step {step:,}",
            state="The last checkpoint is from before",
            next_step="Use a smaller --learning-rate; if the model is your own, make it cope with NaN in its inputs",
        )
    return total


def _mean_loss(sums: Sums) -> float | None:
    return float(sums[1] / sums[0]) if sums[0] else None
