"""What every loop does around the steps of an epoch: validation, a line of metrics, a checkpoint, and the end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from shardkit.errors import UsageError
from train.distribution.heartbeat import START_LIMIT_S, Heartbeat
from train.distribution.lost_peers import is_lost_peer
from train.distribution.signals import Stop
from train.loop.nonfinite import SMALLER_STEPS
from train.options.step_plan import TrainPlan
from train.reporting.metric_sums import Sums, SumsLayout, summarize, zero_sums
from train.reporting.metrics import EpochMetrics, Meter
from train.reporting.report import Reporter
from train.reporting.tensorboard import Profiler
from train.runs.checkpoints import Checkpoints, Restored


class Hooks:
    """What a run does at the events of its loop; nothing by default."""

    def explained(self, kind: str) -> AbstractContextManager[None]:
        """Returns the context that explains errors of TensorFlow while the `train` or `validation` split is read."""
        return nullcontext()

    def weights_to_evaluate(self) -> AbstractContextManager[None]:
        """Returns the context in which the model has the weights that are validated."""
        return nullcontext()

    def should_stop(self) -> bool:
        """Returns whether the run is over before its plan. Called after each checkpoint, and at the start."""
        return False

    def on_step(self, num_steps: int, sums: Sums, meter: Meter) -> None:
        """Called after every step with the sums of the epoch, as far as they are known."""

    def on_epoch(self, line: EpochMetrics) -> None:
        """Called with every finished epoch, before its checkpoint is written."""

    def on_saved(self) -> None:
        """Called after the checkpoint of every finished epoch was written."""

    def not_a_number(self, num_steps: int) -> UsageError:
        """Returns the error for a loss that is none in the last of so many steps."""
        return UsageError(f"the loss is no longer a number at step {num_steps:,}", next_step=SMALLER_STEPS)

    def check_weights(self, num_steps: int) -> None:
        """Checks, before they are validated or saved, the weights after so many steps."""


class LoopParts(NamedTuple):
    """What every loop works with.

    Attributes:
        plan: Sizes and steps.
        checkpoint_every: Steps between checkpoints besides those after each epoch; None for those only.
        profiler: Gets every step, too.
        stop: Says before every step whether this worker wants to stop.
        meet: Waits for all workers, which stand after the same step.
        hooks: Called at events.
    """

    plan: TrainPlan
    layout: SumsLayout
    checkpoints: Checkpoints
    checkpoint_every: int | None
    reporter: Reporter
    profiler: Profiler
    heartbeat: Heartbeat
    stop: Stop
    meet: Callable[[int], None]
    hooks: Hooks


class EpochLoop(ABC):
    """Trains from where a checkpoint stands to the end of the plan."""

    def __init__(self, parts: LoopParts, meter: Meter) -> None:
        self._plan = parts.plan
        self._layout = parts.layout
        self._checkpoints = parts.checkpoints
        self._checkpoint_every = parts.checkpoint_every
        self._reporter = parts.reporter
        self._profiler = parts.profiler
        self._heartbeat = parts.heartbeat
        self._stop = parts.stop
        self._meet = parts.meet
        self._hooks = parts.hooks
        self._meter = meter

    @abstractmethod
    def _train_epoch(self, first_step: int, sums: Sums) -> Sums:
        """Takes the steps of an epoch that are left and returns its sums."""

    @abstractmethod
    def _evaluate(self, step: int) -> tuple[Sums, bool] | None:
        """Returns the sums of the validation split, and whether to stop now; None without a split."""

    def _check_end(self) -> None:  # noqa: B027
        """Looks, after the last step of the plan, whether all that was to be read was read."""

    def run(self, start: Restored) -> None:
        """Trains.

        Args:
            start: Steps that are done, and the sums of the epoch that is under way.

        Raises:
            DamageError: If the shards do not hold what the manifest promises.
            UsageError: If the loss or the weights are no longer numbers.
        """
        step, sums = start
        with self._stop.heeded():
            if sums[0] and self._plan.position(step).step == 0:
                # The run was stopped after the last step of an epoch, before its validation.
                step, sums = self._end_epoch(step, sums, 0.0)
            while step < self._plan.num_steps and not self._hooks.should_stop():
                step, sums = self._run_epoch(step, sums)
        # Tables, exports and the end of a process with many threads take longer than a step.
        self._heartbeat.leave("the end of the run", START_LIMIT_S)
        self._profiler.close(step)
        if step == self._plan.num_steps:
            with self._hooks.explained("train"):
                self._check_end()
        # A worker that ends is a failure to those that have not.
        self._meet(step)

    def _run_epoch(self, step: int, sums: Sums) -> tuple[int, Sums]:
        epoch = self._plan.position(step).epoch
        started_at = time.monotonic()
        with self._hooks.explained("train"):
            sums = self._train_epoch(step, sums)
        step = (epoch + 1) * self._plan.steps_per_epoch
        self._profiler.at_step(step)
        return self._end_epoch(step, sums, time.monotonic() - started_at)

    def _end_epoch(self, step: int, sums: Sums, train_s: float) -> tuple[int, Sums]:
        trained_at = time.monotonic()
        self._hooks.check_weights(step)
        with self._hooks.explained("validation"):
            validation = self._validate(step, sums)
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
        with self._heartbeat.busy("end of an epoch", START_LIMIT_S), self._hooks.explained("train"):
            self._hooks.on_epoch(line)
            self._checkpoints.save(step, sums)
            self._hooks.on_saved()
            self._meet(step)
        return step, sums

    def _validate(self, step: int, of_epoch: Sums) -> dict[str, float] | None:
        with self._hooks.weights_to_evaluate(), self._heartbeat.busy("validation", START_LIMIT_S):
            found = self._evaluate(step)
        if found is None:
            return None
        sums, is_over = found
        if is_over:
            self._save(step, of_epoch, is_last=True)
            self._end_early(step)
        return summarize(self._layout, sums)

    def _checked(self, sums: Sums, num_steps: int) -> Sums:
        if not np.isfinite(sums).all():
            with self._heartbeat.busy("search for the inputs that are no numbers", START_LIMIT_S):
                error = self._hooks.not_a_number(num_steps)
            raise error
        return sums

    def _save(self, step: int, sums: Sums, *, is_last: bool = False) -> None:
        with self._heartbeat.busy("checkpoint", START_LIMIT_S):
            self._hooks.check_weights(step)
            self._checkpoints.save(step, sums)
            # The chief alone writes, for as long as it takes; the others are as busy meanwhile.
            try:
                self._meet(step)
            except tf.errors.OpError as error:
                # A worker that was here first may have ended, as this one will, before the others got its answer.
                if not (is_last and is_lost_peer(error)):
                    raise

    def _end_early(self, step: int) -> None:
        """Ends the process after so many steps, because a signal asked it to stop."""
        self._profiler.close(step)
        self._stop.end()

    def _is_checkpoint_due(self, num_steps: int) -> bool:
        every = self._checkpoint_every
        return every is not None and num_steps % every == 0 and num_steps % self._plan.steps_per_epoch != 0


def mean_loss(sums: Sums) -> float | None:
    """Returns the mean loss of an epoch so far, None before its first batch."""
    return float(sums[1] / sums[0]) if sums[0] else None
