"""Rates of ways to read: they take turns in one process, and the median over the rounds counts."""

from __future__ import annotations

import itertools
import re
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from shardkit.units import KiB

# Yields batches without end; closing it ends the reader's threads. `Open` opens the dataset and begins to read.
Batches = Generator[object, None, None]
Open = Callable[[], Batches]

_WARM_UP_SHARE = 0.3


class Window(NamedTuple):
    """One measurement: the time to the first batch, then batches, wall time and CPU time of all threads."""

    first_batch_s: float
    num_batches: int
    wall_s: float
    cpu_s: float


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one way to read is; medians over the rounds.

    A MB is 10^6 bytes of framed records. CPU time is that of all threads.
    """

    examples_per_s: float
    examples_per_cpu_s: float
    record_mb_per_s: float
    first_batch_s: float


def measure(open_batches: Open, seconds: float) -> Window:
    """Returns a measurement of about so many seconds, after the first batch and a warm-up."""
    opened = time.perf_counter()
    with closing(open_batches()) as batches:
        next(batches)
        first_batch_s = time.perf_counter() - opened
        # Batches in queues were read before the measured time, so the warm-up uses them up.
        _run(batches, seconds * _WARM_UP_SHARE)
        cpu, wall = time.process_time(), time.perf_counter()
        num_batches = _run(batches, seconds)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Window(first_batch_s, num_batches, wall_s, cpu_s)


def take_turns(
    readers: Mapping[str, Open], *, num_rounds: int, seconds: float, tell: Callable[[str], None]
) -> dict[str, list[Window]]:
    """Returns the measurements of each reader by its name; the first one changes from round to round."""
    found: dict[str, list[Window]] = {name: [] for name in readers}
    names = list(readers)
    for number in range(num_rounds):
        shift = number % len(names)
        for name in (*names[shift:], *names[:shift]):
            tell(f"round {number + 1} of {num_rounds}: {name}")
            found[name].append(measure(readers[name], seconds))
    return found


def summarize(windows: Sequence[Window], *, batch_size: int, record_bytes: float) -> Rate:
    """Returns the medians of measurements.

    Args:
        windows: At least one.
    """
    per_s = statistics.median(w.num_batches * batch_size / w.wall_s for w in windows)
    return Rate(
        examples_per_s=per_s,
        examples_per_cpu_s=statistics.median(w.num_batches * batch_size / max(w.cpu_s, 1e-6) for w in windows),
        record_mb_per_s=per_s * record_bytes / 1e6,
        first_batch_s=statistics.median(w.first_batch_s for w in windows),
    )


class PeakMemory:
    """The most memory that this process takes from now on, beyond the memory that it takes now."""

    def __init__(self) -> None:
        # Resets the system's peak, so that freed memory does not count.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _status_bytes("VmRSS")

    def num_bytes(self) -> int | None:
        """Returns it in bytes, None where the system does not report it."""
        now = _status_bytes("VmHWM")
        return None if now is None or self._before is None else max(0, now - self._before)


def _status_bytes(name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * KiB if found else None


def _run(batches: Batches, seconds: float) -> int:
    """Takes batches until the time is over, at least one, and returns how many."""
    stop = time.perf_counter() + seconds
    for count in itertools.count(1):
        next(batches)
        if time.perf_counter() >= stop:
            return count
    raise AssertionError
