"""Rates of ways to read: they take turns in one process, and the median over the rounds counts."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

# Yields a batch after the other, without end. Closing it ends all that reads.
Batches = Generator[object, None, None]
Open = Callable[[], Batches]

WARM_UP_SHARE = 0.3


class Contender(NamedTuple):
    """One way to read.

    Attributes:
        name: For messages.
        open: Opens the dataset and begins to read.
    """

    name: str
    open: Open


class Window(NamedTuple):
    """What one measurement saw.

    Attributes:
        first_batch_s: From opening the dataset to the first batch.
        num_batches: That were given in the time that is measured.
        wall_s: The time that is measured.
        cpu_s: CPU time of all threads in it.
    """

    first_batch_s: float
    num_batches: int
    wall_s: float
    cpu_s: float


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one way to read is; medians over the rounds.

    Attributes:
        examples_per_s: Per second of wall time.
        examples_per_cpu_s: Per second of CPU time, of all threads.
        record_mb_per_s: MB (10^6 bytes) of framed records per second.
        record_mb_per_cpu_s: The same per second of CPU time.
        stored_mb_per_s: MB of the shards' files per second.
        stored_mb_per_cpu_s: The same per second of CPU time.
        first_batch_s: From opening the dataset to the first batch.
    """

    examples_per_s: float
    examples_per_cpu_s: float
    record_mb_per_s: float
    record_mb_per_cpu_s: float
    stored_mb_per_s: float
    stored_mb_per_cpu_s: float
    first_batch_s: float


def measure(open_batches: Open, seconds: float) -> Window:
    """Returns the rates of about so many seconds, after the first batch and a warm-up."""
    opened = time.perf_counter()
    with closing(open_batches()) as batches:
        next(batches)
        first_batch_s = time.perf_counter() - opened
        # Batches in queues were read before the measured time, so the warm-up uses them up.
        _run(batches, seconds * WARM_UP_SHARE)
        cpu, wall = time.process_time(), time.perf_counter()
        num_batches = _run(batches, seconds)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Window(first_batch_s, num_batches, wall_s, cpu_s)


def take_turns(
    contenders: Sequence[Contender], *, num_rounds: int, seconds: float, tell: Callable[[str], None]
) -> dict[str, list[Window]]:
    """Returns the measurements of each contender, by its name.

    Args:
        contenders: They take turns; the first one changes from round to round.
        num_rounds: Measurements of each.
        seconds: Of one measurement.
        tell: Called with a sentence about the progress.
    """
    found: dict[str, list[Window]] = {c.name: [] for c in contenders}
    for number in range(num_rounds):
        shift = number % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            tell(f"round {number + 1} of {num_rounds}: {contender.name}")
            found[contender.name].append(measure(contender.open, seconds))
    return found


def summarize(windows: Sequence[Window], *, batch_size: int, record_bytes: float, stored_bytes: float) -> Rate:
    """Returns the medians of measurements.

    Args:
        windows: At least one.
        batch_size: Examples of every batch.
        record_bytes: Framed bytes of an example.
        stored_bytes: Bytes of an example in its file.
    """
    per_s = statistics.median(w.num_batches * batch_size / w.wall_s for w in windows)
    per_cpu_s = statistics.median(w.num_batches * batch_size / max(w.cpu_s, 1e-6) for w in windows)
    return Rate(
        examples_per_s=per_s,
        examples_per_cpu_s=per_cpu_s,
        record_mb_per_s=per_s * record_bytes / 1e6,
        record_mb_per_cpu_s=per_cpu_s * record_bytes / 1e6,
        stored_mb_per_s=per_s * stored_bytes / 1e6,
        stored_mb_per_cpu_s=per_cpu_s * stored_bytes / 1e6,
        first_batch_s=statistics.median(w.first_batch_s for w in windows),
    )


def _run(batches: Batches, seconds: float) -> int:
    """Takes batches until the time is over, at least one, and returns how many."""
    stop = time.perf_counter() + seconds
    for count in itertools.count(1):
        next(batches)
        if time.perf_counter() >= stop:
            return count
    raise AssertionError
