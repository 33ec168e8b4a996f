"""Ends a process soon after Ctrl-C or SIGTERM, even while TensorFlow computes and Python cannot run a handler."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 0.8
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}


@contextmanager
def end_promptly(describe: Callable[[], str], patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Lets the block be interrupted as usual, and ends the process if it does not react in time.

    What `describe` returns becomes a note of the KeyboardInterrupt, or is printed if the process has to be ended.
    No-op outside of the main thread, which gets no signals.

    Args:
        describe: Returns one sentence: what is lost, and how to go on.
        patience_s: Seconds between the signal and the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    # Library start-up hides descriptor 2 for a moment; the sentence must reach the user even then.
    stderr = os.dup(2)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(read_end, stderr, describe, is_over, patience_s), daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(describe())
        raise
    finally:
        is_over.set()
        signal.set_wakeup_fd(before)
        os.close(write_end)


def _watch(
    read_end: int, stderr: int, describe: Callable[[], str], is_over: threading.Event, patience_s: float
) -> None:
    try:
        while number := os.read(read_end, 1):
            is_stop = number[0] in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if not is_stop or signal.getsignal(number[0]) is signal.SIG_IGN or is_over.wait(patience_s):
                continue
            word = _WORDS[signal.Signals(number[0])]
            os.write(
                stderr,
                f"\x1b[?25h\n{word}: {describe()}\n".encode()
                if os.isatty(stderr)
                else f"{word}: {describe()}\n".encode(),
            )
            os._exit(128 + number[0])
    finally:
        os.close(read_end)
        os.close(stderr)
