"""Batches of one epoch: blocks are loaded ahead in threads, rows are gathered and decoded a batch at a time.

A block is inflated and its records are found once; what is held is its framed records, never its columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import msgspec

from shardkit.features import Features
from shardkit.reading.ahead import BlocksAhead, Planned
from shardkit.reading.assembler import Assembler, Piece
from shardkit.reading.blocks import Block
from shardkit.reading.columns import Batch, pad
from shardkit.reading.plan import EpochPlan
from shardkit.units import MiB

P = ParamSpec("P")
T = TypeVar("T")


class ReadingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How batches are made; changes no order.

    Attributes:
        num_threads: Blocks and batches that are worked on at once; 0 does everything when it is asked for.
        num_ahead: Batches that are made before they are asked for.
        num_requests: Blocks that are asked of a store at once.
        ahead_bytes: Blocks of a store that are loaded before their first batch is made, at most so many bytes and one
            batch more.
        decodes_text: Whether text becomes `str` and decimals `Decimal`, instead of the bytes that are stored.
    """

    num_threads: int = 2
    num_ahead: int = 4
    num_requests: int = 16
    ahead_bytes: int = 64 * MiB
    decodes_text: bool = True


def read_batches(
    plan: EpochPlan,
    features: Features,
    options: ReadingOptions,
    finish: Callable[[Batch], Batch],
    *,
    steps: range,
    is_remote: bool,
) -> Iterator[Batch]:
    """Yields a worker's batches of one epoch.

    Args:
        plan: Of the epoch.
        features: Which to decode, at least one.
        options: Change no batch.
        finish: What is done to a batch, in the thread that made it, before it is given.
        steps: Which; nothing of those before them is read.
        is_remote: Whether the blocks lie in a store, where a request waits longer than it works.

    Raises:
        DamageError: In the place of the first batch that cannot be read; names shard, block and record.
    """
    assembler = Assembler(features, decodes_text=options.decodes_text)

    def make(step: int, planned: Planned[Future[Block]]) -> Batch:
        blocks = {place: block.result() for place, block in planned.blocks.items()}
        batch = assembler.assemble([Piece(blocks[place], start, stop) for place, start, stop in planned.rows])
        num_real = sum(stop - start for _, start, stop in planned.rows)
        num_rows = plan.num_rows(step)
        if num_real != num_rows:
            batch = pad(batch, features, num_real, num_rows, decodes_text=options.decodes_text)
        return finish(batch)

    num_ahead = options.num_ahead if options.num_threads else 0
    with ExitStack() as stack:
        # First in, first out: a batch waits only for blocks that were begun before it, so none can lock up.
        threads = _threads(options.num_threads, stack)
        requests = threads
        if is_remote and options.num_threads:
            requests = _threads(options.num_requests, stack)
        ahead = BlocksAhead(
            iter(steps),
            plan.rows,
            lambda place: requests.submit(plan.load, place),
            plan.num_bytes,
            max_steps=len(steps) if requests is not threads else 0,
            max_bytes=options.ahead_bytes,
        )
        pending: deque[Future[Batch]] = deque()
        for step, planned in zip(steps, ahead, strict=True):
            pending.append(threads.submit(make, step, planned))
            if len(pending) > num_ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _threads(num_threads: int, stack: ExitStack) -> Executor:
    if num_threads == 0:
        return _AtOnce()
    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="shardkit-batches")
    stack.callback(threads.shutdown, wait=True, cancel_futures=True)
    return threads


class _AtOnce(Executor):
    """Does everything when it is submitted."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future
