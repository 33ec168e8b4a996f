"""Beam's local runner, by name, with the watch that it lacks.

`DirectRunner` would try to download another runner; `FnApiRunner` is the one that every installation has. It neither
retries nor notices a killed worker process (it hangs), so the watch ends the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import psutil
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from beam_pipelines.convert import convert_pipeline
from beam_pipelines.failures import read_failure
from beam_pipelines.worker import return_freed_memory, worker_command
from shardkit.conversion.layout_math import deal_workers
from shardkit.conversion.plan import load_plan
from shardkit.errors import OutOfSpaceError, ShardkitError, StorageError

# Message of the runner when a worker is gone, from the thread that notices it first.
_CHANNEL_CLOSED = "Channel closed prematurely"


def run_local(plan_path: str, num_workers: int, on_lost_worker: Callable[[StorageError], None]) -> None:
    """Runs a stored plan on this machine and returns when the dataset is committed.

    Args:
        plan_path: Of the plan.
        num_workers: Pieces of work at the same time; up to four work in this process.
        on_lost_worker: Called from another thread when a worker process has died. The runner will never return, so
            this must end the process.

    Raises:
        ShardkitError: What a worker reported.
    """
    plan = load_plan(plan_path)
    return_freed_memory()
    num_processes, num_threads = deal_workers(num_workers)
    options = PipelineOptions([f"--direct_num_workers={num_processes}"])
    environment = None
    if num_processes > 1:
        environment = SubprocessSDKEnvironment.from_command_string(worker_command())
    with quiet_beam(), temporary_files_in(plan.work_path("tmp")), _watched_workers(on_lost_worker):
        try:
            pipeline = beam.Pipeline(FnApiRunner(default_environment=environment), options)
            convert_pipeline(pipeline, plan_path, num_threads)
            pipeline.run().wait_until_finish()
        except Exception as error:
            failure = read_failure(plan)
            if failure is not None and failure.error is not None:
                raise ShardkitError.from_dict(failure.error) from None
            if num_processes > 1 and _CHANNEL_CLOSED in str(error):
                on_lost_worker(_lost_worker(str(error)))
            if isinstance(error, OSError):
                raise OutOfSpaceError("the runner could not write", where=plan.work_dir, why=str(error)) from error
            raise


def stop_workers() -> None:
    """Kills all processes below this one."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=0.5)


@contextlib.contextmanager
def quiet_beam() -> Iterator[None]:
    """Hides Beam's log from the user during the block."""
    # Important messages reach the command as errors; the rest is of no use to the user.
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Lets temporary files of the block go into a folder."""
    # Beam makes folders for its staging that a killed process would leave behind; here the next run finds them.
    folder.mkdir(parents=True, exist_ok=True)
    previous = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = previous


@contextlib.contextmanager
def _watched_workers(on_lost_worker: Callable[[StorageError], None]) -> Iterator[None]:
    previous = threading.excepthook

    def watch(args: threading.ExceptHookArgs) -> None:
        if "Worker subprocess exited" not in str(args.exc_value):
            # Threads that talked to a dead worker complain before the one that waits for it.
            if os.environ.get("SHARDKIT_DEBUG"):
                previous(args)
            return
        on_lost_worker(_lost_worker(str(args.exc_value)))

    threading.excepthook = watch
    try:
        yield
    finally:
        threading.excepthook = previous


def _lost_worker(why: str) -> StorageError:
    return StorageError(
        "a worker process died",
        why=f"{why}; most often the system ran out of memory",
        state="Nothing was committed; finished parts are kept",
        next_step="Run the same command again, with fewer --workers if memory is short",
    )
