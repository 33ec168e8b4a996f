"""The outer loop of an asynchronous run. It deals out units of batches to the workers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from train.asynchronous.steps import NUM_PENDING, UnitResult, UnitSteps
from train.asynchronous.work_units import (
    MAX_STEPS_A_UNIT,
    Unit,
    bounded_size,
    next_stop,
    plan_work_units,
    steps_a_unit,
)
from train.distribution.heartbeat import START_LIMIT_S
from train.loop.epoch_loop import EpochLoop, LoopParts, mean_loss
from train.reporting.metric_sums import Sums, zero_sums
from train.reporting.metrics import Meter


class UnitMeter(Meter):
    """Measures where the time of workers goes that step side by side; the rate is that of all of them together.

    The first unit of each worker is left out: it opens the shards and traces the graph.
    """

    def __init__(self, num_workers: int) -> None:
        super().__init__()
        self._num_cold = num_workers
        self._wall_s = 0.0

    def start_epoch(self) -> None:
        super().start_epoch()
        self._wall_s = 0.0

    def finished_unit(self, result: UnitResult, num_examples: int) -> None:
        """Counts the time since the last mark, in which the workers did a unit of so many examples."""
        now = time.monotonic()
        if self._num_cold:
            self._num_cold -= 1
        else:
            self._wall_s += now - self._marked_at
            self.wait_s += result.waited_s
            self.busy_s += result.took_s - result.waited_s
            self.num_steps += result.unit.size
            self.num_examples += num_examples
        self._marked_at = now

    @property
    def examples_per_s(self) -> float | None:
        """Examples a second of all workers, None before each has begun its second unit."""
        return self.num_examples / self._wall_s if self.num_examples and self._wall_s else None


class UnitLoop(EpochLoop):
    """Deals out units from where a checkpoint stands to the end of the plan."""

    def __init__(self, parts: LoopParts, units: UnitSteps, num_workers: int, *, has_validation: bool) -> None:
        self._unit_meter = UnitMeter(num_workers)
        super().__init__(parts, self._unit_meter)
        self._units = units
        self._num_workers = num_workers
        self._has_validation = has_validation
        self._step_s: float | None = None

    def _train_epoch(self, first_step: int, sums: Sums) -> Sums:
        plan, step = self._plan, first_step
        epoch, num_done = plan.position(first_step)
        end = first_step - num_done + plan.steps_per_epoch
        size = steps_a_unit(plan.steps_per_epoch, self._num_workers)
        self._unit_meter.start_epoch()
        title = f"epoch {epoch + 1} of {plan.num_epochs}"
        # A worker that is replaced keeps the others waiting at the end of an epoch for as long as it takes to start.
        with (
            self._reporter.epoch(title, plan.steps_per_epoch, num_done),
            self._heartbeat.busy("training", START_LIMIT_S),
        ):
            while step < end:
                planned = self._plan_work_units(
                    step, next_stop(step, plan.steps_per_epoch, self._checkpoint_every), size
                )
                results = self._units.train(planned, lambda: self._stop.is_wanted)
                for result in self._stop.awaited(results, self._pending_s):
                    step = result.unit.end
                    self._step_s = result.took_s / result.unit.size
                    sums = self._checked(sums + result.sums, step)
                    self._unit_meter.finished_unit(result, result.unit.size * plan.global_batch_size)
                    self._heartbeat.beat(step, START_LIMIT_S)
                    self._reporter.step(step - end + plan.steps_per_epoch, mean_loss(sums), self._unit_meter)
                    self._hooks.on_step(step, sums, self._unit_meter)
                if self._stop.is_wanted or self._is_checkpoint_due(step):
                    self._save(step, sums)
                    self._unit_meter.leave_out()
                if self._stop.is_wanted:
                    self._end_early(step)
        return sums

    def _evaluate(self, step: int) -> tuple[Sums, bool] | None:
        if not self._has_validation:
            return None
        sums = zero_sums(self._layout)
        num_steps = self._plan.num_validation_steps
        planned = self._plan_work_units(0, num_steps, steps_a_unit(num_steps, self._num_workers))
        results = self._units.evaluate(planned, lambda: self._stop.is_wanted)
        for result in self._stop.awaited(results, self._pending_s):
            sums = sums + result.sums
            self._heartbeat.beat(step, START_LIMIT_S)
        return sums, self._stop.is_wanted

    def _pending_s(self) -> float:
        """Returns what a worker takes for its units that are under way, 0 before the first measurement."""
        step_s = self._step_s or 0.0
        return NUM_PENDING * step_s * bounded_size(MAX_STEPS_A_UNIT, step_s)

    def _plan_work_units(self, first: int, end: int, size: int) -> Iterator[Unit]:
        return plan_work_units(first, end, lambda: bounded_size(size, self._step_s))
