"""Whole runs in the process of a test."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from shardkit.features import make_feature
from train.options.config import TrainOptions
from train.reporting.metrics import EpochMetrics
from train.reporting.report import Reporter
from train.run import run
from train.runs.request import resolve
from train.runs.run_folder import RunFolder

TABLE = (
    make_feature("x", "float64", nullable=True),
    make_feature("color", "string", nullable=True),
    make_feature("count", "int64"),
    make_feature("when", "timestamp[us]"),
    make_feature("sides", "string", nullable=True),
    make_feature("size", "float64"),
)


class Interrupted(KeyboardInterrupt):
    """Raised by a reporter in the middle of an epoch."""


class Recorder(Reporter):
    """Keeps what a run says, and stops it after a step if asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.num_steps = 0
        self.stop_after = stop_after

    def say(self, text: str) -> None:
        self.texts.append(text)

    def note(self, text: str) -> None:
        self.texts.append(f"note: {text}")

    def warn(self, text: str) -> None:
        self.texts.append(f"warning: {text}")

    def step(self, *args: Any) -> None:
        self.num_steps += 1
        if self.num_steps == self.stop_after:
            raise Interrupted


def table(num_rows: int, *, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for i in range(num_rows):
        x, color = draw.uniform(-1, 1), draw.choice(["red", "green", "blue"])
        sides = "many" if (x > 0) != (color == "red") else "few"
        rows.append(
            {"x": None if i % 10 == 9 else x, "color": None if i % 17 == 3 else color, "count": draw.randrange(50),
             "when": 1_600_000_000_000_000 + i, "sides": sides, "size": 1000 + 100 * x + (50 if color == "red" else 0)}
        )  # fmt: skip
    return rows


def train(dataset: Path, output: Path, reporter: Recorder | None = None, **settings: Any) -> list[EpochMetrics]:
    options = TrainOptions(**{"dataset": str(dataset), "output": str(output), "label": "sides", **settings})
    folder = RunFolder(options.output)
    request = resolve(options)
    folder.open(resume=options.resume)
    run(request, folder, reporter or Recorder())
    return folder.read_metrics()
