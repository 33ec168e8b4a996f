"""Whether anybody still wants what a thread is working on."""

from __future__ import annotations

import queue
from contextvars import ContextVar
from time import monotonic


class Ending:
    """An event that may be set anywhere: Python's collector sets it, in the midst of whatever a thread is doing.

    A `threading.Event` has a lock that this thread may hold when the collector runs in it. Here nothing is locked but
    inside of a queue that is made for that.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Sets it, for ever."""
        self._is_set = True
        self._wakes.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Waits until it is set, at most some time, and returns whether it is."""
        stop = monotonic() + timeout_s
        while not self._is_set and (left := stop - monotonic()) > 0:
            try:
                self._wakes.get(timeout=left)
            except queue.Empty:
                break
            # For the next one that waits.
            self._wakes.put(None)
        return self._is_set


_NEVER = Ending()
_ENDING: ContextVar[Ending] = ContextVar("ending", default=_NEVER)


def end_with(ending: Ending) -> None:
    """Makes what this thread waits for from now on come to an end soon after an event is set."""
    _ENDING.set(ending)


def current_ending() -> Ending:
    """Returns the event with which this thread's work ends; for a thread of nobody's, one that is never set."""
    return _ENDING.get()
