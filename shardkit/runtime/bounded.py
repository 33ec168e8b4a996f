"""What the planning does that could end badly: steps that a user's code or query could make endless, with the deadline
of each, and files whose readers are compiled code, which may crash."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from shardkit.errors import BadInputError

# One step of the planning handles many rows, and may load a module or a model first.
PLANNING_TIMES = 10
_MOST_FILES = 3
# A process that has no handler any more ignores it.
LATE_SIGNAL = signal.SIGURG


class BoundedStep(NamedTuple):
    """A step that began.

    Attributes:
        deadline: When it should be done, on the monotonic clock of the system; None when it is done.
    """

    number: int
    deadline: float | None
    what: str = ""
    seconds: float = 0.0


_numbers = itertools.count()
_seconds: float | None = None
_report: Callable[[BoundedStep], None] | None = None
_report_files: Callable[[tuple[str, ...]], None] | None = None
_files: list[str] = []
_begun: dict[int, BoundedStep] = {}
_late: BoundedStep | None = None


def deadline_error(step: BoundedStep) -> BadInputError:
    """Returns the error for a step that passed its deadline."""
    return BadInputError(
        "planning was held up",
        why=f"{step.what} took longer than {step.seconds:g} s, {PLANNING_TIMES} times --max-row-seconds",
        state="Nothing was committed",
        next_step="Make it faster, or allow more with --max-row-seconds",
    )


@contextmanager
def steps_bounded(
    max_row_seconds: float,
    report: Callable[[BoundedStep], None],
    report_files: Callable[[tuple[str, ...]], None],
) -> Iterator[None]:
    """Reports the steps that begin and end during the block. LATE_SIGNAL ends a step that passed its deadline.

    Args:
        max_row_seconds: A step may take PLANNING_TIMES as long.
        report: Called at each beginning and end, in the thread of the step.
        report_files: Called with the files that are open, whenever these are others.
    """
    global _seconds, _report, _report_files, _late
    _seconds, _report, _late = max_row_seconds * PLANNING_TIMES, report, None
    _report_files = report_files
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(LATE_SIGNAL, _end_late_step) if is_main else None
    try:
        yield
    finally:
        _seconds = _report = _report_files = None
        _begun.clear()
        if is_main:
            signal.signal(LATE_SIGNAL, before)


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """Gives the block a deadline while a conversion is planned; does nothing at other times.

    Args:
        what: What is done, for the message, such as `a query of rows.db`.

    Raises:
        BadInputError: If the block is ended by LATE_SIGNAL.
    """
    if _report is None or _seconds is None:
        yield
        return
    report, step = _report, BoundedStep(next(_numbers), time.monotonic() + _seconds, what, _seconds)
    _begun[step.number] = step
    report(step)
    try:
        yield
    except Exception as error:
        # Libraries that call back into Python turn what a signal raises into errors that they have.
        if _late is None or isinstance(error, BadInputError):
            raise
        raise deadline_error(_late) from error
    finally:
        _begun.pop(step.number, None)
        report(BoundedStep(step.number, None))


@contextmanager
def open_file_reported(name: str) -> Iterator[None]:
    """Reports while a conversion is planned that a file is open during the block; does nothing at other times."""
    report = _report_files
    if report is None:
        yield
        return
    _files.append(name)
    report(tuple(_files[:_MOST_FILES]))
    try:
        yield
    finally:
        _files.remove(name)
        report(tuple(_files[:_MOST_FILES]))


def _end_late_step(number: int, frame: FrameType | None) -> None:
    global _late
    now = time.monotonic()
    _late = next((s for s in list(_begun.values()) if s.deadline is not None and s.deadline < now), None)
    if _late is not None:
        raise deadline_error(_late)
