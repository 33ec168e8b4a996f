"""Batches of epochs: blocks are loaded ahead in threads, rows are gathered and decoded a batch at a time.

A block is inflated and its records are found once. Its framed records are held, never its columns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import msgspec

from shardkit.dataset.block_loader import Block, Fetched
from shardkit.features import Features
from shardkit.reading.batch import Assembler, Batch, pad
from shardkit.reading.epoch_plan import EpochPlan, RunsPlan
from shardkit.reading.order import Rows
from shardkit.reading.prefetch import BlockPrefetcher, Planned, Step
from shardkit.runtime.threads import worker_threads
from shardkit.units import MiB

P = ParamSpec("P")
T = TypeVar("T")

# A thread that makes a batch does not wait for another one that has just begun its block.
_STEPS_AHEAD = 4
# Thousands of steps of a small split in a store would fit into the bytes that may be loaded ahead.
_STORE_STEPS_AHEAD = 1024

# Handing a batch of half a MiB over to another thread, and back, takes a fifth of the time of making it.
_TASK_BYTES = MiB


class ReadingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How batches are made; changes no order.

    A reader holds the framed records of the blocks that the lanes stand in, and `num_ahead + num_threads` batches, of
    less than a MiB up to twice `num_ahead`; from a store also the blocks of `ahead_bytes` and one batch more, those of
    a split as they are stored.

    Attributes:
        num_threads: Blocks and batches that are worked on at once; 0 does everything when it is asked for.
        num_ahead: Batches that are made before they are asked for.
        num_requests: Requests that are with a store at once; of up to 4 MiB where blocks are side by side.
        ahead_bytes: Blocks of a store that are asked for before their first batch is made: those of so many bytes of
            framed records at most, and of one batch more.
        decodes_text: Whether text becomes `str` and decimals `Decimal`, instead of the bytes that are stored.
    """

    num_threads: int = 2
    num_ahead: int = 4
    num_requests: int = 64
    ahead_bytes: int = 64 * MiB
    decodes_text: bool = True


class BatchMaker:
    """Makes batches of blocks that were begun, in any thread.

    Args:
        plan_of: Returns the plan of an epoch, the same one each time.
        features: Which to decode, at least one.
        finish: What is done to a batch, with its step and its rows, in the thread that made it, before it is given;
            None if nothing is.
        decodes_text: See `ReadingOptions`.
    """

    def __init__(
        self,
        plan_of: Callable[[int], EpochPlan],
        features: Features,
        finish: Callable[[Batch, Step, list[Rows]], Batch] | None,
        *,
        decodes_text: bool,
    ) -> None:
        self.plan_of = plan_of
        self.has_functions = finish is not None
        self._features = features
        self._finish = finish
        self._decodes_text = decodes_text
        self._assembler = Assembler(features, decodes_text=decodes_text)

    def make_all(self, group: list[Planned[_Begun]]) -> _Made:
        """Makes batches of some steps, up to the first that cannot be made."""
        made: list[tuple[Step, Batch]] = []
        for planned in group:
            try:
                made.append((planned.step, self._make(planned)))
            except Exception as error:  # noqa: BLE001 - it is raised where the batch is asked for
                return _Made(made, error)
        return _Made(made, None)

    def _make(self, planned: Planned[_Begun]) -> Batch:
        epoch, step = planned.step
        plan = self.plan_of(epoch)
        parts = zip(planned.blocks, planned.rows, strict=True)
        batch = self._assembler.assemble([(loading.block(), start, stop) for loading, (_, start, stop) in parts])
        if plan.is_filled_up(step):
            num_real = sum(stop - start for _, start, stop in planned.rows)
            batch = pad(batch, self._features, num_real, plan.num_rows(step), decodes_text=self._decodes_text)
        batch = plan.finish(step, batch)
        return batch if self._finish is None else self._finish(batch, planned.step, planned.rows)


def read_batches(
    maker: BatchMaker, steps: Iterator[Step], options: ReadingOptions, begun: list[Executor], *, is_remote: bool
) -> Iterator[tuple[Step, Batch]]:
    """Yields a worker's batches; those of an epoch are begun while the last ones of the epoch before are given.

    Args:
        steps: Which; nothing of those before them is read.
        options: Change no batch.
        begun: Takes up what runs in the background, to be waited for.
        is_remote: Whether the blocks are in a store, where a request waits longer than it works.

    Raises:
        DamageError: In the place of the first batch that cannot be read; names shard, block and record.
    """
    num_ahead = options.num_ahead if options.num_threads else 0
    # Users' functions may take any time, so each batch is a separate task then.
    max_batches = 1 if maker.has_functions else max(1, num_ahead // max(1, options.num_threads))
    with ExitStack() as stack:
        threads, requests = _executors(stack, options, begun, is_remote=is_remote)
        ahead = BlockPrefetcher(
            steps,
            lambda step: maker.plan_of(step.epoch).rows(step.step),
            lambda epoch, places: _begin(maker.plan_of(epoch), places, requests, is_remote),
            lambda epoch, place: maker.plan_of(epoch).num_bytes(place),
            max_steps=0 if not options.num_threads else _STEPS_AHEAD if requests is threads else _STORE_STEPS_AHEAD,
            max_bytes=options.ahead_bytes,
        )
        pending: deque[Future[_Made]] = deque()
        num_pending = 0
        planned_steps = _unpacked_ahead(ahead, threads) if requests is not threads else iter(ahead)
        for group in _groups(planned_steps, lambda: ahead.mean_step_bytes, max_batches):
            pending.append(threads.submit(maker.make_all, group))
            num_pending += len(group)
            if num_pending > num_ahead:
                made = pending.popleft().result()
                num_pending -= len(made.batches)
                yield from made.each()
        for later in pending:
            yield from later.result().each()


def _executors(
    stack: ExitStack, options: ReadingOptions, begun: list[Executor], *, is_remote: bool
) -> tuple[Executor, Executor]:
    """Returns what makes batches, and what loads blocks: the same, unless blocks are in a store."""
    if not options.num_threads:
        at_once = _AtOnce()
        return at_once, at_once
    # First in, first out: a batch waits only for blocks that were begun before it, so none can lock up.
    threads = stack.enter_context(worker_threads(options.num_threads, "shardkit-batches"))
    begun.append(threads)
    if not is_remote:
        return threads, threads
    requests = stack.enter_context(worker_threads(options.num_requests, "shardkit-requests"))
    begun.append(requests)
    return threads, requests


class _Made(NamedTuple):
    """Batches that one task made, and why it did not make more."""

    batches: list[tuple[Step, Batch]]
    error: Exception | None

    def each(self) -> Iterator[tuple[Step, Batch]]:
        yield from self.batches
        if self.error is not None:
            raise self.error


def _groups(
    steps: Iterator[Planned[_Begun]], mean_step_bytes: Callable[[], float], max_batches: int
) -> Iterator[list[Planned[_Begun]]]:
    """Yields groups of planned steps, several together where the batches are small."""
    group = []
    for planned in steps:
        group.append(planned)
        if len(group) >= max_batches or len(group) * mean_step_bytes() >= _TASK_BYTES:
            yield group
            group = []
    if group:
        yield group


def _unpacked_ahead(ahead: BlockPrefetcher[_Begun], threads: Executor) -> Iterator[Planned[_Begun]]:
    """Yields planned steps, and has the blocks of the next few unpacked before, in the order of need."""
    waiting: deque[Planned[_Begun]] = deque()
    for planned in ahead:
        for block in planned.blocks:
            if isinstance(block, _Fetching):
                block.begin(threads)
        waiting.append(planned)
        if len(waiting) > _STEPS_AHEAD:
            yield waiting.popleft()
    yield from waiting


class _Loading:
    """A block that is there or will be. Asking its future for every batch costs as much as decoding two records."""

    __slots__ = ("_block", "_future")

    def __init__(self, future: Future[Block]) -> None:
        self._future = future
        self._block: Block | None = None

    def block(self) -> Block:
        if self._block is None:
            self._block = self._future.result()
        return self._block


class _Fetching:
    """A block that will be there as it is stored. The few threads that make batches unpack it: dozens that wait for a
    store would only be in the way of each other, and of memory that is used again."""

    __slots__ = ("_block", "_future", "_is_begun", "_lock")

    def __init__(self, future: Future[Fetched]) -> None:
        self._future: Future[Fetched] | None = future
        self._lock = threading.Lock()
        self._block: Block | None = None
        self._is_begun = False

    def begin(self, threads: Executor) -> None:
        """Has the block unpacked, unless that was begun before. An error is raised where the block is needed."""
        if not self._is_begun:
            self._is_begun = True
            threads.submit(self.block)

    def block(self) -> Block:
        if self._block is None:
            with self._lock:
                if self._future is not None:
                    self._block = self._future.result()()
                    self._future = None
        assert self._block is not None
        return self._block


_Begun = _Loading | _Fetching


def _begin(plan: EpochPlan, places: list[Any], requests: Executor, is_remote: bool) -> list[_Begun]:
    """Begins to load blocks, with one request of a store for those that the plan loads together."""
    if not is_remote or not isinstance(plan, RunsPlan):
        return [_Loading(requests.submit(plan.load, place)) for place in places]
    found: list[_Begun] = []
    for run in plan.runs(places):
        blocks: list[Future[Fetched]] = [Future() for _ in run]
        requests.submit(_fetch_run, plan, run, blocks).add_done_callback(partial(_pass_cancel_on, blocks))
        found.extend(map(_Fetching, blocks))
    return found


def _pass_cancel_on(blocks: list[Future[Fetched]], loading: Future[None]) -> None:
    # A thread must not wait for ever for a block of a run that will not be loaded any more.
    if loading.cancelled():
        for block in blocks:
            block.cancel()


def _fetch_run(plan: RunsPlan, run: list[Any], blocks: list[Future[Fetched]]) -> None:
    num_done = 0
    while num_done < len(run):
        try:
            for fetched in plan.fetch_run(run[num_done:]):
                blocks[num_done].set_result(fetched)
                num_done += 1
        except Exception as error:  # noqa: BLE001 - it is raised where the block is asked for
            blocks[num_done].set_exception(error)
            num_done += 1


class _AtOnce(Executor):
    """Does everything when it is submitted."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return _Done(fn(*args, **kwargs), None)
        except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
            return _Done(None, error)


class _Done(Future[T]):
    """What is done already: without the locks of a future, which cost as much as finding the rows of a batch."""

    def __init__(self, result: T | None, error: Exception | None) -> None:
        self._result, self._error = result, error

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        fn(self)
