"""Ends a process at Ctrl-C or SIGTERM without raising anything into TensorFlow; SIGTERM after one more checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from shardkit.runtime.early_signals import WORDS
from shardkit.runtime.signals import answered_in_thread, heeded, leave_to_pipe

# A preempted machine is usually killed half a minute after the signal.
GRACE_S = 25.0
# A store that does not answer gives no batch, and no step follows. A slow one has this long for the next batch.
INPUT_GRACE_S = 3.0
_POLL_S = 0.1
_T = TypeVar("_T")


class Stop:
    """Whether a signal asked the run to stop, and whether the stop can wait for a checkpoint.

    Attributes:
        is_wanted: Set by the first SIGTERM that comes inside of `heeded`.
    """

    def __init__(self, numbers: tuple[int, ...] = ()) -> None:
        self.is_wanted = False
        self._is_heeded = False
        self._waits_since: float | None = None
        self._may_take_s = 0.0
        self._numbers = numbers

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Leaves the first SIGTERM to the block, which looks at `is_wanted` and then calls `end`."""
        # TensorFlow takes SIGTERM for itself when workers find each other.
        for number in self._numbers:
            signal.signal(number, leave_to_pipe)
        self._is_heeded = True
        try:
            yield
        finally:
            self._is_heeded = False

    def awaited(self, batches: Iterable[_T], may_take_s: Callable[[], float] = lambda: 0.0) -> Iterator[_T]:
        """Yields the batches. A stop waits for one that does not come for `INPUT_GRACE_S` only.

        Args:
            batches: Or what else comes of the input.
            may_take_s: Called before each for the seconds of computing that it takes; the stop waits as much longer.
        """
        iterator = iter(batches)
        while True:
            self._may_take_s, self._waits_since = may_take_s(), time.monotonic()
            batch = next(iterator, None)
            self._waits_since = None
            if batch is None:
                return
            yield batch

    def is_held_up(self, since: float) -> bool:
        """Whether the block has waited for one batch all the time since then, and for too long."""
        begun = self._waits_since
        return begun is not None and time.monotonic() - max(begun, since) > INPUT_GRACE_S + self._may_take_s

    def can_wait(self, number: int) -> bool:
        """Whether a signal that came is left to the block; a second one is not."""
        if number != signal.SIGTERM or not self._is_heeded or self.is_wanted:
            return False
        self.is_wanted = True
        return True

    def end(self) -> None:
        """Ends the process as SIGTERM does. Never returns."""
        self._is_heeded = False
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            signal.pause()


@contextmanager
def end_at_once(describe: Callable[[], str]) -> Iterator[Stop]:
    """Makes a signal end the process while the block runs, with one sentence on stderr and exit code 128 + number.

    An exception raised into TensorFlow at any instant becomes other errors, and an interpreter that shuts down under
    its threads crashes: of 64 interrupted runs 2 ended with a `RuntimeError` of a context manager. What is on disk
    has to survive a kill anyway. No-op outside of the main thread, which gets no signals.

    Yields what lets the block put SIGTERM off by a few steps, `GRACE_S` at most, or `INPUT_GRACE_S` without input.

    Args:
        describe: Returns one sentence: what is lost, and how to go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Stop()
        return
    stop = Stop(heeded(WORDS))
    # Library start-up hides descriptor 2 for a moment; the sentence must reach the user even then.
    stderr = os.dup(2)

    def end(number: int) -> None:
        start = "\x1b[?25h\n" if os.isatty(stderr) else ""  # A progress bar hides the cursor.
        os.write(stderr, f"{start}{WORDS[signal.Signals(number)]}: {describe()}\n".encode())
        os._exit(128 + number)

    def end_late(number: int, asked_at: float) -> None:
        while time.monotonic() < asked_at + GRACE_S and not stop.is_held_up(asked_at):
            time.sleep(_POLL_S)
        end(number)

    def answer(number: int) -> None:
        if not stop.can_wait(number):
            end(number)
        else:
            threading.Thread(target=end_late, args=(number, time.monotonic()), daemon=True).start()

    try:
        with answered_in_thread(answer):
            yield stop
    finally:
        os.close(stderr)
