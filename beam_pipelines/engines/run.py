"""A conversion on an engine of Beam: handed over, watched, and ended with a sentence.

An engine retries failed work by itself. A failure that remains, or work that no worker does any more, ends the command.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState
from apache_beam.runners.worker import sdk_worker

from beam_pipelines.convert import convert_pipeline
from beam_pipelines.quiet import quiet_beam, temporary_files_in
from shardkit._version import __version__
from shardkit.conversion.commit.commit import own_commit
from shardkit.conversion.exchange import fetch, fetch_signs
from shardkit.conversion.failures import FAILURE_FILES, read_failure
from shardkit.conversion.plan import Plan, load_plan
from shardkit.conversion.progress import read_totals
from shardkit.conversion.run.local import stop_workers
from shardkit.conversion.shards.layout import LAYOUT_FILE
from shardkit.errors import ShardkitError, StorageError, UsageError

_POLL_S = 0.25
_CANCEL_S = 5.0
_MIN_LOOK_S, _MAX_LOOK_S = 1.0, 15.0
_KEPT = "Nothing was committed; finished parts are kept"
_MISSING_MODULE = re.compile(r"No module named '(shardkit|beam_pipelines)[.\w]*'")
# The job of this process; there is one at most.
_running: list[Any] = []
_ERROR_LINE = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Worker)): (.*\w.*)$", re.MULTILINE)


class Job(NamedTuple):
    """A job as an engine gets it.

    Attributes:
        name: Of the engine, for messages.
        flags: Of Beam.
        stall_s: Give up when no worker has done anything for so long.
        cluster: Gives more flags, which name a cluster that ends with the job.
    """

    name: str
    flags: Sequence[str]
    stall_s: float
    cluster: AbstractContextManager[list[str]]


def run_on_engine(job: Job, plan_path: str, on_lost_worker: Callable[[StorageError], None]) -> None:
    """Runs a stored plan on an engine and returns when the dataset is committed.

    Args:
        job: Which engine, and what it gets.
        plan_path: Of the plan, in a folder that all workers share.
        on_lost_worker: Called when workers died over the same part again and again; must end the process.

    Raises:
        ShardkitError: What a worker reported, or what became of the engine.
    """
    plan = load_plan(plan_path)
    with ExitStack() as stack:
        for context in (quiet_beam(), _quiet_threads(), temporary_files_in(plan.work_path("tmp"))):
            stack.enter_context(context)
        more = stack.enter_context(job.cluster)
        try:
            pipeline = beam.Pipeline(options=PipelineOptions([*more, *job.flags]))
            convert_pipeline(pipeline, plan_path)
            result = pipeline.run()
            _running[:] = [result]
            _follow(result, plan, job.stall_s)
            if own_commit(plan) is None:
                raise _ended_early(job.name)
        except ShardkitError:
            raise
        except Exception as error:
            with suppress(ShardkitError):
                fetch(plan, FAILURE_FILES)
            if (failure := read_failure(plan)) is not None and failure.error is not None:
                raise ShardkitError.from_dict(failure.error) from None
            if type(error).__name__ == "KilledWorker":
                on_lost_worker(_lost_worker(job.name, str(error)))
            raise _explained(error, job.name) from error


def stop_job() -> None:
    """Cancels the job, which may run elsewhere, if its engine does so within seconds; kills all processes below."""
    for result in _running:
        # Not in a signal's handler: whatever the main thread waits for is locked.
        thread = threading.Thread(target=_cancel, args=(result,), daemon=True)
        thread.start()
        thread.join(_CANCEL_S)
    stop_workers()


@contextmanager
def _quiet_threads() -> Iterator[None]:
    # Threads that talk to workers complain when those are gone; the command itself reports the end of the job.
    if os.environ.get("SHARDKIT_DEBUG"):
        yield
        return
    previous = threading.excepthook
    threading.excepthook = lambda args: None
    # Workers of LOOPBACK are threads of this process, and print every traceback beside logging it: after the end too.
    sdk_worker.print = lambda *texts, **options: None
    try:
        yield
    finally:
        threading.excepthook = previous


def _follow(result: Any, plan: Plan, stall_s: float) -> None:
    """Waits for the end of a job; cancels it when a worker met an error that no retry mends, or when nothing moves.

    Raises:
        ShardkitError: In either case, or if the job ended otherwise than well.
        Exception: What the engine raised.
    """
    watch = _Watch(plan)
    has_ended = threading.Event()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            result.wait_until_finish()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for this one
            raised.append(error)
        finally:
            has_ended.set()

    threading.Thread(target=wait, daemon=True, name="engine").start()
    seen, since_s = _signs_of_work(plan), time.monotonic()
    while not has_ended.wait(_POLL_S):
        watch.look()
        failure = read_failure(plan)
        if failure is not None and failure.error is not None:
            error = ShardkitError.from_dict(failure.error)
            # The engine tries again after an error of a store.
            if not isinstance(error, StorageError):
                _cancel(result)
                raise error
        if (now := _signs_of_work(plan)) != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > stall_s:
            _cancel(result)
            raise StorageError(
                "the engine stands still",
                why=f"no worker has done anything for {stall_s / 60:.3g} minutes",
                state=_KEPT,
                next_step="See whether its workers live, then run the same command again; --engine-option "
                "stall-minutes=N waits longer",
            )
    if raised:
        raise raised[0]
    if result.state not in (PipelineState.DONE, None):
        raise RuntimeError(f"the job ended as {result.state}")


class _Watch:
    """Brings the signs of workers without a shared disk here from time to time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._started_s = time.monotonic()
        self._next_s = self._started_s

    def look(self) -> None:
        """Asks the store, unless that was done just now."""
        now_s = time.monotonic()
        if self._plan.exchange is None or now_s < self._next_s:
            return
        # Every look costs a request for each worker.
        self._next_s = now_s + min(max((now_s - self._started_s) / 20, _MIN_LOOK_S), _MAX_LOOK_S)
        with suppress(ShardkitError):
            fetch_signs(self._plan, *FAILURE_FILES, LAYOUT_FILE)


def _signs_of_work(plan: Plan) -> tuple[Any, ...]:
    folders = [plan.work_path(name) for name in ("survey", "extract", "spool", "shards")]
    counts = [sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0 for folder in folders]
    return (read_totals(plan.work_path("progress")), *counts)


def _cancel(result: Any) -> None:
    # An error of the engine here is dropped: the end already has a better reason.
    with suppress(Exception):
        result.cancel()


def _ended_early(name: str) -> StorageError:
    return StorageError(
        f"{name} says that the job is over, and there is no dataset",
        why="most often a part that hands out its work has ended, such as a scheduler",
        state=_KEPT,
        next_step="See whether it lives, then run the same command again to go on",
    )


def _lost_worker(name: str, why: str) -> StorageError:
    return StorageError(
        f"workers of {name} died over the same part again and again",
        why=f"{why.splitlines()[0]}; most often the system ran out of memory",
        state=_KEPT,
        next_step="Run the same command again, with fewer --workers if memory is short",
    )


def _explained(error: Exception, name: str) -> ShardkitError:
    text = str(error)
    if (missing := _MISSING_MODULE.search(text)) is not None:
        return UsageError(
            f"the workers of {name} have no shardkit",
            why=missing.group(),
            next_step=f"Install shardkit {__version__} with the extra beam where they run",
        )
    lines = _ERROR_LINE.findall(text)
    why = ": ".join(lines[-1]) if lines else f"{type(error).__name__}: {text.strip().splitlines()[-1] if text else ''}"
    return StorageError(
        f"the engine {name} ended with an error",
        why=why[:500],
        state=_KEPT,
        next_step="Run the same command again to go on; with --debug it shows everything",
    )
