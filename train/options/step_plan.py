"""Arithmetic of a run: steps, batches and where a step is. No I/O, no clock, no TensorFlow."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import msgspec

from shardkit.errors import UsageError
from shardkit.reading.order import choose_num_lanes
from train.options.strategy_checks import is_sync_due, num_syncs

DEFAULT_LANES = choose_num_lanes(1, 1)


class Position(NamedTuple):
    """How far a run is: 0-based epoch, and steps completed in it."""

    epoch: int
    step: int


class Shared(NamedTuple):
    """What a run keeps whatever the number of its workers is.

    Attributes:
        global_batch_size: Examples a step.
        num_lanes: Blocks that a global batch is mixed from.
    """

    global_batch_size: int
    num_lanes: int


class TrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run. Every replica has the same steps and the same number of examples in each.

    Attributes:
        global_batch_size: Examples a step, over all replicas.
        num_replicas: Devices of all workers.
        num_epochs: Passes over the train split.
        num_workers: Processes that share the replicas, each with as many.
        num_lanes: Blocks that a global batch is mixed from.
        sync_every: Steps of each worker on its own before they average; None where every step is one of all.
    """

    num_train_examples: int
    num_validation_examples: int
    global_batch_size: int
    num_replicas: int
    num_epochs: int
    num_workers: int = 1
    num_lanes: int = DEFAULT_LANES
    sync_every: int | None = None

    @property
    def worker_batch_size(self) -> int:
        """Examples a step on one worker."""
        return self.global_batch_size // self.num_workers

    @property
    def replica_batch_size(self) -> int:
        """Examples a step on one replica."""
        return self.global_batch_size // self.num_replicas

    @property
    def num_groups(self) -> int:
        """Parts of equal size that a global batch in length buckets is made of, the same for any number of workers."""
        return gcd(self.global_batch_size, self.num_lanes)

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches in the train split."""
        return self.num_train_examples // self.global_batch_size

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.steps_per_epoch * self.num_epochs

    @property
    def num_dropped(self) -> int:
        """Examples that an epoch leaves out because they fill no batch; others in every epoch."""
        return self.num_train_examples % self.global_batch_size

    @property
    def num_validation_steps(self) -> int:
        """Global batches that cover the validation split, the last one padded."""
        return -(-self.num_validation_examples // self.global_batch_size)

    def position(self, step: int) -> Position:
        """Returns how far the run is after `step` steps."""
        return Position(*divmod(step, self.steps_per_epoch))

    def is_sync_due(self, step: int) -> bool:
        """Returns whether all workers have learned the same after `step` steps."""
        return self.sync_every is None or is_sync_due(step, self.steps_per_epoch, self.sync_every)

    @property
    def syncs_a_step(self) -> float:
        """How often all workers meet, on average."""
        count = self.steps_per_epoch if self.sync_every is None else num_syncs(self.steps_per_epoch, self.sync_every)
        return count / self.steps_per_epoch

    def is_validation_sync_due(self, step: int) -> bool:
        """Returns whether all workers have added up what they found after `step` steps of validation."""
        return self.sync_every is None or is_sync_due(step, self.num_validation_steps, self.sync_every)


def choose_batch_size(wanted: int | None, default: int, num_examples: int, num_replicas: int) -> int:
    """Returns the examples of a step, over all replicas.

    Args:
        wanted: None takes the default, less where the split is small.
        default: What suits the model.
        num_examples: Of the train split.
        num_replicas: Devices of all workers.

    Raises:
        UsageError: If the batch does not divide among the replicas, or the split does not fill it.
    """
    size = wanted
    if size is None:
        largest = min(default, max(1, num_examples // 2))
        size = max(num_replicas, largest - largest % num_replicas)
    if size % num_replicas:
        raise UsageError(
            f"the global batch size {size} is not a multiple of {num_replicas}, the number of replicas",
            next_step=f"Use --global-batch-size {nearest_sizes(size, num_replicas)}",
        )
    if size > num_examples:
        raise UsageError(
            f"the train split holds {num_examples:,} examples, less than one global batch of {size}",
            next_step="Use a smaller --global-batch-size" if size > num_replicas else "Use fewer replicas",
        )
    return size


def choose_lanes(num_lanes: int | None, num_workers: int) -> int:
    """Returns the lanes of a run.

    Args:
        num_lanes: Of the run that goes on; None for a new one.

    Raises:
        UsageError: If the lanes do not divide among the workers.
    """
    num_lanes = choose_num_lanes(num_workers, 1) if num_lanes is None else num_lanes
    if num_lanes % num_workers:
        raise UsageError(
            f"{num_workers} workers cannot share the {num_lanes} lanes of the run",
            why="every worker reads as many lanes",
            next_step=f"Go on with a number of workers that divides {num_lanes}",
        )
    return num_lanes


def worker_counts(plan: TrainPlan) -> tuple[int, ...]:
    """Returns the numbers of workers that can share the batches and the lanes of a run, up to its own."""
    sizes = (plan.global_batch_size, plan.num_lanes)
    return tuple(n for n in range(1, plan.num_workers + 1) if not any(size % n for size in sizes))


def nearest_sizes(global_batch_size: int, num_replicas: int) -> str:
    """Returns the one or two batch sizes next to a given one that divide among the replicas, as text."""
    below = global_batch_size - global_batch_size % num_replicas
    above = below + num_replicas
    return f"{below} or {above}" if below else str(above)
