"""How a conversion ends before its end: at a signal, or when its workers are lost. Nothing is waited for then."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from shardkit.cli.pages.progress import fresh_line
from shardkit.cli.shell.errors import explain, show
from shardkit.cli.shell.supervised import EXIT_LOST_WORKER, announce_answer, announce_end, is_supervised
from shardkit.conversion.commit.commit import forbid_commit
from shardkit.conversion.plan import Plan
from shardkit.errors import StorageError
from shardkit.runtime.early_signals import WORDS
from shardkit.runtime.process_limits import EXIT_NO_MEMORY
from shardkit.runtime.signals import answered_in_thread

# Held by the first thread that ends the process: stopping the workers after Ctrl-C looks like losing them.
_stopping = threading.Lock()
_STORE_SECONDS = 5.0


@contextlib.contextmanager
def end_at_signals(plan: Plan, stop_workers: Callable[[], None]) -> Iterator[None]:
    """Ends the process at a signal during the block, with a true sentence, and the same exit code as a shell's."""

    # An engine turns an interrupt into other errors or waits for its workers; everything may stop at any instant.
    def say() -> str:
        state = "Nothing was committed" if _forbid_commit(plan) else "It may be committed already"
        return f"{state}; run the same command again to go on where it stopped"

    with _ended_at_signals(say, stop_workers):
        yield


@contextlib.contextmanager
def end_at_signals_after_commit(version: int) -> Iterator[None]:
    """Ends the process at a signal during the block, which tidies up after the commit of a version and shows it.

    An exception that a signal raised would hit locks of threads in the midst of being taken.
    """
    with _ended_at_signals(lambda: f"Version {version} was committed before, and is whole", lambda: None):
        yield


@contextlib.contextmanager
def _ended_at_signals(say: Callable[[], str], stop_workers: Callable[[], None]) -> Iterator[None]:
    def end(number: int) -> None:
        announce_answer()
        if _stopping.acquire(blocking=False):
            os.write(2, f"{fresh_line()}{WORDS[signal.Signals(number)]}: {say()}.\n".encode())
            stop_and_exit(stop_workers, 128 + number)

    with answered_in_thread(end):
        yield


def _forbid_commit(plan: Plan) -> bool:
    if plan.exchange is None:
        return forbid_commit(plan)
    # A store may take as long as it likes.
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(forbid_commit(plan)), daemon=True)
    thread.start()
    thread.join(_STORE_SECONDS)
    return answers == [True]


def end_now(error: StorageError, stop_workers: Callable[[], None]) -> None:
    """Ends the process with an error, from any thread, unless it is being ended."""
    if not _stopping.acquire(blocking=False):
        return
    if is_supervised():
        stop_and_exit(stop_workers, EXIT_LOST_WORKER)
    sys.stderr.write(fresh_line())
    show(explain(error), error)
    sys.stderr.flush()
    stop_and_exit(stop_workers, error.exit_code)


def stop_and_exit(stop_workers: Callable[[], None], exit_code: int) -> NoReturn:
    """Ends the process and all below it without a word."""
    # The message is out: complaints of the runner's threads about lost workers are noise.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    with contextlib.suppress(Exception):
        stop_workers()
    if exit_code not in (EXIT_LOST_WORKER, EXIT_NO_MEMORY):
        announce_end()
    os._exit(exit_code)
