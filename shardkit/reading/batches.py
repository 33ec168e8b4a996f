"""Batches of one epoch: blocks are loaded ahead in threads, rows are gathered and decoded a batch at a time.

A block is inflated and its records are found once; what is held is its framed records, never its columns. A batch
gathers its rows from the blocks of its lanes and decodes them together, so that decoding works on data that has just
been in the cache, and nothing is decoded that is not delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from shardkit import storage
from shardkit.blocks import BlockReader
from shardkit.codec_kernel import BytesLike, Int64s, gather
from shardkit.dataset import Dataset
from shardkit.decoder import RecordDecoder, scan_whole
from shardkit.errors import DamageError
from shardkit.features import Features
from shardkit.reading.ahead import BlocksAhead, Planned
from shardkit.reading.columns import Batch, BatchMaker, pad
from shardkit.reading.order import EpochOrder, Worker
from shardkit.reading.split_blocks import SplitBlocks
from shardkit.units import MiB

P = ParamSpec("P")
T = TypeVar("T")

_NONE: Int64s = np.zeros(0, np.int64)


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


class Block(NamedTuple):
    """The records of one block.

    Attributes:
        where: File and block, for messages.
        frames: Framed records.
        starts: Where each record's own bytes start, in the epoch's order.
        lengths: Bytes of each record.
        stored_rows: Stored position of each record in the block.
    """

    where: str
    frames: bytes | bytearray
    starts: Int64s
    lengths: Int64s
    stored_rows: Int64s


class Piece(NamedTuple):
    """Neighbouring rows of one block."""

    block: Block
    start: int
    stop: int


class BlockLoader:
    """Loads the blocks of a split; for any number of threads.

    Attributes:
        is_remote: Whether they lie in a store, where a request waits longer than it works.
    """

    def __init__(self, dataset: Dataset, blocks: SplitBlocks) -> None:
        self.is_remote = not storage.is_local(dataset.url)
        self._readers = BlockReader(dataset)
        self._blocks = blocks

    def num_bytes(self, index: int) -> int:
        """Returns the bytes of a block's framed records."""
        return self._blocks.ref(index).num_uncompressed_bytes

    def load(self, index: int, order: Int64s | None) -> Block:
        """Returns one block.

        Args:
            index: 0-based position among all blocks of the split.
            order: Stored positions of its rows in the wanted order; None for the stored one.

        Raises:
            DamageError: If it is not what the index states; names shard and block.
        """
        ref = self._blocks.ref(index)
        frames, where = self._readers.read(ref), self._readers.where(ref)
        starts, lengths = scan_whole(frames, where)
        if len(starts) != ref.num_examples:
            raise DamageError(
                "a block does not hold the records that the index states",
                where=where,
                why=f"expected {ref.num_examples:,}, found {len(starts):,}",
                next_step="Run: shardkit verify",
            )
        if order is None:
            return Block(where, frames, starts, lengths, np.arange(len(starts)))
        return Block(where, frames, starts[order], lengths[order], order)

    def close(self) -> None:
        """Closes the files that are open."""
        self._readers.close()


class Assembler:
    """Makes batches of rows that lie in several blocks; for any number of threads.

    Args:
        features: Which to decode, at least one.
        decodes_text: See `ReadingOptions`.
    """

    def __init__(self, features: Features, *, decodes_text: bool = True) -> None:
        self._decoder = RecordDecoder(features)
        self._maker = BatchMaker(features, decodes_text=decodes_text)

    def assemble(self, pieces: list[Piece]) -> Batch:
        """Returns the rows of the pieces as one batch, in their order.

        Raises:
            DamageError: If a record is no example with these features; names shard, block and record.
        """
        frames: list[BytesLike] = []
        starts: list[Int64s] = [_NONE]
        lengths = np.concatenate([_NONE, *(p.block.lengths[p.start : p.stop] for p in pieces)])
        num_bytes = 0
        for block, start, stop in pieces:
            starts.append(block.starts[start:stop] + num_bytes)
            frames.append(block.frames)
            num_bytes += len(block.frames)
        records = gather(frames or [b""], np.concatenate(starts), lengths)

        def locate(row: int) -> str:
            for block, start, stop in pieces:
                if row < stop - start:
                    return f"{block.where}, record {block.stored_rows[start + row]}"
                row -= stop - start
            raise IndexError(row)

        columns = self._decoder.decode_buffers(records, np.cumsum(lengths) - lengths, lengths, locate)
        try:
            return self._maker.make(columns, len(lengths))
        except pa.ArrowException as error:
            blocks = ", ".join(sorted({piece.block.where for piece in pieces}))
            raise DamageError("text cannot be read", where=blocks, why=str(error)) from error


def read_batches(
    loader: BlockLoader,
    order: EpochOrder,
    worker: Worker,
    features: Features,
    options: ReadingOptions,
    *,
    steps: range,
    num_rows: int,
) -> Iterator[Batch]:
    """Yields a worker's batches of one epoch.

    Args:
        loader: Of the split that the order is of.
        order: The epoch.
        worker: Whose batches.
        features: Which to decode, at least one.
        options: Change no batch.
        steps: Which; nothing of those before them is read.
        num_rows: Of every batch; one with fewer examples is filled up.

    Raises:
        DamageError: In the place of the first batch that cannot be read; names shard, block and record.
    """
    assembler = Assembler(features, decodes_text=options.decodes_text)

    def make(planned: Planned[Future[Block]]) -> Batch:
        blocks = {place: block.result() for place, block in planned.blocks.items()}
        batch = assembler.assemble([Piece(blocks[place], start, stop) for place, start, stop in planned.rows])
        num_real = sum(stop - start for _, start, stop in planned.rows)
        if num_real == num_rows:
            return batch
        return pad(batch, features, num_real, num_rows, decodes_text=options.decodes_text)

    num_ahead = options.num_ahead if options.num_threads else 0
    with ExitStack() as stack:
        # First in, first out: a batch waits only for blocks that were begun before it, so none can lock up.
        threads = _threads(options.num_threads, stack)
        requests = threads
        if loader.is_remote and options.num_threads:
            requests = _threads(options.num_requests, stack)
        ahead = BlocksAhead(
            iter(steps),
            lambda step: order.rows(step, worker),
            lambda place: requests.submit(_load, loader, order, place),
            lambda place: loader.num_bytes(int(order.blocks[place])),
            max_steps=len(steps) if requests is not threads else 0,
            max_bytes=options.ahead_bytes,
        )
        pending: deque[Future[Batch]] = deque()
        for planned in ahead:
            pending.append(threads.submit(make, planned))
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


def _load(loader: BlockLoader, order: EpochOrder, place: int) -> Block:
    return loader.load(int(order.blocks[place]), order.block_order(place))
