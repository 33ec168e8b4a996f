"""The counters of a conversion as metrics of Beam, for engines whose workers share no disk with the command.

Dataflow allows about a hundred names a project, so there are twelve in all and none for a shard or an input.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from apache_beam.metrics.metric import Metrics
from apache_beam.runners.worker.statesampler import get_current_tracker

from shardkit.conversion.progress import Progress, Totals

NAMESPACE = "shardkit"
PLANNED = "num_planned_bytes"

_COUNTERS = {name: Metrics.counter(NAMESPACE, name) for name in (*Totals._fields, PLANNED)}


class CountedProgress(Progress):
    """The counters of this process, counted in Beam's metrics too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._pending: Counter[str] = Counter()
        self._pending_lock = threading.Lock()

    def add(self, **amounts: int) -> None:
        """Adds to the counters.

        Args:
            amounts: By the names of `Totals`.
        """
        super().add(**amounts)
        with self._pending_lock:
            self._pending.update(amounts)
        self.flush()

    def flush(self) -> None:
        """Hands over counts of threads that Beam does not know. Must be called from a thread that it knows."""
        if get_current_tracker() is None:
            return
        with self._pending_lock:
            pending, self._pending = self._pending, Counter()
        count(pending)


def count(amounts: Mapping[str, int]) -> None:
    """Adds to metrics, from a thread that Beam knows."""
    for name, amount in amounts.items():
        if amount:
            _COUNTERS[name].inc(amount)


def totals_of(amounts: Iterable[tuple[str, int]]) -> tuple[Totals, int | None]:
    """Returns the counts of all workers, and the bytes of all shards, None before they are known.

    Args:
        amounts: Names and values, one a step.
    """
    found: Counter[str] = Counter()
    for name, amount in amounts:
        found[name] += amount
    planned = found.get(PLANNED)
    return Totals(**{name: found[name] for name in Totals._fields}), planned
