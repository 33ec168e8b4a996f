"""The bytes of blocks as they are stored: from local files, or from a store by way of a cache, verified in one place.

A local shard is read block by block through a file that stays open: opening it again costs as much as inflating a
stored block takes, and reading several blocks at once costs twice as much because they leave the cache. Blocks that are
side by side in an object store are asked for together, because there every request waits. What a store answers is
compared with the index, and asked for again where it differs: connections break, and proxies cut answers off.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from shardkit.dataset.block_index import BlockRef
from shardkit.dataset.open import Dataset
from shardkit.encoding.kernel import crc32c, read_at
from shardkit.errors import DamageError, ShardkitError, StorageError
from shardkit.runtime.threads import current_stop_event
from shardkit.storage import files as storage
from shardkit.storage.regular_files import KeptFile, NotRegularError, keep_regular
from shardkit.storage.requests import request_range
from shardkit.units import MiB

NUM_TRIES = 5
TIMEOUT_S = 60.0

_FIRST_PAUSE_S = 0.1
_KEPT_BYTES = 31 * MiB

Stored = bytes | memoryview


class Fault(NamedTuple):
    """What is wrong with the bytes that were read for a block.

    Attributes:
        is_length: Whether there are too few or too many.
    """

    is_length: bool
    why: str


def find_fault(ref: BlockRef, data: Stored) -> Fault | None:
    """Returns the fault of the stored bytes of a block, None if they are those of the index."""
    return _fault_of(ref, len(data), crc32c(data))


def _fault_of(ref: BlockRef, num_bytes: int, crc: int) -> Fault | None:
    if num_bytes != ref.num_bytes:
        return Fault(True, f"{num_bytes} of {ref.num_bytes} bytes are there")
    if crc != ref.crc32c:
        return Fault(False, "its bytes do not have the CRC32C that the shard table states")
    return None


def where_is(dataset: Dataset, ref: BlockRef) -> str:
    """Returns file and block, for messages."""
    return f"{_shown(dataset.url, ref.path)}, block {ref.block_index}"


@functools.lru_cache
def _shown(url: str, path: str) -> str:
    """Returns a file as messages name it; every block that is loaded has one ready."""
    return storage.redact(storage.join(url, path))


class _OpenShard(NamedTuple):
    path: str
    file: KeptFile
    num_bytes: int


class LocalBlocks:
    """Reads the stored bytes of blocks from local files, for one thread at a time; keeps the last shard open.

    Args:
        tail: Follows the bytes of every block. To put it there later takes a copy of them.
    """

    def __init__(self, dataset: Dataset, tail: bytes) -> None:
        _keep_freed_memory()
        self._dataset = dataset
        self._tail = tail
        # A single value, because an interrupt may come between any two statements.
        self._open: _OpenShard | None = None

    def read(self, run: Sequence[BlockRef]) -> Iterator[Stored]:
        """Yields the stored bytes of blocks, each with the tail.

        Raises:
            DamageError: In the place of a block that is missing, cut off or not what the index states; names both.
            StorageError: If the disk fails.
        """
        for ref in run:
            try:
                data, crc = self._read(ref)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise _missing(self._dataset, ref) from error
            except OSError as error:
                kind = DamageError if isinstance(error, NotRegularError) else StorageError
                raise kind(
                    "a shard cannot be read",
                    where=where_is(self._dataset, ref),
                    why=error.strerror or str(error),
                    next_step=self._dataset.check_step,
                ) from error
            if (fault := _fault_of(ref, len(data) - len(self._tail), crc)) is not None:
                raise _damaged(self._dataset, ref, fault)
            yield data

    def close(self) -> None:
        """Closes the open file."""
        self._open = None

    def _read(self, ref: BlockRef) -> tuple[Stored, int]:
        shard = self._open
        if shard is None or shard.path != ref.path:
            shard = self._open = None
            file = keep_regular(storage.local_path(storage.join(self._dataset.url, ref.path)))
            shard = self._open = _OpenShard(ref.path, file, file.seek(0, os.SEEK_END))
        # A position or size from the index may be wrong, and must not be allocated as it is.
        start = min(ref.start, shard.num_bytes)
        # Not seek and read: a forked process shares the position of the file.
        return read_at(shard.file.fileno(), start, min(ref.num_bytes, shard.num_bytes - start), self._tail)


class RemoteBlocks:
    """Reads the stored bytes of blocks from a store, for any number of threads; keeps nothing open.

    Args:
        tail: Follows the bytes of every block.
    """

    def __init__(self, dataset: Dataset, tail: bytes) -> None:
        _keep_freed_memory()
        self._dataset = dataset
        self._tail = tail
        self._cache = dataset.block_cache

    def read(self, run: Sequence[BlockRef]) -> Iterator[Stored]:
        """Yields the stored bytes of blocks that are side by side, each with the tail.

        There is one request for those that are not kept.

        Raises:
            DamageError: In the place of a block that is missing, cut off or, however often it is asked for, not what
                the index states; names both.
            StorageError: In the place of a block for which the store, however often it is asked, does not answer.
        """
        kept = [self._kept(ref) for ref in run]
        for is_kept, found in groupby(zip(run, kept, strict=True), key=lambda pair: pair[1] is not None):
            if is_kept:
                yield from (data for _, data in found if data is not None)
            else:
                for data in self._fetch([ref for ref, _ in found]):
                    yield b"".join((data, self._tail)) if self._tail else data

    def close(self) -> None:
        """Closes nothing: the connections are the process's."""

    def _kept(self, ref: BlockRef) -> Stored | None:
        """Returns a block with the tail, None if it is not kept."""
        if self._cache is None or (found := self._cache.get(_key(ref), ref.num_bytes, self._tail)) is None:
            return None
        data, crc = found
        if _fault_of(ref, len(data) - len(self._tail), crc) is not None:
            self._cache.remove(_key(ref))
            return None
        return data

    def _fetch(self, run: Sequence[BlockRef]) -> Iterator[Stored]:
        """Yields blocks that are side by side."""
        found: dict[int, Stored] = {}
        problem: Fault | Exception | None = None
        for number in range(NUM_TRIES):
            if _pause(number):
                raise StorageError("reading was ended", where=where_is(self._dataset, run[0]))
            problem = self._ask(run, found)
            if problem is None or isinstance(problem, PermissionError):
                break
        for i, ref in enumerate(run):
            if i not in found:
                assert problem is not None
                raise self._error(ref, problem)
            if self._cache is not None:
                self._cache.put(_key(ref), found[i])
            yield found.pop(i)

    def _ask(self, run: Sequence[BlockRef], found: dict[int, Stored]) -> Fault | Exception | None:
        """Adds blocks that are right to those found, by one request from the first that is not to the last.

        Returns:
            What is wrong with the first that is missing still.
        """
        wrong = [i for i in range(len(run)) if i not in found]
        first, stop = wrong[0], wrong[-1] + 1
        try:
            answer = self._request(run[first:stop])
        except FileNotFoundError as error:
            raise _missing(self._dataset, run[first]) from error
        except (StorageError, PermissionError) as error:
            return error
        faults = []
        for i in wrong:
            data = _cut(answer, run[first].start, run[i])
            if (fault := find_fault(run[i], data)) is None:
                found[i] = data
            else:
                faults.append(fault)
        return faults[0] if faults else None

    def _request(self, run: Sequence[BlockRef]) -> Stored:
        """Returns the store's answer to a request for blocks that are side by side."""
        num_bytes = run[-1].start + run[-1].num_bytes - run[0].start
        url = storage.join(self._dataset.url, run[0].path)
        answer = request_range(url, run[0].start, num_bytes, timeout_s=TIMEOUT_S)
        if len(answer) > num_bytes:
            raise StorageError(
                "a request failed",
                where=storage.redact(url),
                why=f"{len(answer)} bytes came where {num_bytes} were asked for, as from a server that knows no ranges",
                next_step="Serve the dataset with a server that answers range requests",
            )
        return answer

    def _error(self, ref: BlockRef, problem: Fault | Exception) -> ShardkitError:
        if isinstance(problem, Fault) and not problem.is_length:
            return _damaged(self._dataset, ref, problem)
        where = where_is(self._dataset, ref)
        num_file_bytes = self._file_size(ref)
        if num_file_bytes is not None and num_file_bytes < ref.start + ref.num_bytes:
            num_there = max(0, num_file_bytes - ref.start)
            return _damaged(self._dataset, ref, Fault(True, f"{num_there} of {ref.num_bytes} bytes are there"))
        if isinstance(problem, PermissionError):
            return StorageError(
                "the store refuses to give a shard",
                where=where,
                why=storage.redact(str(problem)) or "permission denied",
                next_step="Check that your credentials may read it, then run the same again",
            )
        why = problem.why if isinstance(problem, (Fault, ShardkitError)) else str(problem)
        next_step = problem.next_step if isinstance(problem, ShardkitError) else None
        return StorageError(
            "the store kept failing",
            where=where,
            why=f"{why}; asked {NUM_TRIES} times",
            next_step=next_step
            or "Check the network and the store, then run the same again; a reader goes on from its state",
        )

    def _file_size(self, ref: BlockRef) -> int | None:
        try:
            return storage.stat_file(storage.join(self._dataset.url, ref.path)).num_bytes
        except Exception:  # noqa: BLE001 - of the client's library, which said why it fails before
            return None


def open_blocks(dataset: Dataset, tail: bytes) -> LocalBlocks | RemoteBlocks:
    """Returns the reader of the stored bytes of a dataset's blocks, each followed by `tail`."""
    return LocalBlocks(dataset, tail) if storage.is_local(dataset.url) else RemoteBlocks(dataset, tail)


def _cut(answer: Stored, start: int, ref: BlockRef) -> Stored:
    # A block that came alone is not copied later on.
    return answer if len(answer) == ref.num_bytes else memoryview(answer)[ref.start - start :][: ref.num_bytes]


def _key(ref: BlockRef) -> str:
    # The CRC32C is in the key, so that a wrong index cannot make the cache remove blocks of another as damaged.
    return f"{ref.sha256} {ref.block_index} {ref.num_bytes} {ref.crc32c}"


def _pause(number: int) -> bool:
    """Waits, unless before the first time, and returns whether the answer is not wanted any more."""
    stop_event = current_stop_event()
    if number == 0:
        return stop_event.is_set()
    # Random, so that the callers of a busy store do not all come back at the same time.
    return stop_event.wait(_FIRST_PAUSE_S * 2 ** (number - 1) * random.SystemRandom().uniform(0.5, 1.5))


def _missing(dataset: Dataset, ref: BlockRef) -> DamageError:
    return DamageError("a shard is missing", where=where_is(dataset, ref), next_step=dataset.check_step)


def _damaged(dataset: Dataset, ref: BlockRef, fault: Fault) -> DamageError:
    what = "a shard is cut off" if fault.is_length else "a block is damaged"
    return DamageError(what, where=where_is(dataset, ref), why=fault.why, next_step=dataset.check_step)


@functools.cache
def _keep_freed_memory() -> None:
    """Makes glibc keep the memory of freed blocks for the next ones.

    It gives large allocations back to the system when they are freed, and the pages of the next one are made and
    cleared anew, which takes several times as long as inflating a stored block. What counts as large is the largest
    size freed so far, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD); these bytes are never touched, so cost no memory.
    """
    bytes(_KEPT_BYTES)
