"""`shardkit convert --runner dataflow`: its checks before anything is read, and the effect of Ctrl-C on the job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from beam_pipelines.engines.settings import EngineOptions
from shardkit.cli.pages.progress import Display
from shardkit.cli.shell.supervised import announce_end
from shardkit.conversion.commit.commit import forbid_commit
from shardkit.conversion.plan import Plan
from shardkit.conversion.request import ConvertRequest
from shardkit.errors import UsageError
from shardkit.storage import files as storage
from shardkit.storage.options import VARIABLE

if TYPE_CHECKING:
    from beam_pipelines.engines.dataflow.run import DataflowRun

_GRACE_S = 5.0
_POLL_S = 0.2
# The command stays until the job got its order to end, also at a second signal, but then waits no longer than this.
_HURRIED_S = 5.0
_REACHED = ("gs", "gcs", "s3", "az", "abfs", "abfss", "hdfs")


def prepared_for_dataflow(options: ConvertRequest, engine: EngineOptions, num_workers: int | None) -> ConvertRequest:
    """Returns the options of a conversion on Dataflow, checked before anything is read.

    Raises:
        UsageError: If an option is missing, or something lies where workers cannot read it.
    """
    from beam_pipelines.engines.dataflow.packaging import packaging_of
    from beam_pipelines.engines.dataflow.settings import checked_settings
    from beam_pipelines.engines.dataflow.wheel import look_at_launcher
    from beam_pipelines.engines.settings import Facts

    chosen = checked_settings(engine, Facts(0, 0, os.environ))
    check_reach(options)
    if num_workers is not None:
        raise UsageError(
            "--workers means nothing on Dataflow",
            why="it starts as many workers as there is work for",
            next_step="Give --engine-option max-workers=N as a cap",
        )
    if os.environ.get(VARIABLE):
        raise UsageError(
            "--storage-options do not reach the workers of Dataflow",
            why="they act as a service account, in a network of the project",
            next_step="Leave it out; --engine-option service-account=NAME says as whom they read and write",
        )
    packaging_of(chosen, look_at_launcher())
    return with_work_dir(options, engine)


def with_work_dir(options: ConvertRequest, engine: EngineOptions) -> ConvertRequest:
    """Returns the options with the place of the work folder, which workers read the plan from."""
    from beam_pipelines.engines.dataflow.settings import work_root_url

    url = work_root_url(dict(engine.values)["temp-location"])
    return msgspec.structs.replace(options, work_dir=options.work_dir or url)


def check_reach(options: ConvertRequest) -> None:
    """Checks that workers elsewhere can reach all that they read and write.

    Raises:
        UsageError: If they cannot; it names what.
    """
    labels = options.source.labels
    read = [
        ("the input", options.inputs),
        ("the destination", (options.destination,)),
        ("the file of --labels", () if labels is None else (labels,)),
        ("the --work-dir", () if options.work_dir is None else (options.work_dir,)),
    ]
    for what, paths in read:
        for path in paths:
            if path.partition("://")[0].lower() not in _REACHED:
                raise UsageError(
                    f"{what} {storage.redact(path)!r} is out of the reach of Dataflow's workers",
                    why="they see no file of this machine, and no server of its network",
                    next_step="Put it into a store and give its URL, such as gs://bucket/folder",
                )


@contextlib.contextmanager
def asking(plan: Plan, run: DataflowRun, display: Display) -> Iterator[None]:
    """Answers signals during the block: the job runs elsewhere, so the command has to say what becomes of it."""
    stopper = _Stopper(plan, run, display)
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stopper.answer) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Stopper:
    """Ends the command at a signal, and the job if that is wanted."""

    def __init__(self, plan: Plan, run: DataflowRun, display: Display) -> None:
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
            if not _says_yes(f"\nThe job {job.id} runs on Dataflow. Cancel it? [y/N] "):
                self._leave(number, self._goes_on())
            os.write(2, b"Cancelling the job ...\n")
        self._is_asking, self._is_cancelling = False, True
        self._leave(number, self._cancelled())

    def _cancelled(self) -> str:
        # In a thread: this runs in the middle of the main thread, whose locks are held.
        from beam_pipelines.engines.dataflow.run import CANCEL_S

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
        while thread.is_alive() and time.monotonic() < started + CANCEL_S + _GRACE_S:
            thread.join(_POLL_S)
            if self._is_hurried and self._run.is_cancel_taken:
                return f"the job {job.id} is being cancelled: {job.url}"
            if self._is_hurried and time.monotonic() > started + _HURRIED_S:
                break
        return _sentence(self._plan, ended[0] if ended else None, job.id, job.url)

    def _before_the_job(self) -> str:
        if not self._run.is_submitting:
            return "Nothing was handed over, nothing was committed"
        return (
            "the job was being handed over, so it may run all the same; "
            "see https://console.cloud.google.com/dataflow/jobs"
        )

    def _goes_on(self) -> str:
        job = self._run.job
        assert job is not None
        return f"the job {job.id} goes on and commits the dataset by itself; look at it at {job.url}"

    def _leave(self, number: int, text: str) -> NoReturn:
        word = "interrupted" if number == signal.SIGINT else "terminated"
        with contextlib.suppress(OSError):
            os.write(2, f"{word}: {text}.\n".encode())
        self._run.clean_up()
        with contextlib.suppress(OSError):
            announce_end()
        os._exit(128 + number)


def _sentence(plan: Plan, state: str | None, job_id: str, url: str) -> str:
    from beam_pipelines.engines.dataflow.job import ENDED, NOTHING
    from beam_pipelines.engines.dataflow.run import state_of

    if state is None:
        return f"the job {job_id} could not be cancelled, Dataflow does not answer; look at it at {url}"
    if state not in ENDED:
        return f"the job {job_id} was asked to end and has not yet ({state}); look at it at {url}"
    how = "was cancelled" if state == "JOB_STATE_CANCELLED" else f"had ended before ({state})"
    found = state_of(plan)
    again = "; run the same command again to go on where it stopped" if found == NOTHING else ""
    return f"the job {job_id} {how}. {found}{again}"


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
