"""Temporary files beside their targets, and folders of a process: those that killed processes left are found."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_COPY_CHUNK = 4 * 1024 * 1024
_NAME = re.compile(r"\..+\.[0-9a-f]{16}")
_LOCK = "lock"
# A folder that was made just now may not be locked yet.
_YOUNG_S = 60.0


@contextmanager
def temporary_beside(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yields a new file in the folder of `target`, open for writing, which is removed unless it was renamed."""
    path, file = _create_beside(target)
    try:
        with file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def make_writable(folder: Path) -> None:
    """Creates a folder and its parents, and checks that a file can be made there.

    Raises:
        OSError: If not; it names the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        error.filename = str(folder)
        raise


def copy_whole(source: Path, target: Path) -> None:
    """Copies a file to `target`, which has all of it or its old content."""
    with temporary_beside(target) as (temporary, out), source.open("rb") as file:
        shutil.copyfileobj(file, out, _COPY_CHUNK)
        out.flush()
        os.fsync(out.fileno())
        temporary.replace(target)


def fsync_folder(folder: Path) -> None:
    """Makes the names in a local folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Takes the lock of an open file, and returns False if another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def create_locked(name: Callable[[], Path]) -> tuple[Path, BinaryIO]:
    """Creates a file and takes its lock; again where another process removes it in between.

    The lock ends with the process, which tells a file that is being written from one that a killed process left.

    Args:
        name: Gives a path that does not exist.
    """
    while True:
        path = name()
        # Unlike those of `tempfile`, they get the permissions that the umask gives, which they keep when published.
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()


def _create_beside(target: Path) -> tuple[Path, BinaryIO]:
    return create_locked(lambda: target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}"))


def remove_dead(folder: Path) -> None:
    """Removes the temporary files that killed processes left in a folder."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if _NAME.fullmatch(path.name):
            with suppress(OSError), path.open("r+b") as file:
                if try_lock(file.fileno()):
                    path.unlink()


def own_folder(prefix: str) -> tuple[Path, BinaryIO]:
    """Makes a folder for temporary files, which is this process's own while the file that is returned is open.

    Folders that killed processes left are removed before. Their locks ended with the processes; every process that
    sees a folder sees its lock, even with other process numbers.

    Args:
        prefix: Of the folder's name, and of those that are looked at.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # It may be another user's, or another process removes it right now.
        with suppress(OSError):
            _remove_if_left(path)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    # The lock gets its name after it is held.
    new = folder / f"{_LOCK}.new"
    lock = new.open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)
    return folder, lock


def _remove_if_left(folder: Path) -> None:
    # A step that was at work when its folder was removed may have made it again, without the lock.
    if (folder / _LOCK).exists() or time.time() - folder.stat().st_mtime >= _YOUNG_S:
        with (folder / _LOCK).open("ab") as lock:
            if try_lock(lock.fileno()):
                shutil.rmtree(folder, ignore_errors=True)
