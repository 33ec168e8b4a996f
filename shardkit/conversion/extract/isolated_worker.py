"""The program of a process that `rows.isolation` starts: it does one step of one input split.

Each bad row costs such a process, so their limit is kept before each step.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from itertools import islice

import msgspec

from shardkit.conversion.extract.extract import extract_here
from shardkit.conversion.extract.first_pass import run_first_pass_here
from shardkit.conversion.option_forms import BadLimit
from shardkit.conversion.plan import Plan, load_plan
from shardkit.conversion.rows.attempts import OTHER, Attempt
from shardkit.conversion.rows.bad_rows import MAX_SAMPLES
from shardkit.conversion.rows.crash_records import load_crash_record, num_crashed
from shardkit.conversion.rows.isolation import EXIT_FAILED, EXIT_NO_MEMORY, Failure, Step
from shardkit.conversion.rows.read_rows import name_crashed
from shardkit.errors import BadInputError, ShardkitError
from shardkit.runtime.process_limits import die_with_parent, is_of_memory
from shardkit.transforms.pipeline import load_steps
from shardkit.units import format_number

_LOAD_SECONDS = 60.0
_ANY_NUMBER = 1 << 62


def main(plan_path: str, input_split_index: int, step: Step) -> int:
    """Does one step of one input split in this process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan = load_plan(plan_path)
    try:
        with Attempt(plan.work_dir, input_split_index) as attempt:
            # The imports of a user's function must not count as time of its first rows.
            attempt.begin(OTHER, max(_LOAD_SECONDS, plan.recipe.max_row_seconds), 0)
            load_steps(plan.transforms)
        refuse_too_many(plan, input_split_index)
        if step == "extract":
            extract_here(plan, input_split_index)
        else:
            run_first_pass_here(plan, input_split_index)
    except Exception as error:  # noqa: BLE001 - the process that waits raises it
        if is_of_memory(error):
            return EXIT_NO_MEMORY
        parts = error.to_dict() if isinstance(error, ShardkitError) else None
        failure = Failure(parts, traceback.format_exc())
        plan.work_path("isolated", f"{input_split_index}.failure").write_bytes(msgspec.msgpack.encode(failure))
        return EXIT_FAILED
    plan.work_path("isolated", f"{input_split_index}.done").touch()
    return 0


def refuse_too_many(plan: Plan, input_split_index: int) -> None:
    """Checks that no more rows are known to end a process than may be bad, however many rows there are.

    Raises:
        BadInputError: If there are; shows a few of them.
    """
    if plan.recipe.max_bad is None:
        return
    limit = BadLimit(plan.recipe.max_bad)
    indices = [int(path.stem) for path in plan.work_path("isolated").glob("*.verdict")]
    num_bad = sum(num_crashed(load_crash_record(plan, index)) for index in indices)
    if not limit.is_exceeded(num_bad, _ANY_NUMBER):
        return
    named = sorted(indices, key=lambda index: (index != input_split_index, index))
    samples = (sentence for index in named for sentence in name_crashed(plan, plan.input_splits[index]))
    raise BadInputError(
        "too many rows do not fit",
        where="; ".join(islice(samples, MAX_SAMPLES)),
        why=f"{format_number(num_bad, 'row')} or more are bad; --max-bad {limit.text} allows less",
        next_step="Correct them, or raise --max-bad",
    )


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]), "extract" if sys.argv[3] == "extract" else "survey")
    sys.stdout.flush()
    sys.stderr.flush()
    # The end of the interpreter aborts a process that has a thread in compiled code.
    os._exit(code)
