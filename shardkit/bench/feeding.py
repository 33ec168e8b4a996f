"""Accelerators that compute for a fixed time a step: how much of the time they are busy while batches are read."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from itertools import islice

import msgspec

from shardkit.bench.rates import Open

_NUM_WARM_UP_STEPS = 3
_MIN_STEPS = 10


class Fed(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured with some accelerators.

    Attributes:
        num_accelerators: Each takes one batch a step.
        step_time_s: Of one step.
        num_steps: That were measured.
        wall_s: Of those steps, waiting for batches included.
        cpu_s: CPU time of reading in it, all threads.
    """

    num_accelerators: int
    step_time_s: float
    num_steps: int
    wall_s: float
    cpu_s: float

    @property
    def share_busy(self) -> float:
        """Time that the accelerators compute, divided by all time."""
        return self.num_steps * self.step_time_s / self.wall_s


def feed(open_batches: Open, *, num_accelerators: int, step_time_s: float, seconds: float) -> Fed:
    """Returns how busy accelerators are that run in step: at each step each takes another batch, then all compute.

    Computing is sleeping, as in the MLPerf Storage benchmark; the reader goes on meanwhile. The batches of the first
    three steps are not measured.

    Args:
        open_batches: Reads for all of them; gives accelerator i of N every N-th batch from the i-th on.
        num_accelerators: How many there are.
        step_time_s: Of one step.
        seconds: About the time to measure, at least ten steps.
    """
    num_steps = max(_MIN_STEPS, round(seconds / step_time_s))
    with closing(open_batches()) as batches:
        held: deque[object] = deque(maxlen=num_accelerators)
        for _ in range(_NUM_WARM_UP_STEPS):
            held.extend(islice(batches, num_accelerators))
            time.sleep(step_time_s)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(num_steps):
            held.extend(islice(batches, num_accelerators))
            time.sleep(step_time_s)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Fed(
        num_accelerators=num_accelerators, step_time_s=step_time_s, num_steps=num_steps, wall_s=wall_s, cpu_s=cpu_s
    )
