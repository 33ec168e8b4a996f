"""Files read whole, or their first bytes: many small ones cost little more than their bytes.

Bytes of local files in the system's cache are read at once. The rest is announced to the system, and read after other
files: otherwise each file would wait for a cold disk. Files in an object store are fetched on threads.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import StorageError
from shardkit.runtime.threads import worker_threads
from shardkit.sources.base import InputSplit, RawFile, choose_split_bytes, place
from shardkit.sources.files.streams import (
    changed,
    check_unchanged,
    compare_listed,
    guard_unchanged,
    open_raw,
    open_stored,
    read_exactly,
)

_REMOTE_THREADS = 32
_AHEAD_FILES = 64
_HEAD_FILES = 1024
_MAX_SPLIT_FILES = 4096
# Some systems lack these functions.
_advise = getattr(os, "posix_fadvise", None)
_read_at = getattr(os, "preadv", None)
_NO_WAITING = getattr(os, "RWF_NOWAIT", None)

_Target = bytearray | memoryview


class WholeFiles(NamedTuple):
    """Files one after the other in memory.

    Attributes:
        data: Their bytes.
        offsets: Where each starts in them, and where the last one ends.
    """

    data: pa.Buffer
    offsets: npt.NDArray[np.int64]

    def contents(self) -> list[memoryview]:
        """Returns the bytes of each file."""
        view = memoryview(self.data).cast("B")
        return [view[start:stop] for start, stop in itertools.pairwise(self.offsets.tolist())]


def split_files(files: tuple[RawFile, ...], split_bytes: int | None, min_split_files: int) -> list[InputSplit]:
    """Returns input splits of files that are a row each; the identity of a row is its file, so all files may count.

    Args:
        split_bytes: Wanted size of a split; None chooses by the size of all files.
        min_split_files: A split has so many small files at least.
    """
    wanted = split_bytes or choose_split_bytes(sum(f.num_bytes for f in files))
    max_files = max(min_split_files, min(len(files) // 32, _MAX_SPLIT_FILES))
    splits: list[InputSplit] = []
    start, num_bytes = 0, 0
    for stop, file in enumerate(files, start=1):
        num_bytes += file.num_bytes
        if num_bytes >= wanted or stop - start == max_files or stop == len(files):
            splits.append(InputSplit(index=len(splits), file_start=start, file_stop=stop, num_bytes=num_bytes))
            start, num_bytes = stop, 0
    return splits


def read_whole_files(files: Sequence[RawFile]) -> WholeFiles:
    """Returns the content of files, as stored.

    Raises:
        BadInputError: If a file is no longer what was listed.
        StorageError: If the store fails.
    """
    offsets = np.cumsum([0, *(f.num_bytes for f in files)], dtype=np.int64)
    # Arrow keeps freed memory: fresh pages would cost as much as reading does.
    data = pa.allocate_buffer(int(offsets[-1]))
    view = memoryview(data).cast("B")
    targets = [view[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
    if _any_in_archives(files):
        _fill_members(files, targets)
    elif _are_local(files):
        _read_local(files, targets, are_whole=True)
    else:
        with worker_threads(_REMOTE_THREADS, "shardkit-remote") as threads:
            for _ in threads.map(_fill, files, targets):
                pass
    return WholeFiles(data, offsets)


def read_heads(files: Sequence[RawFile], num_bytes: int) -> Iterator[bytes]:
    """Yields up to `num_bytes` of the start of each file, as stored.

    Raises:
        BadInputError: If a file is no longer there.
        StorageError: If the store fails.
    """
    if _any_in_archives(files):
        for file in files:
            with open_stored(file) as stream:
                yield read_exactly(stream, num_bytes)
    elif _are_local(files):
        for start in range(0, len(files), _HEAD_FILES):
            some = files[start : start + _HEAD_FILES]
            heads = [bytearray(min(num_bytes, f.num_bytes)) for f in some]
            for head, count in zip(heads, _read_local(some, heads, are_whole=False), strict=True):
                yield bytes(head) if count == len(head) else bytes(head[:count])
    else:
        with worker_threads(_REMOTE_THREADS, "shardkit-remote") as threads:
            yield from threads.map(_read, files, [num_bytes] * len(files))


def _any_in_archives(files: Sequence[RawFile]) -> bool:
    return any(f.member is not None for f in files)


def _fill_members(files: Sequence[RawFile], targets: Sequence[memoryview]) -> None:
    # One by one, in the order of the archive: a compressed tar is then read once.
    for file, target in zip(files, targets, strict=True):
        with open_stored(file) as stream:
            content = read_exactly(stream, len(target) + 1)
        if len(content) != len(target):
            raise _cut_short(file, len(content))
        target[:] = content
    for file in {f.path: f for f in files}.values():
        check_unchanged(file)


def _are_local(files: Sequence[RawFile]) -> bool:
    return all(f.path.startswith("/") for f in files)


def _read_local(files: Sequence[RawFile], targets: Sequence[_Target], *, are_whole: bool) -> list[int]:
    """Reads the start of each file into its target, or all of it, and returns how many bytes that were."""
    counts: list[int] = []
    waiting: deque[tuple[int, int]] = deque()

    def read_first() -> None:
        position, handle = waiting[0]
        counts[position] = _read_rest(files[position], handle, memoryview(targets[position]), counts[position])
        if are_whole:
            _check_whole(files[position], handle, counts[position])
        os.close(waiting.popleft()[1])

    try:
        for position, file in enumerate(files):
            target, handle = targets[position], _open(file)
            count = _read_held(handle, target)
            counts.append(count)
            if count < len(target):
                waiting.append((position, handle))
                if _advise is not None:
                    _advise(handle, 0, len(target), os.POSIX_FADV_WILLNEED)
                if len(waiting) == _AHEAD_FILES:
                    read_first()
                continue
            try:
                if are_whole:
                    _check_whole(file, handle, count)
            finally:
                os.close(handle)
        while waiting:
            read_first()
    finally:
        for _, handle in waiting:
            os.close(handle)
    return counts


def _open(file: RawFile) -> int:
    try:
        return os.open(file.path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise changed(file, "it is no longer there") from error
    except OSError as error:
        raise _failed(file, error) from error


def _read_held(handle: int, target: _Target) -> int:
    # Reads up to the first byte that is not in the cache of the system.
    if _read_at is None or _NO_WAITING is None:
        return 0
    try:
        count: int = _read_at(handle, [target], 0, _NO_WAITING)
    except OSError:
        return 0  # Nothing is in memory, or the file system cannot tell.
    return count


def _read_rest(file: RawFile, handle: int, target: memoryview, num_read: int) -> int:
    try:
        os.lseek(handle, num_read, os.SEEK_SET)
        while num_read < len(target) and (count := os.readv(handle, [target[num_read:]])):
            num_read += count
    except OSError as error:
        raise _failed(file, error) from error
    return num_read


def _check_whole(file: RawFile, handle: int, num_read: int) -> None:
    # After reading, so that whatever was written in between shows.
    try:
        now = os.fstat(handle)
    except OSError as error:
        raise _failed(file, error) from error
    if now.st_size != file.num_bytes or str(now.st_mtime_ns) != file.version:
        compare_listed(file, now.st_size, str(now.st_mtime_ns))
    if num_read < file.num_bytes:
        raise _cut_short(file, num_read)


def _fill(file: RawFile, target: memoryview) -> None:
    with guard_unchanged(file):
        content = _read(file, -1)
    if len(content) != len(target):
        raise _cut_short(file, len(content))
    target[:] = content


def _read(file: RawFile, num_bytes: int) -> bytes:
    with open_raw(file) as stream:
        try:
            return stream.read(num_bytes)
        except OSError as error:
            raise _failed(file, error) from error


def _failed(file: RawFile, error: OSError) -> StorageError:
    return StorageError("the file cannot be read", where=place(file), why=str(error))


def _cut_short(file: RawFile, num_bytes: int) -> StorageError:
    return StorageError(
        "the store gave a short answer", where=place(file), why=f"{num_bytes} of {file.num_bytes} bytes"
    )
