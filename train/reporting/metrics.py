"""What an epoch measured, as a line of `metrics.jsonl`, and where its time went."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec

from shardkit.decode_errors import DECODE_ERRORS


class EpochMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `metrics.jsonl`.

    Attributes:
        epoch: 0-based.
        train: Over the examples that the epoch trained on, each before the update that it took part in.
        validation: Over the validation split after the epoch; None without one.
        examples_per_s: Training examples a second, start-up and validation not counted.
        waiting_share: Part of that time in which the step waited for input.
        train_s, validation_s: Wall time.
        step_ms: Milliseconds a step, waiting included; None in lines of an older shardkit, like those that follow.
        computing_share: Part of that time that is left for computing.
        communication_share: Part of that time in which workers add up gradients, estimated as `Meter` says; None where
            there is one.
    """

    epoch: int
    step: int
    train: dict[str, float]
    validation: dict[str, float] | None
    examples_per_s: float | None
    waiting_share: float | None
    train_s: float
    validation_s: float
    step_ms: float | None = None
    computing_share: float | None = None
    communication_share: float | None = None


class Meter:
    """Measures where the time of an epoch goes.

    The first step of a process is left out of the rates: it traces the graph. What the workers need to talk to each
    other cannot be seen from outside of a step; it is the time of their reduction alone, times the steps. A step that
    communicates while it computes hides a part of that, so the share is the most that there is to gain.

    Args:
        communication_s: Of one step, from `train.optimization.gradients`; 0 for one worker.
    """

    def __init__(self, communication_s: float = 0.0) -> None:
        self.communication_s = communication_s
        self.num_examples = 0
        self.num_steps = 0
        self.wait_s = 0.0
        self.busy_s = 0.0
        self._is_warm = False
        self._marked_at = time.monotonic()

    def start_epoch(self) -> None:
        """Starts counting anew."""
        self.num_examples, self.num_steps, self.wait_s, self.busy_s = 0, 0, 0.0, 0.0
        self._marked_at = time.monotonic()

    def wants_input(self) -> None:
        """Counts the time since the last mark as computing: it is the loop's own."""
        now = time.monotonic()
        if self.num_steps:
            self.busy_s += now - self._marked_at
        self._marked_at = now

    def got_input(self) -> None:
        """Counts the time since the last mark as waiting."""
        now = time.monotonic()
        if self._is_warm:
            self.wait_s += now - self._marked_at
        self._marked_at = now

    def finished_step(self, num_examples: int) -> None:
        """Counts the time since the last mark as computing."""
        now = time.monotonic()
        if self._is_warm:
            self.busy_s += now - self._marked_at
            self.num_examples += num_examples
            self.num_steps += 1
        self._is_warm = True
        self._marked_at = now

    def leave_out(self) -> None:
        """Counts the time since the last mark, that of a checkpoint, as nothing."""
        self._marked_at = time.monotonic()

    @property
    def examples_per_s(self) -> float | None:
        """Examples a second, None before the second step."""
        total = self.wait_s + self.busy_s
        return self.num_examples / total if self.num_examples and total else None

    @property
    def step_ms(self) -> float | None:
        """Milliseconds from step to step, None before the second step."""
        return (self.wait_s + self.busy_s) / self.num_steps * 1000 if self.num_steps else None

    @property
    def waiting_share(self) -> float | None:
        """Part of the time spent waiting for input, None before the second step."""
        total = self.wait_s + self.busy_s
        return self.wait_s / total if self.num_examples and total else None

    @property
    def communication_share(self) -> float | None:
        """Part of the time that communication takes, None before the second step and for one worker."""
        total = self.wait_s + self.busy_s
        if not (self.communication_s and self.num_steps and total):
            return None
        return min(self.communication_s * self.num_steps, self.busy_s) / total

    @property
    def computing_share(self) -> float | None:
        """Part of the time that is left, None before the second step."""
        waiting = self.waiting_share
        return None if waiting is None else max(0.0, 1.0 - waiting - (self.communication_share or 0.0))


def encode_line(metrics: EpochMetrics) -> bytes:
    """Returns one line of `metrics.jsonl`; NaN becomes null."""
    return msgspec.json.encode(metrics) + b"\n"


def decode_lines(raw: bytes) -> list[EpochMetrics]:
    """Returns the lines of `metrics.jsonl` that are whole."""
    lines: list[EpochMetrics] = []
    for text in raw.splitlines():
        try:
            values: Any = msgspec.json.decode(text)
            for part in (values.get("train"), values.get("validation")):
                for name in part or ():
                    part[name] = math.nan if part[name] is None else part[name]
            line = msgspec.convert(values, EpochMetrics)
        except (*DECODE_ERRORS, AttributeError):
            continue
        # A terminal would obey other names.
        if all(name.isprintable() for name in (*line.train, *(line.validation or ()))):
            lines.append(line)
    return lines
