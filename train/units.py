"""How the batches of an asynchronous run are dealt out: in units of consecutive ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# So that the workers end an epoch at about the same time, and a lost one costs little.
UNITS_A_WORKER = 8
MAX_STEPS_A_UNIT = 256


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
    return min(MAX_STEPS_A_UNIT, max(1, num_steps // (UNITS_A_WORKER * num_workers)))


def plan_units(first: int, end: int, size: int) -> Iterator[Unit]:
    """Yields units of `size` batches, the last one of what is left, that cover the batches from `first` to `end`."""
    for start in range(first, end, size):
        yield Unit(start, min(size, end - start))


def next_stop(step: int, steps_per_epoch: int, every: int | None) -> int:
    """Returns the next step after which all workers wait for each other: that of a checkpoint, or the epoch's last.

    Args:
        step: Steps that are done.
        steps_per_epoch: Steps in an epoch.
        every: Steps between checkpoints; None for those at the end of an epoch only.
    """
    end = (step // steps_per_epoch + 1) * steps_per_epoch
    return end if every is None else min(end, (step // every + 1) * every)
