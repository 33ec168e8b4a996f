"""The messages between a process below `supervise` and the one above it."""

from __future__ import annotations

import os
from pathlib import Path

EXIT_LOST_WORKER = 75  # EX_TEMPFAIL of <sysexits.h>.

_channel: int | None = None
_is_begun_again = False


def begin_below(channel: int, *, is_begun_again: bool) -> None:
    """Says that a process above this one reads `channel`, and whether this one goes on where another was cut off."""
    global _channel, _is_begun_again
    _channel, _is_begun_again = channel, is_begun_again


def is_supervised() -> bool:
    """Returns whether another process waits to begin this one again."""
    return _channel is not None


def is_begun_again() -> bool:
    """Returns whether a process before this one did a part of the same work."""
    return _is_begun_again


def announce_work_folder(path: str | Path) -> None:
    """Tells the process above where this one works."""
    _tell(os.fsencode(path))


def announce_end() -> None:
    """Tells the process above that this one ends because it wants to, and that its exit code is the command's."""
    _tell(b"")


def _tell(message: bytes) -> None:
    if _channel is not None:
        os.write(_channel, message + b"\0")
