"""A conversion on an engine of Beam: handed over, watched, and ended with a sentence."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.runner import PipelineState
from apache_beam.runners.worker import sdk_worker

from beam_pipelines.convert import convert_pipeline
from beam_pipelines.engines.watch import KEPT, cancel_soon, explained_end, follow
from beam_pipelines.quiet import quiet_beam, servers_on_loopback, temporary_files_in
from shardkit.conversion.commit.commit import own_commit
from shardkit.conversion.plan import load_plan
from shardkit.conversion.run.local import stop_workers
from shardkit.errors import StorageError

# The job of this process; there is one at most.
_running: list[Any] = []


class Job(NamedTuple):
    """A job as an engine gets it.

    Attributes:
        name: Of the engine, for messages.
        stall_s: Give up when no worker has done anything for so long.
    """

    name: str
    flags: Sequence[str]
    stall_s: float


def run_on_engine(job: Job, plan_path: str) -> None:
    """Runs a stored plan on an engine and returns when the dataset is committed.

    Args:
        plan_path: Of the plan, in a folder that all workers share.

    Raises:
        ShardkitError: What a worker reported, or what became of the engine.
    """
    plan = load_plan(plan_path)
    with ExitStack() as stack:
        for context in (quiet_beam(), _quiet_threads(), temporary_files_in(plan.work_path("tmp"))):
            stack.enter_context(context)
        with explained_end(job.name, "beam", plan):
            options = PipelineOptions(list(job.flags))
            if options.view_as(PortableOptions).environment_type == "LOOPBACK":
                stack.enter_context(servers_on_loopback())
            pipeline = beam.Pipeline(options=options)
            convert_pipeline(pipeline, plan_path)
            result = pipeline.run()
            _running[:] = [result]
            follow(result.wait_until_finish, result.cancel, plan, job.stall_s)
            if result.state != PipelineState.DONE:
                raise RuntimeError(f"the job ended as {result.state}")
            if own_commit(plan) is None:
                raise _ended_early(job.name)


def stop_job() -> None:
    """Cancels the job, which may run elsewhere, if its engine does so within seconds; kills all processes below."""
    for result in _running:
        cancel_soon(result.cancel)
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


def _ended_early(name: str) -> StorageError:
    return StorageError(
        f"{name} says that the job is over, and there is no dataset",
        why="most often a part that hands out its work has ended, such as a job service",
        state=KEPT,
        next_step="See whether it lives, then run the same command again to go on",
    )
