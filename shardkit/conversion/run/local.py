"""A conversion on this machine: steps run on threads of this process, or of processes below it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psutil

from shardkit.conversion.failures import read_failure
from shardkit.conversion.layout_math import deal_workers
from shardkit.conversion.plan import Plan
from shardkit.conversion.steps import Each, Opened, Step, convert_by, open_plan
from shardkit.errors import OutOfSpaceError, ShardkitError, StorageError, UsageError
from shardkit.runtime.process_limits import return_freed_memory
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.units import MiB

_END_S = 10.0
# Below this, starting processes takes longer than the work.
_ONE_WORKER_BYTES = 16 * MiB


def default_workers(plan: Plan) -> int:
    """Returns one for few bytes, else the number of cores."""
    is_little = sum(f.num_bytes for f in plan.files) < _ONE_WORKER_BYTES
    return 1 if is_little else len(os.sched_getaffinity(0))


def check_folder(plan: Plan) -> None:
    """Checks that the work folder of a plan is on this machine. Raises UsageError if it is in a store."""
    if plan.exchange is not None:
        raise UsageError(
            "--work-dir must be a folder of this machine with --runner local",
            where=storage.redact(plan.exchange),
            why="a folder in a store is for workers that share no disk",
            state="Nothing was committed",
            next_step="Name a local folder, leave it out, or name the --runner that runs such workers",
        )


def run_local(plan_path: str, num_workers: int, on_lost_worker: Callable[[StorageError], None]) -> None:
    """Runs a stored plan on this machine and returns when the dataset is committed.

    Args:
        num_workers: Steps at the same time; up to four run in this process.
        on_lost_worker: Called from another thread when a worker process has died; must end this process.

    Raises:
        ShardkitError: What a step raised.
    """
    return_freed_memory()
    num_processes, num_threads = deal_workers(num_workers)
    opened = open_plan(plan_path, num_threads)
    try:
        with contextlib.ExitStack() as stack:
            call: Callable[[Step, Any], Any] = partial(_call_here, opened)
            if num_processes > 1:
                call = stack.enter_context(_processes(plan_path, num_processes, num_threads, on_lost_worker))
            convert_by(opened, _each_on_threads(call, num_workers))
    except Exception as error:
        failure = read_failure(opened.plan)
        if failure is not None and failure.error is not None:
            raise ShardkitError.from_dict(failure.error) from None
        if isinstance(error, OSError):
            where = opened.plan.work_dir
            raise OutOfSpaceError("the conversion could not write", where=where, why=str(error)) from error
        raise


def stop_workers() -> None:
    """Kills all processes below this one."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=0.5)


def _call_here(opened: Opened, step: Step, item: Any) -> Any:
    return step(opened, item)


def _each_on_threads(call: Callable[[Step, Any], Any], num_threads: int) -> Each:
    """Returns a way to call a step with many items: a free thread takes the next one; after an error none begins."""

    def each(step: Step, items: Sequence[Any]) -> list[Any]:
        has_failed = threading.Event()

        def call_unless_failed(item: Any) -> Any:
            if has_failed.is_set():
                return None
            try:
                return call(step, item)
            except BaseException:
                has_failed.set()
                raise

        with worker_threads(num_threads, "shardkit") as threads:
            futures = [threads.submit(call_unless_failed, item) for item in items]
            errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    return each


class _Thread(NamedTuple):
    """A thread of a worker process: how it is spoken to, and its process."""

    connection: Connection
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def _processes(
    plan_path: str, num_processes: int, num_threads: int, on_lost_worker: Callable[[StorageError], None]
) -> Iterator[Callable[[Step, Any], Any]]:
    """Yields a call of a step in a worker process that has a free thread."""
    all_threads = [thread for _ in range(num_processes) for thread in _start_process(plan_path, num_threads)]
    free: queue.SimpleQueue[_Thread] = queue.SimpleQueue()
    for thread in all_threads:
        free.put(thread)

    def call(step: Step, item: Any) -> Any:
        thread = free.get()
        try:
            thread.connection.send((step, item))
            is_well, answer = thread.connection.recv()
        except (EOFError, OSError) as error:
            lost = _lost_worker(f"it ended with exit code {thread.process.wait()}")
            on_lost_worker(lost)
            raise lost from error
        free.put(thread)
        if not is_well:
            raise RuntimeError(answer)
        return answer

    try:
        yield call
    finally:
        for thread in all_threads:
            thread.connection.close()
        for process in {thread.process for thread in all_threads}:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)


def _start_process(plan_path: str, num_threads: int) -> list[_Thread]:
    pairs = [multiprocessing.Pipe() for _ in range(num_threads)]
    numbers = [other.fileno() for _, other in pairs]
    # -P keeps the user's folder, where anything may be, off the path.
    command = [sys.executable, "-P", "-m", "shardkit.conversion.run.worker", plan_path, *map(str, numbers)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=numbers)
    for _, other in pairs:
        other.close()
    return [_Thread(own, process) for own, _ in pairs]


def _lost_worker(why: str) -> StorageError:
    return StorageError(
        "a worker process died",
        why=f"{why}; most often the system ran out of memory",
        state="Nothing was committed; finished parts are kept",
        next_step="Run the same command again, with fewer --workers if memory is short",
    )
