"""A profile of some steps, for TensorBoard: which operations took how long, on which device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.units import format_number


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
