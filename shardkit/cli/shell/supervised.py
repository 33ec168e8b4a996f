"""The messages between a process below `supervise` and the one above it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shardkit.runtime.bounded import BoundedStep

EXIT_LOST_WORKER = 75  # EX_TEMPFAIL of <sysexits.h>.
END_OF_MESSAGE = b"\n"
_MAX_LETTERS = 500

_channel: int | None = None
_is_restarted = False


def connect_to_supervisor(channel: int, *, is_restarted: bool) -> None:
    """Says that a process above this one reads `channel`, and whether this one goes on where another was cut off."""
    global _channel, _is_restarted
    _channel, _is_restarted = channel, is_restarted


def is_supervised() -> bool:
    """Returns whether another process waits to begin this one again."""
    return _channel is not None


def is_restarted() -> bool:
    """Returns whether a process before this one did a part of the same work."""
    return _is_restarted


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process says to the one above.

    Attributes:
        step: A step of the planning that began or ended.
        open_files: Those that the planning has open, for a message.
        answers_signals: Whether it was seen to answer a signal, or will do so in its own time.
        is_end: Whether it ends because it wants to, with the exit code of the command.
    """

    folder: bytes | None = None
    step: BoundedStep | None = None
    open_files: tuple[str, ...] | None = None
    answers_signals: bool = False
    is_end: bool = False


def announce_work_folder(path: str | Path) -> None:
    """Tells the process above where this one works."""
    _tell(Message(folder=os.fsencode(path)))


def announce_step(step: BoundedStep) -> None:
    """Tells the process above of a step of the planning."""
    # A write to a pipe is whole up to 4 KiB.
    _tell(Message(step=step._replace(what=step.what[:_MAX_LETTERS])))


def announce_open_files(names: tuple[str, ...]) -> None:
    """Tells the process above which files the planning has open."""
    _tell(Message(open_files=tuple(name[:_MAX_LETTERS] for name in names)))


def announce_answer() -> None:
    """Tells the process above that this one answers signals: without this it is killed soon after one."""
    _tell(Message(answers_signals=True))


def announce_end() -> None:
    """Tells the process above that this one ends because it wants to, and that its exit code is the command's."""
    _tell(Message(is_end=True))


def _tell(message: Message) -> None:
    if _channel is not None:
        os.write(_channel, msgspec.json.encode(message) + END_OF_MESSAGE)
