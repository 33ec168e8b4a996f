"""The outer loop: epochs of steps, then validation, a line of metrics and a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shardkit.errors import DamageError, UsageError
from train.batch import Batch
from train.checkpoints import Checkpoints, Restored
from train.gradients import ComputeGradients
from train.heartbeat import START_LIMIT_S, Heartbeat
from train.metrics import EpochMetrics, Meter
from train.nonfinite import SMALLER_STEPS
from train.objectives import Objective
from train.plan import TrainPlan
from train.profiler import Profiler
from train.report import Reporter
from train.signals import Stop
from train.step import evaluate_step, train_step
from train.sums import Sums, SumsLayout, summarize, zero_sums
from train.updater import Updater


class Steps(NamedTuple):
    """The two steps over the batches of a worker; each returns the sums over all replicas.

    Attributes:
        train: Takes a batch, and float32 1 if this worker wants to stop, else 0; the sum of that comes last.
        evaluate: The same.
        train_locally: Takes a batch after which the workers do not meet; None where they always do.
    """

    train: Callable[[Batch, tf.Tensor], tf.Tensor]
    evaluate: Callable[[Batch, tf.Tensor], tf.Tensor]
    train_locally: Callable[[Batch], None] | None = None


class Loop:
    """Trains from where a checkpoint stands to the end of the plan.

    Args:
        plan: Sizes and steps.
        layout: Of the sums that the steps return.
        steps: From `distribute_steps`.
        validation: One pass over the validation split; None without one.
        checkpoints: Where to save.
        checkpoint_every: Steps between checkpoints besides those after each epoch; None for those only.
        reporter: Told about every step.
        profiler: Told about every step, too.
        on_epoch: Told about every finished epoch, before its checkpoint is written.
        weights_to_evaluate: Makes the context in which the model has the weights that are validated.
        should_stop: Asked after the checkpoint of an epoch, and at the start, whether the run is over before its plan.
        explained: Makes the context that explains errors of TensorFlow, by `train` or `validation`.
        stop: Asked before every step whether this worker wants to stop.
        meet: Waits for all workers, which stand after the same step.
        heartbeat: Given the signs of life of this worker.
        on_saved: Called after the checkpoint of every finished epoch was written.
        meter: Measures where the time goes.
        on_step: Told after every step how many are done and the sums of the epoch as far as they are known.
        not_a_number: Makes the error for a loss that is none in the last of so many steps.
        check_weights: Checks, before they are validated or saved, the weights after so many steps.
    """

    def __init__(
        self,
        *,
        plan: TrainPlan,
        layout: SumsLayout,
        steps: Steps,
        validation: Iterable[Batch] | None,
        checkpoints: Checkpoints,
        checkpoint_every: int | None,
        reporter: Reporter,
        profiler: Profiler,
        on_epoch: Callable[[EpochMetrics], None],
        weights_to_evaluate: Callable[[], AbstractContextManager[None]],
        should_stop: Callable[[], bool],
        explained: Callable[[str], AbstractContextManager[None]],
        stop: Stop,
        meet: Callable[[int], None],
        heartbeat: Heartbeat,
        on_saved: Callable[[], object] = lambda: None,
        meter: Meter | None = None,
        on_step: Callable[[int, Sums, Meter], None] = lambda step, sums, meter: None,
        not_a_number: Callable[[int], UsageError] | None = None,
        check_weights: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._steps = steps
        self._validation = validation
        self._checkpoints = checkpoints
        self._checkpoint_every = checkpoint_every
        self._reporter = reporter
        self._profiler = profiler
        self._on_epoch = on_epoch
        self._weights_to_evaluate = weights_to_evaluate
        self._should_stop = should_stop
        self._explained = explained
        self._stop = stop
        self._meet = meet
        self._heartbeat = heartbeat
        self._on_saved = on_saved
        self._go_on, self._halt = tf.constant(0.0), tf.constant(1.0)
        self._meter = meter or Meter()
        self._on_step = on_step
        self._not_a_number = not_a_number or _not_a_number
        self._check_weights = check_weights

    def run(self, batches: Iterable[Batch], start: Restored) -> None:
        """Trains.

        Args:
            batches: Of all steps that are left, in order.
            start: Steps that are done, and the sums of the epoch that is under way.

        Raises:
            DamageError: If the shards do not hold what the manifest promises.
            UsageError: If the loss or the weights are no longer numbers.
        """
        step, sums = start
        with self._explained("train"):
            iterator = iter(batches)
        with self._stop.heeded():
            if sums[0] and self._plan.position(step).step == 0:
                # The run was stopped after the last step of an epoch, before its validation.
                step, sums = self._end_epoch(step, sums, 0.0)
            while step < self._plan.num_steps and not self._should_stop():
                step, sums = self._run_epoch(iterator, step, sums)
        # Tables, exports and the end of a process with many threads take longer than a step.
        self._heartbeat.leave("the end of the run", START_LIMIT_S)
        self._profiler.close(step)
        with self._explained("train"):
            # The last epoch, too, reads its shards to their ends, where their records are counted.
            if step == self._plan.num_steps and next(iterator, None) is not None:
                raise DamageError(
                    "the shards hold more examples than the manifest says", next_step="Run `shardkit verify`"
                )
        # A worker that ends is a failure to those that have not.
        self._meet(step)

    def _run_epoch(self, iterator: Iterator[Batch], step: int, sums: Sums) -> tuple[int, Sums]:
        epoch = self._plan.position(step).epoch
        started_at = time.monotonic()
        with self._explained("train"):
            sums = self._train_epoch(iterator, step, sums)
        step = (epoch + 1) * self._plan.steps_per_epoch
        self._profiler.at_step(step)
        return self._end_epoch(step, sums, time.monotonic() - started_at)

    def _end_epoch(self, step: int, sums: Sums, train_s: float) -> tuple[int, Sums]:
        trained_at = time.monotonic()
        self._check_weights(step)
        with self._explained("validation"):
            validation = self._evaluate(step, sums)
        line = EpochMetrics(
            epoch=step // self._plan.steps_per_epoch - 1,
            step=step,
            train=summarize(self._layout, sums),
            validation=validation,
            examples_per_s=self._meter.examples_per_s,
            waiting_share=self._meter.waiting_share,
            train_s=train_s,
            validation_s=time.monotonic() - trained_at,
            step_ms=self._meter.step_ms,
            computing_share=self._meter.computing_share,
            communication_share=self._meter.communication_share,
        )
        sums = zero_sums(self._layout)
        with self._heartbeat.busy("end of an epoch", START_LIMIT_S), self._explained("train"):
            self._on_epoch(line)
            self._checkpoints.save(step, sums)
            self._on_saved()
            self._meet(step)
        return step, sums

    def _train_epoch(self, iterator: Iterator[Batch], first_step: int, sums: Sums) -> Sums:
        plan, meter = self._plan, self._meter
        epoch, num_done = plan.position(first_step)
        meter.start_epoch()
        before: tf.Tensor | None = None
        with self._reporter.epoch(f"epoch {epoch + 1} of {plan.num_epochs}", plan.steps_per_epoch, num_done):
            for step in range(first_step, first_step - num_done + plan.steps_per_epoch):
                meter.wants_input()
                batch = next(iterator, None)
                if batch is None:
                    raise DamageError(
                        "the shards hold fewer examples than the manifest says", next_step="Run `shardkit verify`"
                    )
                meter.got_input()
                with self._profiler.step(step):
                    now = self._train(batch, step + 1)
                # Reading the sums of the step before, not of this one, keeps an accelerator busy.
                sums, is_stop_wanted = self._add(sums, before, step)
                before = now
                if plan.sync_every is not None:
                    # A stop must be known before workers step on their own again, as they can stop only where they met.
                    sums, is_stop_wanted = self._add(sums, before, step + 1)
                    before = None
                meter.finished_step(plan.global_batch_size)
                self._heartbeat.beat(step + 1)
                if is_stop_wanted or self._is_checkpoint_due(step + 1):
                    sums, is_wanted_now = self._add(sums, before, step + 1)
                    before = None
                    self._save(step + 1, sums)
                    meter.leave_out()
                    if is_stop_wanted or is_wanted_now:
                        self._stop.end()
                self._reporter.step(step + 1 - first_step + num_done, mean_loss(sums), meter)
                self._on_step(step + 1, sums, meter)
        return self._add(sums, before, step + 1)[0]

    def _train(self, batch: Batch, num_steps: int) -> tf.Tensor | None:
        """Returns the sums over all replicas, None where the workers do not meet after this step."""
        if self._steps.train_locally is not None and not (
            self._plan.is_sync_due(num_steps) or self._is_checkpoint_due(num_steps)
        ):
            self._steps.train_locally(batch)
            return None
        return self._steps.train(batch, self._wish())

    def _wish(self) -> tf.Tensor:
        return self._halt if self._stop.is_wanted else self._go_on

    def _add(self, sums: Sums, result: tf.Tensor | None, num_steps: int) -> tuple[Sums, bool]:
        if result is None:
            return sums, False
        of_step, is_stop_wanted = _split(result)
        return self._checked(sums + of_step, num_steps), is_stop_wanted

    def _checked(self, sums: Sums, num_steps: int) -> Sums:
        if not np.isfinite(sums).all():
            with self._heartbeat.busy("search for what is no number", START_LIMIT_S):
                error = self._not_a_number(num_steps)
            raise error
        return sums

    def _evaluate(self, step: int, of_epoch: Sums) -> dict[str, float] | None:
        if self._validation is None:
            return None
        sums, is_stop_wanted = zero_sums(self._layout), False
        with self._weights_to_evaluate(), self._heartbeat.busy("validation", START_LIMIT_S):
            for batch in self._validation:
                of_batch, is_stop_wanted = _split(self._steps.evaluate(batch, self._wish()))
                sums = sums + of_batch
                self._heartbeat.beat(step)
                if is_stop_wanted:
                    break
        # Several workers cannot agree on what comes after the last batch; the next step of training tells them.
        if is_stop_wanted or (self._stop.is_wanted and self._plan.num_workers == 1):
            self._save(step, of_epoch)
            self._stop.end()
        return summarize(self._layout, sums)

    def _save(self, step: int, sums: Sums) -> None:
        with self._heartbeat.busy("checkpoint", START_LIMIT_S):
            self._check_weights(step)
            self._checkpoints.save(step, sums)
            # The chief alone writes, for as long as it takes; the others are as busy meanwhile.
            self._meet(step)

    def _is_checkpoint_due(self, num_steps: int) -> bool:
        every = self._checkpoint_every
        return every is not None and num_steps % every == 0 and num_steps % self._plan.steps_per_epoch != 0


def distribute_steps(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    backward: ComputeGradients,
    updater: Updater,
    objective: Objective,
    plan: TrainPlan,
) -> Steps:
    """Returns the two steps as graphs over the batches of a worker."""

    def share_of_replica(batch: Batch) -> Batch:
        if plan.num_replicas == plan.num_workers:
            return batch
        size = plan.replica_batch_size
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        first = replica % (plan.num_replicas // plan.num_workers) * size
        with tf.device("/device:CPU:0"):  # Cut where the batch lies; only the share travels to the device.
            return tf.nest.map_structure(
                lambda t: tf.ensure_shape(t[first : first + size], [size, *t.shape[1:]]), batch
            )

    def train(batch: Batch, is_stop_wanted: tf.Tensor) -> tf.Tensor:
        # Workers must all stop after the same step; what one of them wants travels with the sums.
        sums = train_step(backward, updater, objective, share_of_replica(batch))
        return tf.concat([sums, is_stop_wanted[tf.newaxis]], axis=0)

    def evaluate(batch: Batch, is_stop_wanted: tf.Tensor) -> tf.Tensor:
        sums = evaluate_step(model, objective, share_of_replica(batch))
        return tf.concat([sums, is_stop_wanted[tf.newaxis]], axis=0)

    @tf.function(reduce_retracing=True)
    def train_all(batch: Batch, is_stop_wanted: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train, args=(batch, is_stop_wanted)), axis=None)

    @tf.function(reduce_retracing=True)
    def evaluate_all(batch: Batch, is_stop_wanted: tf.Tensor) -> tf.Tensor:
        each = strategy.run(evaluate, args=(batch, is_stop_wanted))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)

    return Steps(train_all, evaluate_all)


def _split(result: tf.Tensor) -> tuple[Sums, bool]:
    """Returns the sums of a step, and whether some worker wants to stop."""
    values: Sums = result.numpy().astype(np.float64)
    return values[:-1], bool(values[-1] > 0)


def _not_a_number(num_steps: int) -> UsageError:
    return UsageError(f"the loss is no longer a number at step {num_steps:,}", next_step=SMALLER_STEPS)


def mean_loss(sums: Sums) -> float | None:
    """Returns the mean loss of an epoch so far, None before its first batch."""
    return float(sums[1] / sums[0]) if sums[0] else None
