"""Files for TensorBoard: train and validation metrics in a folder each, and a profile of some steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.units import format_number
from train.reporting.metric_sums import Sums
from train.reporting.metrics import EpochMetrics, Meter

STEPS_EVERY_S = 1.0  # Writing takes some milliseconds, which the next step waits for.


class TensorBoardWriter:
    """Writes metrics of epochs, and of steps now and then; files are made when there is something to write."""

    def __init__(self, folder: Path, learning_rate: Callable[[], float], steps_every_s: float = STEPS_EVERY_S) -> None:
        self._folder = folder
        self._learning_rate = learning_rate
        self._steps_every_s = steps_every_s
        self._next_at = 0.0
        self._weight, self._loss = 0.0, 0.0
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(self, line: EpochMetrics) -> None:
        """Writes the metrics of one epoch at its last step."""
        self._weight, self._loss = 0.0, 0.0  # The sums begin anew.
        self._write("train", {f"epoch/{name}": value for name, value in line.train.items()}, line.step)
        rates = {
            "input/examples_per_s": line.examples_per_s,
            "input/waiting_share": line.waiting_share,
            "time/step_ms": line.step_ms,
            "time/computing_share": line.computing_share,
            "time/communication_share": line.communication_share,
        }
        self._write("train", {name: value for name, value in rates.items() if value is not None}, line.step)
        if line.validation is not None:
            self._write("validation", {f"epoch/{name}": value for name, value in line.validation.items()}, line.step)

    def write_step(self, step: int, sums: Sums, meter: Meter) -> None:
        """Writes how far the run is, once a second at most; to be called after every step."""
        now = time.monotonic()
        if now < self._next_at or meter.examples_per_s is None:
            return
        values = {"step/learning_rate": self._learning_rate(), "step/examples_per_s": meter.examples_per_s}
        if meter.waiting_share is not None:
            values["step/waiting_share"] = meter.waiting_share
        weight, loss = float(sums[0]), float(sums[1])
        if weight > self._weight:
            values["step/loss"] = (loss - self._loss) / (weight - self._weight)
            self._weight, self._loss = weight, loss
        self._write("train", values, step)
        self._next_at = time.monotonic() + self._steps_every_s

    def close(self) -> None:
        """Completes the files."""
        for writer in self._writers.values():
            writer.close()

    def _write(self, name: str, values: dict[str, float], step: int) -> None:
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        with self._writers[name].as_default():
            for tag, value in values.items():
                tf.summary.scalar(tag, value, step=step)
        self._writers[name].flush()


class Profiler:
    """Profiles the steps of a range; does nothing without one.

    Args:
        steps: First step and the one after the last, counted from 0; None profiles nothing.
        folder: Of the run's TensorBoard files.
        say: Called with the place of the profile.

    Raises:
        UsageError: If the run ends before the first step.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: Path, num_steps: int, say: Callable[[str], None]) -> None:
        if steps is not None and steps[0] >= num_steps:
            raise UsageError(
                f"--profile-steps {steps[0]}:{steps[1]} begins where the run has ended",
                why=f"it has {format_number(num_steps, 'step')}, counted from 0",
                next_step=f"Use --profile-steps {max(0, num_steps - 10)}:{num_steps}",
            )
        self._first, self._stop = steps or (0, 0)
        self._folder = folder
        self._say = say
        self._began: int | None = None

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Marks the block as one step, and begins or ends the profile before it."""
        self.at_step(step)
        if self._began is None:
            yield
            return
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            yield

    def at_step(self, step: int) -> None:
        """Begins or ends the profile; to be called before every step."""
        if self._began is None:
            if self._first <= step < self._stop:
                tf.profiler.experimental.start(str(self._folder))
                self._began = step
        elif step >= self._stop:
            self._end(step)

    def close(self, step: int) -> None:
        """Ends a profile that is under way when the run ends after so many steps."""
        if self._began is not None:
            self._end(step)

    def _end(self, step: int) -> None:
        tf.profiler.experimental.stop()
        self._say(
            f"profile     of {format_number(step - (self._began or 0), 'step')}: tensorboard --logdir {self._folder}, "
            "page Profile (pip install tensorboard-plugin-profile)"
        )
        self._began, self._first, self._stop = None, 0, 0
