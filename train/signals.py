"""Ends a process at Ctrl-C or SIGTERM without raising anything into TensorFlow."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}


@contextmanager
def end_at_once(describe: Callable[[], str]) -> Iterator[None]:
    """Makes a signal end the process while the block runs, with one sentence on stderr and exit code 128 + number.

    An exception raised into TensorFlow at any instant becomes other errors, and an interpreter that shuts down under
    its threads crashes: of 64 interrupted runs 2 ended with a `RuntimeError` of a context manager. What is on disk
    has to survive a kill anyway. No-op outside of the main thread, which gets no signals.

    Args:
        describe: Returns one sentence: what is lost, and how to go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    # Library start-up hides descriptor 2 for a moment; the sentence must reach the user even then.
    stderr = os.dup(2)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    handlers = {
        number: signal.signal(number, _leave_to_watcher)
        for number in _WORDS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(read_end, stderr, describe, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(write_end)


def _leave_to_watcher(number: int, frame: FrameType | None) -> None:
    """Does nothing: Python may be unable to run a handler for as long as TensorFlow computes; a thread can."""


def _watch(read_end: int, stderr: int, describe: Callable[[], str], is_over: threading.Event) -> None:
    try:
        while number := os.read(read_end, 1):
            if number[0] not in _WORDS or is_over.is_set():
                continue
            start = "\x1b[?25h\n" if os.isatty(stderr) else ""  # A progress bar hides the cursor.
            os.write(stderr, f"{start}{_WORDS[signal.Signals(number[0])]}: {describe()}\n".encode())
            os._exit(128 + number[0])
    finally:
        os.close(read_end)
        os.close(stderr)
