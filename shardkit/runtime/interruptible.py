"""Calls of libraries that a signal ends at once: Python answers signals only between its instructions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from shardkit.runtime.threads import start_thread

_CANCELLATIONS, _CANCELLATION_S = 10, 0.05
# The system may hand a signal to another thread, which does not wake this one.
_POLL_S = 0.2
_Result = TypeVar("_Result")


def interruptible(call: Callable[[], _Result], cancel: Callable[[], None]) -> _Result:
    """Returns what a call gives. A signal whose handler raises an exception cancels the call and raises it.

    A helper thread makes the call while the main thread waits. In other threads, which no signal reaches, the call is
    made there.

    Args:
        call: Makes the call.
        cancel: Makes the call end soon. It is called several times, in the midst of the call or just before it.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    found: list[_Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    try:
        start_thread(thread)
        while thread.is_alive():
            thread.join(_POLL_S)
    except BaseException:
        _end(thread, cancel)
        raise
    if failed:
        raise failed[0]
    return found[0]


def _end(thread: threading.Thread, cancel: Callable[[], None]) -> None:
    """Cancels the call of a thread until it has ended, or for half a second."""

    def ask() -> None:
        # The call may only be about to begin, so it is cancelled more than once.
        for _ in range(_CANCELLATIONS):
            cancel()
            thread.join(_CANCELLATION_S)
            if not thread.is_alive():
                return

    # A server that does not answer would hold up the cancellation too.
    threading.Thread(target=ask, daemon=True).start()
    # Python must not end while the thread is about to return from compiled code.
    thread.join(_CANCELLATIONS * _CANCELLATION_S)
