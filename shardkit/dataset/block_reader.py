"""Reading the blocks of a dataset: any of them alone, many of them in threads.

A block is read by its byte range and inflated alone, so the blocks of one shard are inflated in parallel.
"""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

from shardkit.dataset.block_index import BlockRef, list_blocks
from shardkit.dataset.open import Dataset
from shardkit.dataset.stored_blocks import Stored, open_blocks, where_is
from shardkit.encoding.codec import FINAL_BYTE, inflate_sealed
from shardkit.encoding.decoder import RecordDecoder
from shardkit.encoding.example import python_value
from shardkit.encoding.gzip_files import inflate_file
from shardkit.errors import DamageError, UsageError
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.units import MiB

T = TypeVar("T")
_Outcome = tuple[list[T], Exception | None]
# Records of a block from a store are a view of the answer: a copy would take as long as the CRC32C.
Framed = bytes | bytearray | memoryview

_REQUEST_BYTES = 4 * MiB
_RUN_BYTES = 8 * MiB


def read_block(dataset: Dataset, ref: BlockRef) -> bytes:
    """Returns the framed records of one block, by one read of its bytes.

    Raises:
        DamageError: If the shard is missing or too short, or the block is not what the index states; names both.
    """
    with closing(BlockReader(dataset)) as reader:
        return bytes(reader.read(ref))


def map_blocks(
    dataset: Dataset,
    refs: Iterable[BlockRef],
    function: Callable[[BlockRef, bytes | bytearray], T],
    *,
    num_threads: int,
    max_ahead: int,
) -> Iterator[T]:
    """Yields `function(ref, framed records)` for every block, in the order of `refs`.

    Reading, inflating and the function run in threads, ahead of the consumer. The threads have ended when the iterator
    is exhausted or fails, and end soon after it is closed or dropped. No task begins between two calls of `next`.

    Args:
        refs: Any blocks in any order; taken one by one, so they may be without end.
        function: Must not depend on the order in which it is called.
        max_ahead: How many results and blocks in work are held at most, the one that the consumer has included.

    Raises:
        UsageError: If a number is less than 1.
        DamageError: In the place of a block that cannot be read; names file and block. What the function raises
            comes out likewise.
    """
    if num_threads < 1 or max_ahead < 1:
        raise UsageError(
            "blocks cannot be read",
            why=f"num_threads is {num_threads}, max_ahead {max_ahead}; both must be at least 1",
            next_step="Give 1 or more of both",
        )
    return _map(dataset, list_runs(dataset, refs, max(1, max_ahead // num_threads)), function, num_threads, max_ahead)


class BlockReader:
    """Reads blocks for any number of threads, each of which keeps its last local shard open."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._idle: queue.SimpleQueue[OneReader] = queue.SimpleQueue()

    def read(self, ref: BlockRef) -> Framed:
        """Returns the framed records of one block.

        Raises:
            DamageError: If the shard is missing or too short, or the block is not what the index states; names both.
            StorageError: If the store does not answer, however often it is asked.
        """
        with self.borrow() as reader:
            return next(reader.read([ref]))

    def read_stored_run(self, run: Sequence[BlockRef]) -> Iterator[Stored]:
        """Yields the stored bytes of blocks that `list_runs` put together, for `unpack`.

        Raises:
            DamageError, StorageError: In the place of a block whose bytes are not those of the index.
        """
        with self.borrow() as reader:
            yield from reader.read_stored(run)

    def unpack(self, ref: BlockRef, data: Stored) -> Framed:
        """Returns the framed records that the stored bytes of one block hold.

        Raises:
            DamageError: If they are not what the index states.
        """
        with self.borrow() as reader:
            return reader.unpack(ref, data)

    def where(self, ref: BlockRef) -> str:
        """Returns file and block, for messages."""
        return where_is(self._dataset, ref)

    def close(self) -> None:
        """Closes what is open. Nothing may be read at the same time or after."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def borrow(self) -> Iterator[OneReader]:
        """Lends a reader that no other thread uses. One that was interrupted, or failed, is not used again."""
        try:
            reader = self._idle.get_nowait()
        except queue.Empty:
            reader = OneReader(self._dataset)
        yield reader
        self._idle.put(reader)


class OneReader:
    """Reads blocks for one thread at a time: their stored bytes first, then their records."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._is_gzip = dataset.manifest.compression == "gzip"
        self._stored = open_blocks(dataset, FINAL_BYTE if self._is_gzip else b"")

    def read(self, run: Sequence[BlockRef]) -> Iterator[Framed]:
        """Yields the framed records of blocks that are side by side.

        Raises:
            DamageError: In the place of a block that is missing, cut off or not what the index states.
        """
        for ref, data in zip(run, self.read_stored(run), strict=True):
            yield self.unpack(ref, data)

    def read_stored(self, run: Sequence[BlockRef]) -> Iterator[Stored]:
        """Yields the stored bytes of blocks that are side by side, those of the index, for `unpack`."""
        return self._stored.read(run)

    def unpack(self, ref: BlockRef, data: Stored) -> Framed:
        """Returns the framed records that the stored bytes of one block hold.

        Raises:
            DamageError: If they are not what the index states.
        """
        where = where_is(self._dataset, ref)
        if self._is_gzip:
            try:
                if ref.start:
                    return inflate_sealed(data, ref.num_uncompressed_bytes, where)
                return inflate_file(memoryview(data)[: ref.num_bytes], ref.num_uncompressed_bytes, where)
            except DamageError as error:
                error.next_step = error.next_step or self._dataset.check_step
                raise
        if ref.num_bytes != ref.num_uncompressed_bytes:
            raise DamageError(
                "a block has the wrong size",
                where=where,
                why=f"the index states {ref.num_bytes} bytes that hold {ref.num_uncompressed_bytes}",
                next_step=self._dataset.check_step,
            )
        return data

    def close(self) -> None:
        """Closes what is open."""
        self._stored.close()


def _map(
    dataset: Dataset,
    runs: Iterator[list[BlockRef]],
    function: Callable[[BlockRef, bytes | bytearray], T],
    num_threads: int,
    max_ahead: int,
) -> Iterator[T]:
    readers = BlockReader(dataset)

    def work(run: list[BlockRef]) -> _Outcome[T]:
        results: list[T] = []
        try:
            with readers.borrow() as reader:
                for ref, records in zip(run, reader.read(run), strict=True):
                    # Copied, because a view would keep all blocks of the run in memory.
                    results.append(function(ref, bytes(records) if isinstance(records, memoryview) else records))
                    if threads.stop_event.is_set():
                        break
        except Exception as error:  # noqa: BLE001 - it is raised again, after the results before it
            return results, error
        return results, None

    pending: deque[tuple[int, Future[_Outcome[T]]]] = deque()
    num_pending = 0
    # The open files are closed with the readers, because abandoned threads may still read from them.
    with worker_threads(num_threads, "shardkit-blocks") as threads:
        for run in runs:
            while pending and num_pending + len(run) > max_ahead:
                num_blocks, future = pending.popleft()
                yield from _unpack(future.result())
                num_pending -= num_blocks
            pending.append((len(run), threads.submit(work, run)))
            num_pending += len(run)
        while pending:
            yield from _unpack(pending.popleft()[1].result())


def _unpack(outcome: _Outcome[T]) -> Iterator[T]:
    results, error = outcome
    results.reverse()
    while results:
        yield results.pop()
    if error is not None:
        raise error


def list_runs(dataset: Dataset, refs: Iterable[BlockRef], max_blocks: int | None = None) -> Iterator[list[BlockRef]]:
    """Yields blocks that are read together: one by one from local files, side by side from a store.

    Args:
        refs: Any blocks in any order.
        max_blocks: Of a run; None means as many as 4 MiB in the file hold, and 8 MiB of framed records.
    """
    is_local = storage.is_local(dataset.url)
    run: list[BlockRef] = []
    num_bytes, num_uncompressed_bytes = 0, 0
    for ref in refs:
        num_bytes += ref.num_bytes
        num_uncompressed_bytes += ref.num_uncompressed_bytes
        is_next = bool(run) and ref.path == run[-1].path and ref.start == run[-1].start + run[-1].num_bytes
        is_too_much = num_bytes > _REQUEST_BYTES or num_uncompressed_bytes > _RUN_BYTES
        if run and (is_local or not is_next or len(run) == max_blocks or is_too_much):
            yield run
            run, num_bytes, num_uncompressed_bytes = [], ref.num_bytes, ref.num_uncompressed_bytes
        run.append(ref)
    if run:
        yield run


def first_examples(dataset: Dataset, split: str, num_examples: int) -> Iterator[dict[str, Any]]:
    """Yields at most so many examples in their stored order, as Python values by feature name, None where absent.

    Raises:
        UsageError: If there is no such split.
        DamageError: If a shard does not fit the manifest; names the place.
    """
    return itertools.islice(_examples(dataset, split), num_examples)


def _examples(dataset: Dataset, split: str) -> Iterator[dict[str, Any]]:
    decoder = RecordDecoder(dataset.manifest.features)
    for shard in dataset.split_shards(split):
        for block in list_blocks(shard):
            batch = decoder.decode(read_block(dataset, block), f"{shard.path}, block {block.block_index}")
            for row in range(batch.num_rows):
                yield {name: python_value(batch[name][row]) for name in batch.schema.names}
