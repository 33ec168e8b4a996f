"""Whether a run still gets better, as a function of its metrics lines alone: a resumed run decides the same. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardkit.errors import UsageError
from train.reporting.metric_sums import SumsLayout
from train.reporting.metrics import EpochMetrics

DEFAULT_MONITOR = "loss"
TRAIN_PREFIX = "train."
_LESS_IS_BETTER = ("loss", "mae", "rmse")


def best_first(lines: Sequence[EpochMetrics], monitor: str = DEFAULT_MONITOR) -> list[EpochMetrics]:
    """Returns the epochs with a number, the best one first; equal ones stay in their order.

    Args:
        lines: Of all epochs, in order.
        monitor: A metric of the validation split, or of the train split behind `train.`.
    """
    sign = 1 if _name_of(monitor) in _LESS_IS_BETTER else -1
    with_number = (line for line in lines if not math.isnan(_monitored(line, monitor)))
    return sorted(with_number, key=lambda line: sign * _monitored(line, monitor))


def best_epoch(lines: Sequence[EpochMetrics], monitor: str = DEFAULT_MONITOR) -> EpochMetrics | None:
    """Returns the best epoch, the first of equal ones; None if there is no number yet."""
    return next(iter(best_first(lines, monitor)), None)


def should_stop(lines: Sequence[EpochMetrics], patience: int, monitor: str = DEFAULT_MONITOR) -> bool:
    """Whether the last `patience` epochs brought no improvement. An epoch without a number is none."""
    best = best_epoch(lines, monitor)
    since = [line for line in lines if best is None or line.epoch > best.epoch]
    return len(since) >= patience


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
