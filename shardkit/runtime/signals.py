"""Signals as numbers that arrive on a pipe, so that a thread can heed them whatever the main thread waits for.

The system hands a signal to any thread that does not block it. Python answers in the main thread alone, which nothing
wakes where it waits for a lock meanwhile: of 140 conversions that got a signal, 12 went on to the end of a stage.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from shardkit.runtime.early_signals import WORDS
from shardkit.runtime.threads import start_thread


def heeded(numbers: Iterable[int]) -> tuple[int, ...]:
    """Returns those of the signals that the parent process did not have ignored, as `nohup` does."""
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)


def leave_to_pipe(number: int, frame: FrameType | None) -> None:
    """Does nothing, as a handler: the number is on the pipe already."""


_interrupt = KeyboardInterrupt()


def note_interrupt(error: KeyboardInterrupt) -> None:
    """Keeps what a handler is about to raise, for libraries that swallow what their callbacks raise."""
    global _interrupt
    _interrupt = error


def noted_interrupt() -> KeyboardInterrupt:
    """Returns what `note_interrupt` kept last; a plain KeyboardInterrupt where nothing was kept."""
    return _interrupt


@contextmanager
def signals_on_pipe(numbers: Iterable[int]) -> Iterator[int]:
    """Gives a descriptor on which a byte arrives for each signal, its number; they do nothing else during the block.

    Numbers of other signals that have a handler arrive too. Nothing more arrives after the block, so a reader meets
    the end then. The reader closes the descriptor. Only the main thread may call this.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, leave_to_pipe) for number in numbers}
    try:
        yield read_end
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(write_end)


@contextmanager
def answered_in_thread(answer: Callable[[int], None]) -> Iterator[None]:
    """Calls a function with the number of each SIGINT, SIGTERM and SIGHUP that comes during the block, in a thread.

    A signal that came before the end of the block is answered before the block is left.
    """
    numbers = heeded(WORDS)

    def watch(read_end: int) -> None:
        while received := os.read(read_end, 1):
            if received[0] in numbers:
                answer(received[0])
        os.close(read_end)

    with ExitStack() as stack, signals_on_pipe(numbers) as read_end:
        watcher = threading.Thread(target=watch, args=(read_end,), daemon=True, name="signals")
        start_thread(watcher)
        stack.callback(watcher.join)
        yield


def signal_name(number: int) -> str:
    """Returns the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
