"""One worker's batches over epochs, and where it is: a state that any number of workers goes on from."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, Literal, Self

import msgspec
import numpy as np

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.reading.batch import Batch
from shardkit.reading.batches import BatchMaker, read_batches
from shardkit.reading.epoch_plan import EpochPlan
from shardkit.reading.hooks import Filter, FilterFunction, Hook, Made, Map, MapFunction, keys_of, num_rows_of, run_hooks
from shardkit.reading.length_buckets import BucketSizes, shortened
from shardkit.reading.order import OrderOptions, Rows, check_counts
from shardkit.reading.prefetch import Step
from shardkit.reading.settings import BatchSettings


class Readable(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader reads.

    Attributes:
        features: Which to decode, at least one.
        dataset: Hash of the shards.
        buckets: Of the order.
    """

    plan_epoch: Callable[[int], EpochPlan]
    features: Features
    dataset: str
    split: str
    order: OrderOptions
    buckets: BucketSizes | None = None
    is_remote: bool


class ReaderState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The position of a run of batches; the same for all its workers.

    Attributes:
        reader: Version of this document, and of the order of reading.
        dataset: Hash of the shards.
        order: What the order was made from; many boundaries of buckets as their digest.
        epoch: Of the next batch.
    """

    reader: Literal[2] = 2
    dataset: str
    split: str
    order: OrderOptions
    epoch: int
    step: int


class BatchReader:
    """Iterates over one worker's batches of some epochs.

    Every iterator goes on where the last one stood. One at a time: a new one ends the one before it.

    Attributes:
        buckets: The examples by bucket, how many are left out, and the padding; None without `LengthBuckets`.
    """

    def __init__(self, readable: Readable, settings: BatchSettings, rebuild: Callable[[], BatchReader]) -> None:
        self.worker = settings.worker
        self.order_options = readable.order
        self.buckets = readable.buckets
        self._readable = readable
        self._reading = settings.reading
        self._num_steps = lru_cache(2)(lambda epoch: readable.plan_epoch(epoch).num_steps)
        self._epochs = range(settings.epoch, settings.epoch + settings.num_epochs)
        self._turn = settings.turn
        self._rebuild = rebuild
        self._hooks: tuple[Hook, ...] = ()
        self._next = (settings.epoch, settings.turn)
        # Weak: a reader and its iterator would else hold each other, with threads, blocks and batches, until Python's
        # collector happens to run.
        self._running: weakref.ref[Generator[Batch, None, None]] | None = None
        self._begun: list[Executor] = []

    @property
    def num_steps(self) -> int:
        """Batches of the epoch of the next batch, those of all turns; the same for every worker."""
        return self._num_steps(self._next[0])

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        running = self._iterate()
        self._running = weakref.ref(running)
        return running

    def map(self, function: MapFunction) -> Self:
        """Returns a reader that does something to each batch, in the threads that make it, ahead of the consumer.

        It is where this one is and has the same states; this one stays as it is.

        Args:
            function: Takes a `Batch`, for any number of threads. Returns a `Batch`, or a dict of columns of equal
                length (NumPy arrays `[n, ...]` or `Ragged`): then `mask`, and `present` of the names that remain, are
                kept. If it has a parameter `rng`, it gets a `RowRandom`: random numbers that a resumed run repeats. An
                exception is raised where the batch is asked for, with a note of the function, the epoch and the step.
        """
        return self.with_hooks((Map(function),))

    def filter(self, function: FilterFunction) -> Self:
        """Returns a reader that leaves rows out; see `map`.

        Batches become smaller, down to no rows. Their number stays, so that it is the same on every worker: one that
        has fewer steps than another would keep it waiting forever.

        Args:
            function: Takes a `Batch`, and `rng` as for `map`. Returns bool `[n]`; rows where it is False leave.
        """
        return self.with_hooks((Filter(function),))

    def with_hooks(self, hooks: tuple[Hook, ...]) -> Self:
        """Returns a reader with these hooks after those of this one."""
        other = type(self).__new__(type(self))
        vars(other).update(vars(self), _hooks=(*self._hooks, *hooks), _running=None, _begun=[])
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        # Open files are left out: a copy, such as one for a new process, opens its own, and is where this one is.
        return _rebuilt, (self._rebuild, self._hooks, self._next)

    def state(self) -> dict[str, Any]:
        """Returns where the reader is, behind the last batch it gave, as JSON values of less than 1 KB."""
        epoch, step = self._next
        order = _short(self.order_options)
        dataset, split = self._readable.dataset, self._readable.split
        state = ReaderState(dataset=dataset, split=split, order=order, epoch=epoch, step=step)
        found: dict[str, Any] = msgspec.to_builtins(state)
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to where another reader of the same order stood; the number of workers may differ.

        Raises:
            UsageError: If it is no state, or one of other data or another order, or of an epoch that is not read here;
                names the difference.
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
        pairs: dict[str, tuple[Any, Any]] = {
            "dataset": (found.dataset, mine.dataset),
            "split": (found.split, mine.split),
        }
        then, now = _settings(found.order), _settings(mine.order)
        pairs |= {name: (then.get(name), now.get(name)) for name in {**now, **then}}
        differences = [f"{name} was {then!r} and is {now!r}" for name, (then, now) in pairs.items() if then != now]
        if differences:
            raise UsageError(
                "the state belongs to another order of reading",
                why=", ".join(differences),
                next_step="Open the same data with the same settings, or begin anew",
            )
        check_counts(epoch=found.epoch)
        self._check_epoch(found)
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

    def _check_epoch(self, state: ReaderState) -> None:
        # A finished reader is where the next epoch would begin.
        is_finished = state.epoch == self._epochs.stop and state.step == self._turn
        if state.epoch in self._epochs or is_finished:
            return
        first, last = self._epochs.start, self._epochs.stop - 1
        span = "no epoch" if last < first else f"epoch {first}" if last == first else f"epochs {first} to {last}"
        raise UsageError(
            f"this reader does not read epoch {state.epoch}",
            why=f"the state is of step {state.step:,} of that epoch, and the reader reads {span}",
            next_step=f"Open it with epoch={state.epoch}, or with an earlier epoch=... and num_epochs=... up to there",
        )

    def close(self) -> None:
        """Ends the work in the background, and waits for its end. The reader may be used again."""
        running = None if self._running is None else self._running()
        self._running = None
        try:
            if running is not None:
                running.close()
        except ValueError:
            # Another thread is in it, and goes on.
            return
        while self._begun:
            self._begun.pop().shutdown(wait=True)

    def _iterate(self) -> Generator[Batch, None, None]:
        process = os.getpid()
        plans: dict[int, EpochPlan] = {}

        def plan_of(epoch: int) -> EpochPlan:
            if epoch not in plans:
                plans[epoch] = self._readable.plan_epoch(epoch)
            return plans[epoch]

        def steps() -> Iterator[Step]:
            epoch, first_step = self._next
            while epoch < self._epochs.stop:
                for step in range(first_step, plan_of(epoch).num_steps, self.order_options.num_turns):
                    yield Step(epoch, step)
                epoch, first_step = epoch + 1, self._turn

        finish = self._finish if self._hooks else None
        maker = BatchMaker(plan_of, self._readable.features, finish, decodes_text=self._reading.decodes_text)
        batches = read_batches(maker, steps(), self._reading, self._begun, is_remote=self._readable.is_remote)
        for (epoch, step), batch in batches:
            following = step + self.order_options.num_turns
            self._next = (epoch, following)
            if following >= plans[epoch].num_steps:
                self._next = (epoch + 1, self._turn)
                for past in [number for number in plans if number <= epoch]:
                    del plans[past]
            yield batch
            if os.getpid() != process:
                raise UsageError(
                    "this iterator belongs to another process",
                    why="the threads that work for it are not in a forked one",
                    next_step="Begin one with iter() there; it goes on where the reader stands",
                )
        if self._next[0] < self._epochs.stop:
            self._next = (self._epochs.stop, self._turn)

    def _finish(self, batch: Batch, at: Step, rows: list[Rows]) -> Batch:
        num_rows = num_rows_of(batch)
        keys = np.zeros(num_rows, np.uint64)
        if any(hook.takes_random for hook in self._hooks):
            keys = keys_of(rows, num_rows, self.order_options.seed, at.epoch)
        return run_hooks(self._hooks, Made(batch, at.epoch, at.step, keys))


def _rebuilt(rebuild: Callable[[], BatchReader], hooks: tuple[Hook, ...], at: tuple[int, int]) -> BatchReader:
    reader = rebuild().with_hooks(hooks)
    reader._next = at
    return reader


def _short(order: OrderOptions) -> OrderOptions:
    return order if order.buckets is None else msgspec.structs.replace(order, buckets=shortened(order.buckets))


def _settings(order: OrderOptions) -> dict[str, Any]:
    """Returns all of an order by name."""
    settings: dict[str, Any] = msgspec.to_builtins(_short(order))
    buckets = settings.pop("buckets") or {}
    if buckets and (digest := buckets.pop("boundaries_digest")) is not None:
        buckets["boundaries"] = digest
    return settings | {f"buckets.{name}": value for name, value in buckets.items()}
