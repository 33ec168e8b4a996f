"""Reading the blocks of a dataset: any of them alone, many of them in threads.

A block is read by its byte range and inflated alone, so the blocks of one shard are inflated in parallel. Local shards
are read block by block through a file that stays open (opening it again costs as much as inflating a stored block
takes, reading several blocks at once costs twice as much because they leave the cache); blocks that lie side by side in
an object store are asked for together, because there every request waits.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import BinaryIO, TypeVar

import msgspec

from shardkit import storage
from shardkit.codec import GZIP_HEADER_BYTES, inflate_block
from shardkit.codec_kernel import crc32c
from shardkit.dataset import Dataset
from shardkit.errors import DamageError, StorageError, UsageError
from shardkit.manifest import ShardInfo
from shardkit.units import MiB

T = TypeVar("T")
_Outcome = tuple[list[T], Exception | None]

_REQUEST_BYTES = 4 * MiB
_KEPT_BYTES = 31 * MiB


class BlockRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where one block lies and what it holds.

    Attributes:
        path: Of the shard, relative to the dataset.
        split: Of the shard.
        shard_index: 0-based position of the shard in the split.
        block_index: 0-based position of the block in the shard.
        start: Its first byte in the file.
        num_bytes: Its size in the file.
        num_uncompressed_bytes: Size of its framed records.
        num_examples: Its records.
        crc32c: Of its bytes in the file.
    """

    path: str
    split: str
    shard_index: int
    block_index: int
    start: int
    num_bytes: int
    num_uncompressed_bytes: int
    num_examples: int
    crc32c: int


def list_blocks(shard: ShardInfo) -> tuple[BlockRef, ...]:
    """Returns the blocks of a shard in their stored order."""
    # Without compression a shard is nothing but its blocks.
    start = GZIP_HEADER_BYTES if shard.num_bytes != sum(shard.block_num_bytes) else 0
    columns = (shard.block_num_bytes, shard.block_num_uncompressed_bytes, shard.block_num_examples, shard.block_crc32c)
    found = []
    for block_index, (num_bytes, num_uncompressed_bytes, num_examples, crc) in enumerate(zip(*columns, strict=True)):
        found.append(
            BlockRef(
                path=shard.path,
                split=shard.split,
                shard_index=shard.shard_index,
                block_index=block_index,
                start=start,
                num_bytes=num_bytes,
                num_uncompressed_bytes=num_uncompressed_bytes,
                num_examples=num_examples,
                crc32c=crc,
            )
        )
        start += num_bytes
    return tuple(found)


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

    Reading, inflating and the function run in threads, ahead of the consumer. The threads end when the iterator is
    exhausted, closed or fails; nothing is begun while nobody asks.

    Args:
        dataset: Where the blocks lie.
        refs: Any blocks in any order; taken one by one, so they may be without end.
        function: Must not depend on the order in which it is called.
        num_threads: How many blocks are worked on at once.
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
    return _map(dataset, _runs(dataset, refs, max(1, max_ahead // num_threads)), function, num_threads, max_ahead)


class BlockReader:
    """Reads blocks for any number of threads, each of which keeps its last local shard open."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._idle: queue.SimpleQueue[_Reader] = queue.SimpleQueue()

    def read(self, ref: BlockRef) -> bytes | bytearray:
        """Returns the framed records of one block.

        Raises:
            DamageError: If the shard is missing or too short, or the block is not what the index states; names both.
        """
        with self.borrow() as reader:
            return next(reader.read([ref]))

    def where(self, ref: BlockRef) -> str:
        """Returns file and block, for messages."""
        return _where(self._dataset, ref)

    def close(self) -> None:
        """Closes what is open. Nothing may be read at the same time or after."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def borrow(self) -> Iterator[_Reader]:
        """Lends a reader that no other thread uses."""
        try:
            reader = self._idle.get_nowait()
        except queue.Empty:
            reader = _Reader(self._dataset)
        try:
            yield reader
        finally:
            self._idle.put(reader)


class _Reader:
    """Reads blocks for one thread at a time; keeps the last local shard open."""

    def __init__(self, dataset: Dataset) -> None:
        _keep_freed_memory()
        self._dataset = dataset
        self._is_gzip = dataset.manifest.compression == "gzip"
        self._is_local = storage.is_local(dataset.url)
        self._path: str | None = None
        self._file: BinaryIO
        self._num_file_bytes = 0

    def read(self, run: Sequence[BlockRef]) -> Iterator[bytes | bytearray]:
        """Yields the framed records of blocks that lie side by side."""
        for ref, data in zip(run, self._stored(run), strict=True):
            where = self._where(ref)
            if crc32c(data) != ref.crc32c:
                raise DamageError(
                    "a block is damaged",
                    where=where,
                    why="its bytes do not have the CRC32C that the shard table states",
                    next_step=f"Run: shardkit verify {storage.redact(self._dataset.url)}",
                )
            if self._is_gzip:
                yield inflate_block(data, ref.num_uncompressed_bytes, where)
                continue
            if ref.num_bytes != ref.num_uncompressed_bytes:
                raise DamageError(
                    "a block has the wrong size",
                    where=where,
                    why=f"the index states {ref.num_bytes} bytes that hold {ref.num_uncompressed_bytes}",
                )
            yield bytes(data)

    def close(self) -> None:
        """Closes what is open."""
        if self._path is not None:
            self._file.close()
            self._path = None

    def _stored(self, run: Sequence[BlockRef]) -> Iterator[bytes | memoryview]:
        if len(run) > 1:
            try:
                num_bytes = sum(ref.num_bytes for ref in run)
                data = memoryview(storage.read_range(self._url(run[0]), run[0].start, num_bytes))
            except (StorageError, FileNotFoundError):
                pass  # Each block alone shows which one is cut off.
            else:
                for ref in run:
                    yield data[ref.start - run[0].start :][: ref.num_bytes]
                return
        for ref in run:
            yield self._read_alone(ref)

    def _read_alone(self, ref: BlockRef) -> bytes:
        where = self._where(ref)
        try:
            if not self._is_local:
                return storage.read_range(self._url(ref), ref.start, ref.num_bytes)
            data = self._read_local(ref)
        except FileNotFoundError as error:
            raise DamageError("a shard is missing", where=where) from error
        except OSError as error:
            raise StorageError("a shard cannot be read", where=where, why=error.strerror or str(error)) from error
        except StorageError as error:
            raise DamageError("a shard is cut off", where=where, why=error.why) from error
        if len(data) != ref.num_bytes:
            raise DamageError("a shard is cut off", where=where, why=f"{len(data)} of {ref.num_bytes} bytes are there")
        return data

    def _read_local(self, ref: BlockRef) -> bytes:
        self._open(ref)
        # What the index states may be no position at all, and must not be allocated.
        start = min(ref.start, self._num_file_bytes)
        # Not seek and read: a forked process shares the position of the file.
        return os.pread(self._file.fileno(), min(ref.num_bytes, self._num_file_bytes - start), start)

    def _open(self, ref: BlockRef) -> None:
        if self._path == ref.path:
            return
        self.close()
        self._file = storage.open_read(self._url(ref))
        self._path = ref.path
        self._num_file_bytes = self._file.seek(0, os.SEEK_END)

    def _url(self, ref: BlockRef) -> str:
        return storage.join(self._dataset.url, ref.path)

    def _where(self, ref: BlockRef) -> str:
        return _where(self._dataset, ref)


def _where(dataset: Dataset, ref: BlockRef) -> str:
    return f"{storage.redact(storage.join(dataset.url, ref.path))}, block {ref.block_index}"


@functools.cache
def _keep_freed_memory() -> None:
    """Makes glibc keep the memory of freed blocks for the next ones.

    It gives large allocations back to the system when they are freed, and the pages of the next one are made and
    cleared anew, which takes several times as long as inflating a stored block. What counts as large is the largest
    size freed so far, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD); these bytes are never touched, so cost no memory.
    """
    bytes(_KEPT_BYTES)


def _map(
    dataset: Dataset,
    runs: Iterator[list[BlockRef]],
    function: Callable[[BlockRef, bytes | bytearray], T],
    num_threads: int,
    max_ahead: int,
) -> Iterator[T]:
    is_stopped = threading.Event()
    readers = BlockReader(dataset)

    def work(run: list[BlockRef]) -> _Outcome[T]:
        results: list[T] = []
        try:
            with readers.borrow() as reader:
                for ref, records in zip(run, reader.read(run), strict=True):
                    results.append(function(ref, records))
                    if is_stopped.is_set():
                        break
        except Exception as error:  # noqa: BLE001 - it is raised again, after the results before it
            return results, error
        return results, None

    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="shardkit-blocks")
    pending: deque[tuple[int, Future[_Outcome[T]]]] = deque()
    num_pending = 0
    try:
        for run in runs:
            while pending and num_pending + len(run) > max_ahead:
                num_blocks, future = pending.popleft()
                yield from _unpack(future.result())
                num_pending -= num_blocks
            pending.append((len(run), threads.submit(work, run)))
            num_pending += len(run)
        while pending:
            yield from _unpack(pending.popleft()[1].result())
    finally:
        is_stopped.set()
        threads.shutdown(wait=True, cancel_futures=True)
        readers.close()


def _unpack(outcome: _Outcome[T]) -> Iterator[T]:
    results, error = outcome
    results.reverse()
    while results:
        yield results.pop()
    if error is not None:
        raise error


def _runs(dataset: Dataset, refs: Iterable[BlockRef], max_blocks: int) -> Iterator[list[BlockRef]]:
    """Yields blocks that are read together: one by one from local files, side by side from a store."""
    is_local = storage.is_local(dataset.url)
    run: list[BlockRef] = []
    num_bytes = 0
    for ref in refs:
        is_next = bool(run) and ref.path == run[-1].path and ref.start == run[-1].start + run[-1].num_bytes
        if run and (is_local or not is_next or len(run) == max_blocks or num_bytes + ref.num_bytes > _REQUEST_BYTES):
            yield run
            run, num_bytes = [], 0
        run.append(ref)
        num_bytes += ref.num_bytes
    if run:
        yield run
