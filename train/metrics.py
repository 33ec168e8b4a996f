"""What an epoch measured, as a line of `metrics.jsonl`, and where its time went."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec


class EpochMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `metrics.jsonl`.

    Attributes:
        epoch: 0-based.
        step: Updates completed when the epoch ended.
        train: Over the examples that the epoch trained on, each before the update that it took part in.
        validation: Over the validation split after the epoch; None without one.
        examples_per_s: Training examples a second, start-up and validation not counted.
        waiting_share: Part of that time in which the step waited for input.
        train_s, validation_s: Wall time.
    """

    epoch: int
    step: int
    train: dict[str, float]
    validation: dict[str, float] | None
    examples_per_s: float | None
    waiting_share: float | None
    train_s: float
    validation_s: float


class Meter:
    """Measures where the time of an epoch goes.

    The first step of a process is left out of the rates: it traces the graph.
    """

    def __init__(self) -> None:
        self.num_examples = 0
        self.wait_s = 0.0
        self.busy_s = 0.0
        self._is_warm = False
        self._marked_at = time.monotonic()

    def start_epoch(self) -> None:
        """Starts counting anew."""
        self.num_examples, self.wait_s, self.busy_s = 0, 0.0, 0.0
        self._marked_at = time.monotonic()

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
        self._is_warm = True
        self._marked_at = now

    @property
    def examples_per_s(self) -> float | None:
        """Examples a second, None before the second step."""
        total = self.wait_s + self.busy_s
        return self.num_examples / total if self.num_examples and total else None

    @property
    def waiting_share(self) -> float | None:
        """Part of the time spent waiting for input, None before the second step."""
        total = self.wait_s + self.busy_s
        return self.wait_s / total if self.num_examples and total else None


def encode_line(metrics: EpochMetrics) -> bytes:
    """Returns one line of `metrics.jsonl`; NaN becomes null."""
    return msgspec.json.encode(metrics) + b"\n"


def decode_lines(raw: bytes) -> list[EpochMetrics]:
    """Returns the lines of `metrics.jsonl` that are whole."""
    lines: list[EpochMetrics] = []
    for line in raw.splitlines():
        try:
            values: Any = msgspec.json.decode(line)
            for part in (values.get("train"), values.get("validation")):
                for name in part or ():
                    part[name] = math.nan if part[name] is None else part[name]
            lines.append(msgspec.convert(values, EpochMetrics))
        except (msgspec.DecodeError, AttributeError):
            continue
    return lines
