"""What a run would do, shown without doing it: nothing is written, and no more is read than a run plans by."""

from __future__ import annotations

from shardkit.units import format_number
from train.memory_estimate import estimate_memory
from train.report import Reporter, print_table
from train.request import Request
from train.run import Setup, describe, set_up
from train.run_folder import RunFolder
from train.shares import WorkerShare, worker_shares


def dry_run(request: Request, folder: RunFolder, reporter: Reporter, num_workers: int = 1) -> None:
    """Shows the plan of a run on stdout: steps, shares of the workers, memory.

    Args:
        request: That fits its dataset.
        folder: Of the run; not touched.
        reporter: Told what the run itself would say.
        num_workers: Processes that read.

    Raises:
        UsageError: If the run could not be.
    """
    setup = set_up(request)
    describe(reporter, setup)
    if folder.record_path.exists() and not request.options.resume:
        reporter.note(f"there is a run already in {folder.path}; this one needs --resume or another --output")
    plan = setup.plan
    rows = [
        ("epochs", f"{plan.num_epochs:,}"),
        ("steps", f"{plan.num_steps:,}, {plan.steps_per_epoch:,} an epoch"),
        ("examples a step", f"{plan.global_batch_size:,}, {plan.replica_batch_size:,} on each replica"),
        ("left out", f"{format_number(plan.num_left_out, 'example')} of each epoch"),
        ("validation", f"{format_number(plan.num_validation_steps, 'step')} after each epoch"),
        ("checkpoints", _checkpoints(setup)),
    ]
    print_table(("plan", ""), rows)
    shares = _shares(setup, num_workers)
    print_table(
        ("worker", "lanes", "blocks", "shards", "examples", "a step"),
        [[f"{number:,}" for number in share] for share in shares],
    )
    estimate = estimate_memory(setup.learner.model, setup.updater.optimizer, plan.replica_batch_size)
    print_table(("memory of a replica", "size", "estimated by"), estimate.lines())


def _shares(setup: Setup, num_workers: int) -> tuple[WorkerShare, ...]:
    request = setup.request
    shards = request.dataset.split_shards(request.splits.train)
    return worker_shares(
        [shard.block_num_examples for shard in shards],
        global_batch_size=setup.plan.global_batch_size,
        num_workers=num_workers,
        seed=request.options.seed,
    )


def _checkpoints(setup: Setup) -> str:
    every = setup.request.options.checkpoint_every
    return "after each epoch" + (f" and every {format_number(every, 'step')}" if every is not None else "")
