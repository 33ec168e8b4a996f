"""Files read whole, or their first bytes: many small ones cost little more than their bytes.

Local files are opened some way ahead and announced to the system, which fetches them while those before are handled:
without it, a cold disk is waited for once a file. Files in an object store are fetched on threads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import StorageError
from shardkit.sources.base import RawFile
from shardkit.sources.streams import (
    changed,
    check_unchanged,
    compare_listed,
    guard_unchanged,
    open_raw,
    open_stored,
    place,
    read_exactly,
)

_REMOTE_THREADS = 32
_AHEAD_FILES = 64
_advise = getattr(os, "posix_fadvise", None)  # Not every system has it.


class WholeFiles(NamedTuple):
    """Files one after the other in memory.

    Attributes:
        data: Their bytes.
        offsets: Where each starts in them, and where the last one ends.
    """

    data: pa.Buffer
    offsets: npt.NDArray[np.int64]


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
        with contextlib.closing(_opened(files, 0)) as handles:
            for file, handle, target in zip(files, handles, targets, strict=True):
                _fill_local(file, handle, target)
    else:
        with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
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
        with contextlib.closing(_opened(files, num_bytes)) as handles:
            for file, handle in zip(files, handles, strict=True):
                try:
                    head = os.read(handle, num_bytes)
                except OSError as error:
                    raise _failed(file, error) from error
                yield head
    else:
        with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
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


def _opened(files: Sequence[RawFile], num_bytes: int) -> Generator[int, None, None]:
    # Zero bytes stand for all.
    ahead: deque[int] = deque()
    try:
        for file in files:
            ahead.append(_open(file))
            if _advise is not None:
                _advise(ahead[-1], 0, num_bytes, os.POSIX_FADV_WILLNEED)
            if len(ahead) == _AHEAD_FILES:
                yield ahead[0]
                os.close(ahead.popleft())
        while ahead:
            yield ahead[0]
            os.close(ahead.popleft())
    finally:
        for handle in ahead:
            os.close(handle)


def _open(file: RawFile) -> int:
    try:
        return os.open(file.path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise changed(file, "it is no longer there") from error
    except OSError as error:
        raise _failed(file, error) from error


def _fill_local(file: RawFile, handle: int, target: memoryview) -> None:
    try:
        num_read = os.readv(handle, [target])
        while num_read < len(target) and (count := os.readv(handle, [target[num_read:]])):
            num_read += count
        now = os.fstat(handle)
    except OSError as error:
        raise _failed(file, error) from error
    # After reading, so that whatever was written in between shows.
    if now.st_size != file.num_bytes or str(now.st_mtime_ns) != file.version:
        compare_listed(file, now.st_size, str(now.st_mtime_ns))
    if num_read < len(target):
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
