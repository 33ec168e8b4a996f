"""One worker's batches over epochs, and where it stands: a state that any number of workers goes on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, reduce
from typing import Any, Literal

import msgspec

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.reading.batches import ReadingOptions, read_batches
from shardkit.reading.columns import Batch
from shardkit.reading.order import OrderOptions, Worker
from shardkit.reading.plan import EpochPlan


class ReaderState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a run of batches stands; the same for all its workers.

    Attributes:
        reader: Version of this document.
        dataset: Hash of the shards.
        split: Name of the split.
        order: What the order was made from.
        epoch: Of the next batch.
        step: Of the next batch, in its epoch.
    """

    reader: Literal[1] = 1
    dataset: str
    split: str
    order: OrderOptions
    epoch: int
    step: int


class BatchReader:
    """Iterates over one worker's batches of some epochs.

    Every iterator goes on where the last one stood. One at a time: a new one ends the one before it.

    Attributes:
        worker: Whose batches.
        order_options: What the order is made from.

    Args:
        plan_epoch: Returns this worker's plan of an epoch.
        features: Which to decode, at least one.
        dataset: Hash of the shards.
        split: Name of the split.
        order: What the order is made from.
        worker: Whose batches.
        epochs: Which are read.
        reading: Changes no batch.
        is_remote: Whether the blocks lie in a store.
        turn: Of this reader, see `OrderOptions.num_turns`.
    """

    def __init__(
        self,
        plan_epoch: Callable[[int], EpochPlan],
        features: Features,
        *,
        dataset: str,
        split: str,
        order: OrderOptions,
        worker: Worker,
        epochs: range,
        reading: ReadingOptions,
        is_remote: bool,
        turn: int = 0,
    ) -> None:
        self.worker = worker
        self.order_options = order
        self._plan_epoch = plan_epoch
        self._num_steps = lru_cache(2)(lambda epoch: plan_epoch(epoch).num_steps)
        self._features = features
        self._dataset = dataset
        self._split = split
        self._epochs = epochs
        self._reading = reading
        self._is_remote = is_remote
        self._turn = turn
        self._hooks: tuple[Callable[[Batch], Batch], ...] = ()
        self._next = (epochs.start, turn)
        self._running: Iterator[Batch] | None = None

    @property
    def num_steps(self) -> int:
        """Batches of the epoch of the next batch, those of all turns; the same for every worker."""
        return self._num_steps(self._next[0])

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        self._running = self._iterate()
        return self._running

    def state(self) -> dict[str, Any]:
        """Returns where the reader stands, behind the last batch it gave, as JSON values of less than 1 KB."""
        epoch, step = self._next
        state = ReaderState(dataset=self._dataset, split=self._split, order=self.order_options, epoch=epoch, step=step)
        found: dict[str, Any] = msgspec.to_builtins(state)
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to where another reader of the same order stood; the number of workers may differ.

        Raises:
            UsageError: If it is no state, or one of other data or another order; names the difference.
        """
        try:
            found = msgspec.convert(state, ReaderState)
        except msgspec.ValidationError as error:
            raise UsageError(
                "this is no state of a reader",
                why=str(error),
                next_step="Give what `state()` of a reader returned",
            ) from error
        mine = msgspec.convert(self.state(), ReaderState)
        pairs = {"dataset": (found.dataset, mine.dataset), "split": (found.split, mine.split)}
        for name in OrderOptions.__struct_fields__:
            pairs[name] = (getattr(found.order, name), getattr(mine.order, name))
        differences = [f"{name} was {then!r} and is {now!r}" for name, (then, now) in pairs.items() if then != now]
        if differences:
            raise UsageError(
                "the state belongs to another order of reading",
                why=", ".join(differences),
                next_step="Open the same data with the same settings, or begin anew",
            )
        num_turns = self.order_options.num_turns
        num_steps = self._num_steps(found.epoch)
        if not 0 <= found.step <= max(num_steps, self._turn) or found.step % num_turns != self._turn:
            raise UsageError(
                "this reader has no such step",
                why=f"it is {found.step:,} of {num_steps:,}, and this is turn {self._turn} of {num_turns}",
                next_step="Give what `state()` of a reader of the same turn returned",
            )
        self.close()
        self._next = (found.epoch, found.step)

    def close(self) -> None:
        """Ends what runs in the background. The reader may be used again."""
        if self._running is not None:
            with suppress(ValueError):
                self._running.close()  # type: ignore[attr-defined]
            self._running = None

    def _iterate(self) -> Iterator[Batch]:
        while self._next[0] < self._epochs.stop:
            epoch, first_step = self._next
            plan = self._plan_epoch(epoch)
            steps = range(first_step, plan.num_steps, self.order_options.num_turns)
            batches = read_batches(
                plan, self._features, self._reading, self._finish, steps=steps, is_remote=self._is_remote
            )
            for step, batch in zip(steps, batches, strict=True):
                following = step + self.order_options.num_turns
                self._next = (epoch, following) if following < plan.num_steps else (epoch + 1, self._turn)
                yield batch
            if not steps:
                self._next = (epoch + 1, self._turn)

    def _finish(self, batch: Batch) -> Batch:
        return reduce(lambda found, hook: hook(found), self._hooks, batch)
