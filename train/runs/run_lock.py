"""The lock of a run folder: one command at a time trains there. What a dead process or host left is recognised.

The kernel frees the lock of a process that ends, and tells other hosts of it where the file system shares locks. Where
it does not, the file names the process, which renews the time of the file while it lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shardkit.errors import ConflictError
from shardkit.runtime.owner import Owner, decode_owner, is_dead, this_process
from shardkit.runtime.threads import start_thread
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link

LOCK_FILE = ".lock"
BEAT_S = 10.0
DEAD_S = 60.0
_LOOK_S = 0.5
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def run_lock(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of a run folder.

    Args:
        folder: Of the run; it exists.
        say: Tells the user why it waits: a process of another host is looked at for up to `DEAD_S` seconds.

    Raises:
        ConflictError: If another process trains there.
        OutOfSpaceError, UsageError: If the lock cannot be written.
        UnsafeError: If it is a link: what lies behind it would be emptied.
    """
    path = folder / LOCK_FILE
    refuse_link(str(folder), LOCK_FILE)
    with storage.translate_os_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    stop = threading.Event()
    try:
        with storage.translate_os_errors(path):
            owner = decode_owner(os.pread(handle, os.fstat(handle).st_size, 0))
            if not _take(handle) or (owner is not None and not is_dead(owner) and _still_writes(handle, owner, say)):
                raise _in_use(folder, owner)
            _write(handle, msgspec.json.encode(this_process()))
        beats = threading.Thread(target=_beat, args=(handle, stop), daemon=True)
        start_thread(beats)
        try:
            yield
        finally:
            stop.set()
            beats.join()
            with suppress(OSError):
                _write(handle, b"")
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Without locks, what the file says is all that is known.
        return error.errno in _NO_LOCKS
    return True


def _still_writes(handle: int, owner: Owner, say: Callable[[str], None]) -> bool:
    """Whether the time of the file changes. A file that was written long before this look is of a dead process."""
    before = os.fstat(handle).st_mtime_ns
    end = time.monotonic() + DEAD_S
    if time.time() - before / 1e9 > 10 * DEAD_S:
        return False
    say(f"{owner} was the last to train here; waiting up to {DEAD_S:.0f} s to see whether it still does")
    while time.monotonic() < end:
        if os.fstat(handle).st_mtime_ns != before:
            return True
        time.sleep(_LOOK_S)
    return False


def _beat(handle: int, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        with suppress(OSError):
            os.utime(handle)


def _write(handle: int, content: bytes) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, content, 0)


def _in_use(folder: Path, owner: Owner | None) -> ConflictError:
    return ConflictError(
        "another command trains in this folder",
        where=str(folder),
        why=None if owner is None else str(owner),
        state="It was not disturbed",
        next_step="Wait for it to end, or stop it and run this again with --resume; or choose another --output",
    )
