"""The loop of a synchronous run: all workers take every step, each with its share of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shardkit.errors import DamageError
from train.loop.epoch_loop import EpochLoop, LoopParts, mean_loss
from train.models.batch import Batch
from train.optimization.gradients import ComputeGradients
from train.optimization.objectives import Objective
from train.optimization.step import evaluate_step, train_step
from train.optimization.updater import Updater
from train.options.step_plan import TrainPlan
from train.reporting.metric_sums import Sums, zero_sums
from train.reporting.metrics import Meter
from train.runs.checkpoints import Restored


class Steps(NamedTuple):
    """The two steps over the batches of a worker; each returns the sums over all replicas.

    Attributes:
        train: Takes a batch, and float32 1 if this worker wants to stop, else 0; the sum of that comes last.
        evaluate: The same.
        train_locally: Takes a batch after which the workers do not meet; None where they always do.
        evaluate_locally: The same.
    """

    train: Callable[[Batch, tf.Tensor], tf.Tensor]
    evaluate: Callable[[Batch, tf.Tensor], tf.Tensor]
    train_locally: Callable[[Batch], None] | None = None
    evaluate_locally: Callable[[Batch], None] | None = None


class StepLoop(EpochLoop):
    """Takes all steps from where a checkpoint stands to the end of the plan."""

    def __init__(
        self, parts: LoopParts, meter: Meter, steps: Steps, batches: Iterable[Batch], validation: Iterable[Batch] | None
    ) -> None:
        super().__init__(parts, meter)
        self._steps = steps
        self._batches = batches
        self._iterator: Iterator[Batch] = iter(())
        self._validation = validation
        self._go_on, self._halt = tf.constant(0.0), tf.constant(1.0)

    def run(self, start: Restored) -> None:
        with self._hooks.explained("train"):
            self._iterator = self._stop.awaited(self._batches)
        super().run(start)

    def _train_epoch(self, first_step: int, sums: Sums) -> Sums:
        plan, meter = self._plan, self._meter
        epoch, num_done = plan.position(first_step)
        meter.start_epoch()
        before: tf.Tensor | None = None
        with self._reporter.epoch(f"epoch {epoch + 1} of {plan.num_epochs}", plan.steps_per_epoch, num_done):
            for step in range(first_step, first_step - num_done + plan.steps_per_epoch):
                meter.wants_input()
                batch = next(self._iterator, None)
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
                    is_last = is_stop_wanted or is_wanted_now
                    self._save(step + 1, sums, is_last=is_last)
                    meter.leave_out()
                    if is_last:
                        self._end_early(step + 1)
                self._reporter.step(step + 1 - first_step + num_done, mean_loss(sums), meter)
                self._hooks.on_step(step + 1, sums, meter)
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

    def _evaluate(self, step: int) -> tuple[Sums, bool] | None:
        if self._validation is None:
            return None
        sums, is_stop_wanted = zero_sums(self._layout), False
        for num_done, batch in enumerate(self._stop.awaited(self._validation), 1):
            self._heartbeat.beat(step)
            if self._steps.evaluate_locally is not None and not self._plan.is_validation_sync_due(num_done):
                self._steps.evaluate_locally(batch)
                continue
            of_batch, is_stop_wanted = _split(self._steps.evaluate(batch, self._wish()))
            sums = sums + of_batch
            if is_stop_wanted:
                break
        # Several workers cannot agree on a stop after the last batch; the next step of training does it.
        return sums, is_stop_wanted or (self._stop.is_wanted and self._plan.num_workers == 1)

    def _check_end(self) -> None:
        # The last epoch, too, reads its shards to their ends, where their records are counted.
        if next(self._iterator, None) is not None:
            raise DamageError("the shards hold more examples than the manifest says", next_step="Run `shardkit verify`")


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
        # Workers must all stop after the same step, so the wish of each travels with the sums.
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
