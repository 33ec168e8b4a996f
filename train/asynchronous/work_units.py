"""How the batches of an asynchronous run are dealt out: in units of consecutive ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

# Many small units let the workers end an epoch at about the same time, and a lost worker costs little.
WORK_UNITS_A_WORKER = 8
MAX_STEPS_A_UNIT = 256
# A run that is asked to stop ends the units that are under way, and then has to save.
MAX_UNIT_S = 2.0


class Unit(NamedTuple):
    """Consecutive batches of one epoch, which one worker takes one after the other.

    Attributes:
        first: Batches before it, from the beginning of the run, or of the pass that validates.
        size: Its batches, at least 1.
    """

    first: int
    size: int

    @property
    def end(self) -> int:
        """Batches up to its end."""
        return self.first + self.size


def steps_a_unit(num_steps: int, num_workers: int) -> int:
    """Returns the batches of a unit, of an epoch with so many."""
    return min(MAX_STEPS_A_UNIT, max(1, num_steps // (WORK_UNITS_A_WORKER * num_workers)))


def bounded_size(size: int, step_s: float | None) -> int:
    """Returns a size at which a unit does not take long.

    Args:
        size: Largest one.
        step_s: That a step takes on a worker; None before the first measurement.
    """
    return 1 if step_s is None else max(1, min(size, int(MAX_UNIT_S / max(step_s, 1e-6))))


def plan_work_units(first: int, end: int, size: Callable[[], int]) -> Iterator[Unit]:
    """Yields units that cover the batches from `first` to `end`.

    Args:
        first, end: The first batch, and the one behind the last.
        size: Called before each unit for its number of batches, at least 1; the last unit has the rest.
    """
    while first < end:
        unit = Unit(first, min(size(), end - first))
        yield unit
        first = unit.end


def next_stop(step: int, steps_per_epoch: int, every: int | None) -> int:
    """Returns the next step after which all workers wait for each other: that of a checkpoint, or the epoch's last.

    Args:
        step: Steps that are done.
        every: Steps between checkpoints; None for those at the end of an epoch only.
    """
    end = (step // steps_per_epoch + 1) * steps_per_epoch
    return end if every is None else min(end, (step // every + 1) * every)
