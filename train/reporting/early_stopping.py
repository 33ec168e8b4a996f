"""Whether a run still gets better, as a function of its metrics lines alone: a resumed run decides the same. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shardkit.errors import UsageError
from train.reporting.metric_sums import SumsLayout
from train.reporting.metrics import EpochMetrics

DEFAULT_MONITOR = "loss"
TRAIN_PREFIX = "train."
_LESS_IS_BETTER = ("loss", "mae", "rmse")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the monitored metric stands.

    Attributes:
        best: Its best value; None before the first number.
        best_epoch: The first epoch that reached it.
        num_epochs_since: Epochs after that one; without a best one, all of them.
    """

    best: float | None = None
    best_epoch: int | None = None
    num_epochs_since: int = 0


def follow(lines: Sequence[EpochMetrics], monitor: str = DEFAULT_MONITOR) -> Progress:
    """Returns the progress over the epochs so far. An epoch without a number is no improvement.

    Args:
        lines: Of all epochs, in order.
        monitor: A metric of the validation split, or of the train split behind `train.`.
    """
    progress = Progress()
    for line in lines:
        value = _monitored(line, monitor)
        if not math.isnan(value) and (progress.best is None or is_better(value, progress.best, monitor)):
            progress = Progress(best=value, best_epoch=line.epoch)
        else:
            progress = msgspec.structs.replace(progress, num_epochs_since=progress.num_epochs_since + 1)
    return progress


def should_stop(lines: Sequence[EpochMetrics], patience: int, monitor: str = DEFAULT_MONITOR) -> bool:
    """Whether the last `patience` epochs brought no improvement."""
    return follow(lines, monitor).num_epochs_since >= patience


def best_epoch(lines: Sequence[EpochMetrics], monitor: str = DEFAULT_MONITOR) -> int | None:
    """Returns the 0-based epoch with the best value, the first of equal ones; None if there is no number yet."""
    return follow(lines, monitor).best_epoch


def is_better(value: float, other: float, monitor: str) -> bool:
    """Whether a value of the monitored metric is better than another one."""
    return value < other if _name_of(monitor) in _LESS_IS_BETTER else value > other


def choose_monitor(wanted: str | None, layout: SumsLayout, *, has_validation: bool) -> str:
    """Returns the monitored metric, checked that every epoch has it; the loss of the best split if none is wanted.

    Raises:
        UsageError: If epochs will not have it.
    """
    if wanted is None:
        return DEFAULT_MONITOR if has_validation else TRAIN_PREFIX + DEFAULT_MONITOR
    monitor, names = wanted, layout.metric_names
    if _name_of(monitor) not in names:
        raise UsageError(
            f"there is no metric {_name_of(monitor)!r}",
            why=f"a {layout.task} measures {', '.join(names)}",
            next_step=f"Use --monitor {DEFAULT_MONITOR}, or {TRAIN_PREFIX}{DEFAULT_MONITOR} of the train split",
        )
    if not has_validation and not monitor.startswith(TRAIN_PREFIX):
        raise UsageError(
            f"there is no split to measure {monitor!r} on after an epoch",
            next_step=f"Use --monitor {TRAIN_PREFIX}{monitor}, or convert with --split test=0.1",
        )
    return monitor


def _monitored(line: EpochMetrics, monitor: str) -> float:
    metrics = line.train if monitor.startswith(TRAIN_PREFIX) else line.validation or {}
    return metrics.get(_name_of(monitor), math.nan)


def _name_of(monitor: str) -> str:
    return monitor.removeprefix(TRAIN_PREFIX)
