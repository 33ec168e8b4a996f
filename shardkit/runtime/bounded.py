"""Steps of the planning that a user's code or query could make endless, with the deadline of each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

# One step of the planning handles many rows, and may load a module or a model first.
PLANNING_TIMES = 10


class BoundedStep(NamedTuple):
    """A step that began.

    Attributes:
        number: Tells steps apart.
        deadline: When it should be done, on the monotonic clock of the system; None when it is done.
        what: What is done, for a message.
        seconds: What it may take.
    """

    number: int
    deadline: float | None
    what: str = ""
    seconds: float = 0.0


_numbers = itertools.count()
_seconds: float | None = None
_report: Callable[[BoundedStep], None] | None = None


@contextmanager
def steps_bounded(max_row_seconds: float, report: Callable[[BoundedStep], None]) -> Iterator[None]:
    """Reports the steps that begin and end during the block.

    Args:
        max_row_seconds: A step may take PLANNING_TIMES as long.
        report: Called at each beginning and end, in the thread of the step.
    """
    global _seconds, _report
    _seconds, _report = max_row_seconds * PLANNING_TIMES, report
    try:
        yield
    finally:
        _seconds = _report = None


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """Gives the block a deadline while a conversion is planned; does nothing at other times.

    Args:
        what: What is done, for the message, such as `a query of rows.db`.
    """
    if _report is None or _seconds is None:
        yield
        return
    number, report = next(_numbers), _report
    report(BoundedStep(number, time.monotonic() + _seconds, what, _seconds))
    try:
        yield
    finally:
        report(BoundedStep(number, None))
