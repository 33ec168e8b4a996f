"""Errors of the operating system when something cannot be written or read, in the words of a user."""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from shardkit.errors import OutOfSpaceError, StorageError, UsageError
from shardkit.storage.locations import is_local, local_path
from shardkit.units import format_size


def free_bytes(path: str) -> int | None:
    """Returns the free space where a path is, None where the store does not tell."""
    if not is_local(path):
        return None
    target = local_path(path)
    while not target.exists():
        target = target.parent
    return shutil.disk_usage(target).free


@contextmanager
def translate_os_errors(path: Path | str, verb: str = "write") -> Iterator[None]:
    """Turns operating system errors into errors that a user understands; `verb` says what is done to `path`.

    Raises:
        OutOfSpaceError: If the disk or the quota is full; names the path and what is free.
        UsageError: If the path may not be written or read.
        MemoryError: If the system has no memory for the call.
        StorageError: For everything else.
    """
    try:
        yield
    except OSError as error:
        _raise_error(error, str(path), verb)


def _raise_error(error: OSError, path: str, verb: str) -> NoReturn:
    # Of two names, the second is the one that is made.
    where = str(error.filename2 or error.filename or path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(path)
        raise OutOfSpaceError(
            "no space left",
            where=where,
            why=f"{format_size(free or 0)} free there",
            next_step="Free some space or choose another place, then run the same command again",
        ) from error
    if error.errno == errno.ENOMEM:
        raise MemoryError(str(error)) from error
    if error.errno == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        of_process = f"ulimit -f allows {format_size(limit)} a file"
        raise OutOfSpaceError(
            "a file is too large",
            where=where,
            why="its file system takes no larger ones" if limit == resource.RLIM_INFINITY else of_process,
            next_step="Raise that limit or choose another place, then run the same command again",
        ) from error
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
        raise UsageError(
            f"cannot {verb} there",
            where=where,
            why=_reason(error),
            next_step=f"Choose another place, or allow the user of this command to {verb} there",
        ) from error
    again = "Run the same command again, or choose another place"
    raise StorageError(f"cannot {verb}", where=where, why=_reason(error), next_step=again) from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
