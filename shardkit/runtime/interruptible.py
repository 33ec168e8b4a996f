"""Calls of libraries that a signal ends at once: Python answers signals only between its instructions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from shardkit.runtime.threads import start_thread

_CANCELLATION_S, _WAIT_S = 0.05, 0.5
# The system may hand a signal to another thread, which does not wake this one.
_POLL_S = 0.2
_Result = TypeVar("_Result")


def interruptible(call: Callable[[], _Result], cancel: Callable[[], None]) -> _Result:
    """Returns what a call gives. A signal whose handler raises an exception cancels the call and raises it.

    A helper thread makes the call while the main thread waits. In other threads, which no signal reaches, the call is
    made there.

    Args:
        cancel: Makes the call end soon. It is called several times, in the midst of the call or just before it.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    found: list[_Result] = []
    failed: list[BaseException] = []
    # An exception of a signal in `Thread.join` makes Python 3.11 believe that the thread has ended.
    ended = threading.Event()

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            failed.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run, daemon=True)
    try:
        start_thread(thread)
        while not ended.wait(_POLL_S):
            pass
    except BaseException:
        if thread.ident is not None:
            _end(ended, cancel)
        raise
    if failed:
        raise failed[0]
    return found[0]


def _end(ended: threading.Event, cancel: Callable[[], None]) -> None:
    """Cancels a call until it has ended, and waits half a second for that."""

    def ask() -> None:
        # The call may only be about to begin, so it is cancelled more than once.
        while not ended.is_set():
            cancel()
            ended.wait(_CANCELLATION_S)

    # A server that does not answer would hold up the cancellation too.
    threading.Thread(target=ask, daemon=True).start()
    # Python must not end while the thread is about to return from compiled code.
    ended.wait(_WAIT_S)
