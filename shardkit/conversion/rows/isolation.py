"""Works at input splits that brought a process down in separate processes, until only the bad rows are left out.

The process is started anew, not forked: threads of libraries do not survive a fork. It does the whole step, and leaves
its result in the work folder like any other. Its attempt shows the rows that it worked at when it died.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from shardkit.conversion.plan import Plan, plan_file
from shardkit.conversion.rows.attempts import (
    READING,
    Place,
    forget_attempt,
    is_suspect,
    read_place,
    suspect,
    take_suspicion,
)
from shardkit.conversion.rows.crash_records import load_crash_record, narrow, narrow_at_first, save_crash_record
from shardkit.errors import BadInputError, OutOfSpaceError, ShardkitError, StorageError
from shardkit.runtime.process_limits import (
    NO_MEMORY,
    describe_memory,
    exit_if_memory_is_short,
    is_cramped,
    is_of_memory,
    larger_memory_step,
    place_noted,
)
from shardkit.runtime.signals import signal_name
from shardkit.sources.base import InputSplit
from shardkit.units import format_count

Step = Literal["extract", "survey"]
Origin = Literal["kept", "here", "isolated"]

_Done = TypeVar("_Done")

WORKER = "shardkit.conversion.extract.isolated_worker"
"""The program of a process that does one step; above this module, as it needs the steps."""

_POLL_SECONDS = 0.1
EXIT_FAILED = 3
EXIT_NO_MEMORY = 4
_OUT_OF_MEMORY = "ran out of memory (see --max-memory)"
_MAX_PROCESSES = 1_000


class Failure(msgspec.Struct, frozen=True):
    """The error of a step: an error of shardkit, or the traceback of an unexpected one."""

    error: dict[str, str | None] | None
    traceback: str


def load_or_run(
    plan: Plan, input_split_index: int, step: Step, find: Callable[[Plan, int], _Done | None], here: Callable[[], _Done]
) -> tuple[_Done, Origin]:
    """Returns the result of an input split, and its origin.

    Args:
        step: The step for a separate process.
        find: Returns the result of an earlier run or another process, None if none holds any more.

    Raises:
        ShardkitError: What the step raised.
        StorageError: If processes end for no reason that a row could have.
        MemoryError: If there is too little for another process; a note names the files.
    """
    # Another thread may hold the memory that this one asks for, at any place.
    with place_noted(_files_of(plan, input_split_index)):
        found = find(plan, input_split_index)
        if found is not None:
            return found, "kept"
        if not is_suspect(plan.work_dir, input_split_index):
            try:
                return here(), "here"
            except (MemoryError, OSError, RuntimeError) as error:
                if not is_of_memory(error):
                    raise
                suspect(plan.work_dir, input_split_index)
            exit_if_memory_is_short()
        run_isolated(plan, input_split_index, step)
        found = find(plan, input_split_index)
        assert found is not None, "the process that made it said so"
        return found, "isolated"


def run_isolated(plan: Plan, input_split_index: int, step: Step) -> None:
    """Does a step of an input split in separate processes, as many as it costs.

    Raises:
        ShardkitError: What the step raised.
        BadInputError: If more rows bring a process down than may be bad, or than anyone would wait for.
        OutOfSpaceError: If a process has too little memory to read a file of many rows.
        StorageError: If processes end for no reason that a row could have.
    """
    split = plan.input_splits[input_split_index]
    suspicion = take_suspicion(plan.work_dir, input_split_index)
    if suspicion is not None:
        crash_record = load_crash_record(plan, input_split_index)
        save_crash_record(plan, input_split_index, narrow_at_first(crash_record, suspicion))
    how: str | None = None
    for _ in range(_MAX_PROCESSES):
        how = _try(plan, input_split_index, step)
        if how is None:
            return
        place = read_place(plan.work_dir, input_split_index)
        forget_attempt(plan.work_dir, input_split_index)
        if how == _OUT_OF_MEMORY and place is not None and _reads_many_rows(split, place):
            raise _memory_error(plan.files[max(split.file_start, place.file_index)].name)
        crash_record = load_crash_record(plan, input_split_index)
        known = None if place is None else narrow(crash_record, place, how, split.file_stop - split.file_start)
        if known is None and how == _OUT_OF_MEMORY:
            raise _memory_error(_files_of(plan, input_split_index))
        if known is None:
            break
        save_crash_record(plan, input_split_index, known)
    else:
        raise BadInputError(
            "too many rows bring down the process that works at them",
            where=_files_of(plan, input_split_index),
            why=f"{format_count(_MAX_PROCESSES)} processes were not enough to leave them out; the last one {how}",
            next_step="Correct the rows, or the function that they bring down",
        )
    raise StorageError(
        "a process that worked at one part of the inputs " + (how or "ended"),
        where=_files_of(plan, input_split_index),
        why="no row of it is to blame",
        next_step="Run the same command again; if it ends the same way, report it",
    )


def _memory_error(where: str) -> OutOfSpaceError:
    return OutOfSpaceError(
        f"{NO_MEMORY} to read a file",
        where=where,
        why=describe_memory() or "--max-memory says how much a process may ask for",
        next_step=larger_memory_step(),
    )


def _reads_many_rows(split: InputSplit, place: Place) -> bool:
    # Of several files that are read in one split without parts, each is a row.
    is_one_file = split.file_stop - split.file_start == 1 or (bool(split.parts) and place.file_index >= 0)
    return place.phase == READING and is_one_file


def _files_of(plan: Plan, input_split_index: int) -> str:
    split = plan.input_splits[input_split_index]
    return ", ".join(f.name for f in plan.files[split.file_start : split.file_stop][:3])


def _try(plan: Plan, input_split_index: int, step: Step) -> str | None:
    # Returns how the process ended, None if it did its work.
    failure_path = plan.work_path("isolated", f"{input_split_index}.failure")
    done_path = plan.work_path("isolated", f"{input_split_index}.done")
    for path in (failure_path, done_path):
        path.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", WORKER, str(plan_file(plan)), str(input_split_index), step]
    with subprocess.Popen(command) as process:
        how = _watch(process, plan, input_split_index)
    # A user's function may end the process with any exit code.
    if how is not None or (process.returncode == 0 and done_path.exists()):
        return how
    if process.returncode == EXIT_FAILED and failure_path.exists():
        failure = msgspec.msgpack.decode(failure_path.read_bytes(), type=Failure)
        if failure.error is not None:
            raise ShardkitError.from_dict(failure.error)
        raise RuntimeError(failure.traceback)
    if process.returncode == EXIT_NO_MEMORY or (process.returncode < 0 and is_cramped()):
        return _OUT_OF_MEMORY
    return describe_end(process.returncode)


def _watch(process: subprocess.Popen[bytes], plan: Plan, input_split_index: int) -> str | None:
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
            return None
        place = read_place(plan.work_dir, input_split_index)
        if place is not None and time.monotonic() > place.deadline:
            process.kill()
            process.wait()
            return f"took longer than {plan.recipe.max_row_seconds:g} s"


def describe_end(return_code: int) -> str:
    """Returns how a process ended, such as `ended with SIGSEGV`."""
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    return f"ended with {signal_name(-return_code)}"
