"""Blocks of stores kept in a local folder, within a limit that all processes of a host share.

One file a block, with its stored bytes. A file is written under one temporary name and renamed, while a lock is held
that ends with its process. So at any time all files together are within the limit, and the next process writes over
the file of a killed one. Nothing here is trusted: readers compare a block with the CRC32C of the index.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardkit.encoding.kernel import read_at
from shardkit.errors import UsageError
from shardkit.storage import files as storage
from shardkit.storage.regular_files import open_regular
from shardkit.units import GiB, format_size, parse_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A fifth of the 100 GB that the system disk of a rented machine usually has.
DEFAULT_CACHE_BYTES = 20 * GiB

_PAGE_BYTES = 4096
_KEPT_SHARE = 0.9
_USAGE = "usage"
_UNFINISHED = "unfinished"


class BlockCache:
    """A folder of blocks; for any number of threads and processes, also across a fork.

    The limit counts what the blocks take on a disk, in pages of 4 KiB. Where it is reached, those that were used least
    recently make room until nine tenths are left. Processes with different limits each keep to their own when they
    write.

    Args:
        folder: A local folder that exists; several datasets may share it.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._has_warned = False

    def get(self, key: str, num_bytes: int, tail: bytes) -> tuple[memoryview, int] | None:
        """Returns the block under a key, None if there is none, and marks it as used.

        Args:
            key: Any text.
            num_bytes: What is expected; no more than one byte above it is read.
            tail: Follows what is returned.

        Returns:
            The bytes with the tail, and their CRC32C without it.
        """
        try:
            with open_regular(self._path(key)) as file:
                # No more is allocated than the file has, whatever the index states.
                num_there = os.fstat(file.fileno()).st_size
                found = read_at(file.fileno(), 0, min(num_bytes + 1, num_there), tail)
                with suppress(OSError):
                    os.utime(file.fileno())
                return found
        except OSError:
            return None

    def remove(self, key: str) -> None:
        """Removes the block under a key."""
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def put(self, key: str, content: Buffer) -> None:
        """Keeps a block. A disk that is full, or a folder that cannot be written any more, is a warning, once."""
        num_bytes = _on_disk(memoryview(content).nbytes)
        if num_bytes > self._max_bytes:
            return
        try:
            with self._lock() as usage:
                self._put(usage, self._path(key), content, num_bytes)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                reason = (error.strerror or str(error)).lower()
                warnings.warn(f"blocks cannot be kept in {self._folder}: {reason}; reading goes on", stacklevel=2)

    def _put(self, usage: int, path: Path, content: Buffer, num_bytes: int) -> None:
        if path.exists():
            return
        used = _read_usage(usage)
        if used is None or used + num_bytes > self._max_bytes:
            used = self._make_room(num_bytes)
        # Before the file is there: a process that is killed here makes the count too high until the next eviction.
        _write_usage(usage, used + num_bytes)
        unfinished = self._folder / _UNFINISHED
        try:
            with unfinished.open("wb", buffering=0) as file:
                _write(file.fileno(), content)
            path.parent.mkdir(exist_ok=True)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            _write_usage(usage, used)
            raise

    def _make_room(self, num_bytes: int) -> int:
        """Counts the kept blocks and removes the least recently used where `num_bytes` more would be too many.

        Returns:
            Bytes that are left.
        """
        with suppress(OSError):
            (self._folder / _UNFINISHED).unlink()
        files = sorted(_list_files(self._folder))
        used = sum(size for _, _, size in files)
        if used + num_bytes <= self._max_bytes:
            return used
        goal = min(int(self._max_bytes * _KEPT_SHARE), self._max_bytes - num_bytes)
        for _, path, size in files:
            if used <= goal:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - of many
            used -= size
        return used

    @contextmanager
    def _lock(self) -> Iterator[int]:
        """Yields the file that holds the count, while no other thread or process writes here."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # Opened anew each time: threads and forked processes that share an open file would share its lock.
        usage = os.open(self._folder / _USAGE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(usage, fcntl.LOCK_EX)
            yield usage
        finally:
            os.close(usage)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / name[:2] / name[2:40]


def open_cache(folder: str | os.PathLike[str], max_bytes: int | str) -> BlockCache:
    """Returns the cache in a folder, which is created if need be.

    Args:
        folder: Local.
        max_bytes: The limit, as a number or as text such as `50GB`.

    Raises:
        UsageError: If the limit is no size, or the folder cannot be used; says why.
    """
    num_bytes = parse_size(max_bytes) if isinstance(max_bytes, str) else max_bytes
    if num_bytes < 1:
        raise UsageError(
            f"a cache of {num_bytes} bytes keeps nothing",
            next_step=f"Give cache_bytes of 1 or more, such as {format_size(DEFAULT_CACHE_BYTES)!r}, or no cache_dir",
        )
    name = os.fspath(folder)
    if not storage.is_local(name):
        raise UsageError(
            "the cache lies in a store",
            where=storage.redact(name),
            why="it is there to spare the store",
            next_step="Give a local folder as cache_dir",
        )
    path = storage.local_path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with BlockCache(path, num_bytes)._lock():
            pass
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(None, "permission denied")
    except OSError as error:
        raise UsageError(
            "the cache folder cannot be used",
            where=str(path),
            why=(error.strerror or str(error)).lower(),
            next_step="Give a folder that you may write as cache_dir, or none",
        ) from error
    return BlockCache(path, num_bytes)


def _list_files(folder: Path) -> Iterator[tuple[int, str, int]]:
    """Yields when each block was used last, its path and its size."""
    with os.scandir(folder) as groups:
        names = [group.path for group in groups if len(group.name) == 2 and group.is_dir(follow_symlinks=False)]
    for name in names:
        with suppress(FileNotFoundError), os.scandir(name) as files:
            for file in files:
                with suppress(FileNotFoundError):
                    found = file.stat(follow_symlinks=False)
                    yield found.st_mtime_ns, file.path, _on_disk(found.st_size)


def _on_disk(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _read_usage(usage: int) -> int | None:
    text = os.pread(usage, 32, 0)
    return int(text) if len(text) == 20 and text.isdigit() else None


def _write_usage(usage: int, num_bytes: int) -> None:
    os.pwrite(usage, b"%020d" % num_bytes, 0)


def _write(file: int, content: Buffer) -> None:
    rest = memoryview(content).cast("B")
    while rest:
        rest = rest[os.write(file, rest) :]
