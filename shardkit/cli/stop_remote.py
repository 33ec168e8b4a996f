"""The effect of signals on a conversion that runs elsewhere: the command has to say what becomes of the job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from shardkit.cli.pages.progress import Display
from shardkit.cli.shell.supervised import announce_answer, announce_end
from shardkit.conversion.commit.commit import forbid_commit
from shardkit.conversion.plan import Plan
from shardkit.runtime.early_signals import WORDS
from shardkit.runtime.signals import heeded

if TYPE_CHECKING:
    from beam_pipelines.engines.engine import RemoteRun

_GRACE_S = 5.0
_POLL_S = 0.2
# The command stays until the job got its order to end, also at a second signal, but then waits no longer than this.
_HURRIED_S = 5.0


@contextlib.contextmanager
def asking(plan: Plan, run: RemoteRun, display: Display) -> Iterator[None]:
    """Answers signals during the block: the job runs elsewhere, so the command has to say what becomes of it."""
    announce_answer()
    stopper = _Stopper(plan, run, display)
    previous = {number: signal.signal(number, stopper.answer) for number in heeded(WORDS)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Stopper:
    """Ends the command at a signal, and the job if that is wanted."""

    def __init__(self, plan: Plan, run: RemoteRun, display: Display) -> None:
        self._plan, self._run, self._display = plan, run, display
        self._is_asking = self._is_cancelling = self._is_hurried = False

    def answer(self, number: int, frame: FrameType | None) -> None:
        """Is called in the main thread, between any two instructions of it, and within itself."""
        self._display.hold()
        job = self._run.job
        if job is None:
            self._leave(number, self._before_the_job())
        if self._is_cancelling:
            self._is_hurried = True
            return
        if number == signal.SIGHUP or (self._is_asking and number == signal.SIGINT):
            self._leave(number, self._goes_on())
        if number == signal.SIGINT and _can_ask():
            self._is_asking = True
            if not _says_yes(f"\nThe job {job.id} runs on {self._run.service}. Cancel it? [y/N] "):
                self._leave(number, self._goes_on())
            os.write(2, b"Cancelling the job ...\n")
        self._is_asking, self._is_cancelling = False, True
        self._leave(number, self._cancelled())

    def _cancelled(self) -> str:
        # In a thread: this runs in the middle of the main thread, whose locks are held.
        ended: list[str] = []

        def cancel() -> None:
            with contextlib.suppress(Exception):
                # Workers may go on for a while; none of them commits after the message.
                forbid_commit(self._plan)
                ended.append(self._run.cancel())

        thread = threading.Thread(target=cancel, daemon=True, name="cancel")
        thread.start()
        started = time.monotonic()
        job = self._run.job
        assert job is not None
        while thread.is_alive() and time.monotonic() < started + self._run.cancel_s + _GRACE_S:
            thread.join(_POLL_S)
            if self._is_hurried and self._run.is_cancel_taken:
                return f"the job {job.id} is being cancelled: {job.url}"
            if self._is_hurried and time.monotonic() > started + _HURRIED_S:
                break
        return self._run.after_cancel(self._plan, ended[0] if ended else None)

    def _before_the_job(self) -> str:
        if not self._run.is_submitting:
            return "Nothing was handed over, nothing was committed"
        return f"the job was being handed over, so it may run all the same; see {self._run.jobs_url}"

    def _goes_on(self) -> str:
        job = self._run.job
        assert job is not None
        return f"the job {job.id} goes on and commits the dataset by itself; look at it at {job.url}"

    def _leave(self, number: int, text: str) -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(2, f"{WORDS[signal.Signals(number)]}: {text}.\n".encode())
        self._run.clean_up()
        with contextlib.suppress(OSError):
            announce_end()
        os._exit(128 + number)


def _can_ask() -> bool:
    # A process in the background would be stopped by the answer that it waits for.
    with contextlib.suppress(OSError):
        return os.isatty(2) and os.tcgetpgrp(0) == os.getpgrp()
    return False


def _says_yes(question: str) -> bool:
    os.write(2, question.encode())
    with contextlib.suppress(OSError):
        return os.read(0, 1024).strip().lower() in (b"y", b"yes")
    return False
