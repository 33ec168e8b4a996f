"""What a run tells the user: its plan, its progress, and a final table. Progress on stderr, the table on stdout."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from shardkit.messages import visible
from shardkit.units import format_duration
from train.reporting.metrics import EpochMetrics, Meter

_REFRESH_S = 0.2
_LINE_EVERY_S = 30.0
_PERCENTAGES = ("accuracy",)


class Reporter:
    """Writes to the terminal: a bar where there is one, lines where there is none."""

    def __init__(self) -> None:
        self._err = Console(stderr=True, soft_wrap=True, highlight=False)
        self._bar: Progress | None = None
        self._title = ""
        self._num_steps = 0
        self._task = TaskID(0)
        self._next_at = 0.0

    def say(self, text: str) -> None:
        """Prints a line."""
        self._err.print(Text(visible(text)))

    def note(self, text: str) -> None:
        """Prints something that the user should know."""
        self._err.print(Text.assemble(("note: ", "yellow"), visible(text)))

    def warn(self, text: str) -> None:
        """Prints something that the user has to see."""
        self._err.print(Text.assemble(("warning: ", "bold red"), visible(text)))

    @contextmanager
    def epoch(self, title: str, num_steps: int, num_done: int) -> Iterator[None]:
        """Shows a bar of steps during the block."""
        self._title, self._num_steps = title, num_steps
        self._next_at = time.monotonic() + (_REFRESH_S if self._err.is_terminal else _LINE_EVERY_S)
        if not self._err.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._err, transient=True, auto_refresh=False) as bar:
            self._bar = bar
            self._task = bar.add_task(title, total=num_steps, completed=num_done, status="")
            bar.refresh()
            try:
                yield
            finally:
                self._bar = None

    def step(self, num_done: int, loss: float | None, meter: Meter) -> None:
        """Shows how far the epoch is; cheap, to be called after every step."""
        now = time.monotonic()
        if now < self._next_at:
            return
        status = _status(loss, meter)
        if self._bar is not None:
            self._next_at = now + _REFRESH_S
            self._bar.update(self._task, completed=num_done, status=status, refresh=True)
        else:
            self._next_at = now + _LINE_EVERY_S
            self.say(f"{self._title}  step {num_done:,} of {self._num_steps:,}  {status}")

    def finished_epoch(self, metrics: EpochMetrics, num_epochs: int) -> None:
        """Prints the line of an epoch."""
        parts = [
            f"epoch {metrics.epoch + 1} of {num_epochs}",
            f"step {metrics.step:,}",
            f"train {_metrics_text(metrics.train)}",
        ]
        if metrics.validation is not None:
            parts.append(f"validation {_metrics_text(metrics.validation)}")
        parts += _speed(metrics)
        self.say("  ".join(p for p in parts if p))
        if metrics.validation is not None and math.isnan(metrics.validation.get("loss", 0.0)):
            self.warn(
                "the validation loss is no number, though the train loss is one; look for inputs that are none, as "
                "absent values, which are NaN"
            )

    def final_table(self, epochs: Sequence[EpochMetrics], split_names: Sequence[str]) -> None:
        """Prints all epochs as a table on stdout."""
        if not epochs:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("epoch", justify="right")
        names = list(epochs[0].train)
        for split in split_names:
            for name in names:
                table.add_column(f"{split}\n{name}", justify="right")
        has_communication = any(line.communication_share is not None for line in epochs)
        talking = ("communi-\ncating",) * has_communication
        for title in ("examples/s", "step", "waiting\nfor input", "com-\nputing", *talking, "time"):
            table.add_column(title, justify="right")
        for line in epochs:
            parts = [line.train] if len(split_names) == 1 else [line.train, line.validation or {}]
            values = [format_metric(name, part.get(name, math.nan)) for part in parts for name in names]
            rate = "-" if line.examples_per_s is None else f"{line.examples_per_s:,.0f}"
            step = "-" if line.step_ms is None else format_ms(line.step_ms)
            shares = [line.waiting_share, line.computing_share, *(line.communication_share,) * has_communication]
            shown = ["-" if share is None else f"{share:.0%}" for share in shares]
            time_text = format_duration(line.train_s + line.validation_s)
            table.add_row(str(line.epoch + 1), *values, rate, step, *shown, time_text)
        _stdout().print(table)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints aligned columns on stdout and an empty line; columns of numbers are on the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, heading in enumerate(headings):
        is_number = all(row[i][:1].isdigit() and " " not in row[i].strip() for row in rows)
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*map(visible, row))
    out = _stdout()
    out.print(table)
    out.print()


def _stdout() -> Console:
    out = Console(file=sys.stdout, highlight=False)
    return out if out.is_terminal else Console(file=sys.stdout, highlight=False, width=160)


def format_metric(name: str, value: float) -> str:
    """Returns a metric as a person reads it."""
    if math.isnan(value):
        return "-"
    if name in _PERCENTAGES:
        return f"{value:.4f}"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def _metrics_text(metrics: dict[str, float]) -> str:
    return " ".join(f"{name} {format_metric(name, value)}" for name, value in metrics.items())


def _status(loss: float | None, meter: Meter) -> str:
    parts = ["" if loss is None else f"loss {format_metric('loss', loss)}"]
    parts += _speed(meter)
    return "  ".join(p for p in parts if p)


def _speed(measured: EpochMetrics | Meter) -> list[str]:
    rate, step_ms = measured.examples_per_s, measured.step_ms
    shares = {
        "waiting for input": measured.waiting_share,
        "computing": measured.computing_share,
        "communicating": measured.communication_share,
    }
    return [
        "" if rate is None else f"{rate:,.0f} examples/s",
        "" if step_ms is None else f"{format_ms(step_ms)} a step",
        ", ".join(f"{share:.0%} {what}" for what, share in shares.items() if share is not None),
    ]


def format_ms(milliseconds: float) -> str:
    """Returns the time of a step as a person reads it."""
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
