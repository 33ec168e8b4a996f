"""The program of a process that `rows.isolation` starts: it does one step of one input split."""

from __future__ import annotations

import signal
import sys
import traceback

import msgspec

from shardkit.conversion.extract.extract import extract_here
from shardkit.conversion.extract.first_pass import run_first_pass_here
from shardkit.conversion.plan import load_plan
from shardkit.conversion.rows.attempts import OTHER, Attempt
from shardkit.conversion.rows.crash_limit import refuse_too_many
from shardkit.conversion.rows.isolation import EXIT_FAILED, EXIT_NO_MEMORY, Failure, Step
from shardkit.errors import ShardkitError
from shardkit.runtime.process_limits import die_with_parent
from shardkit.transforms.pipeline import load_steps

_LOAD_SECONDS = 60.0


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
    except MemoryError:
        return EXIT_NO_MEMORY
    except Exception as error:  # noqa: BLE001 - the process that waits raises it
        parts = error.to_dict() if isinstance(error, ShardkitError) else None
        failure = Failure(parts, traceback.format_exc())
        plan.work_path("isolated", f"{input_split_index}.failure").write_bytes(msgspec.msgpack.encode(failure))
        return EXIT_FAILED
    plan.work_path("isolated", f"{input_split_index}.done").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), "extract" if sys.argv[3] == "extract" else "survey"))
