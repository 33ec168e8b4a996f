"""Shows what a run would do. It writes nothing, and reads only the data that a run plans with."""

from __future__ import annotations

import msgspec

from shardkit.errors import UsageError
from shardkit.units import format_number
from train.asynchronous.work_units import steps_a_unit
from train.distribution.devices import Devices
from train.input.shares import WorkerShare, bucketed_shares, worker_shares
from train.optimization.memory_estimate import estimate_memory
from train.options.length_buckets import SplitBuckets
from train.options.optimizer_options import check_micro_batches
from train.options.step_plan import TrainPlan
from train.reporting.report import Reporter, print_table
from train.runs.request import Request, make_plan, newer_note
from train.runs.run_folder import RunFolder
from train.setup import Setup, set_up
from train.summary import describe


def dry_run(
    request: Request, folder: RunFolder, reporter: Reporter, num_workers: int = 1, num_commanded: int = 0
) -> None:
    """Shows the plan of a run on stdout: steps, shares of the workers, memory.

    Args:
        folder: Of the run; not touched.
        reporter: Gets the lines that the run itself would print.
        num_workers: Processes that share each batch.
        num_commanded: Processes that take units of batches from a chief; 0 where there is none.

    Raises:
        UsageError: If the run could not be.
    """
    setup = set_up(_alone(request) if num_workers > 1 or num_commanded else request)
    devices = _together(setup.devices, request.options.replicas, num_workers)
    if num_commanded:
        devices = devices._replace(summary=f"{format_number(num_commanded, 'worker')}, each on its own")
    plan = make_plan(request, devices.num_replicas, num_workers)
    check_micro_batches(request.options.accumulate, plan.global_batch_size, plan.num_replicas)
    describe(reporter, setup._replace(devices=devices, plan=plan))
    if folder.record_path.exists():
        if not request.options.resume:
            reporter.note(f"there is a run already in {folder.path}; this one needs --resume or another --output")
        elif (newer := newer_note(request.dataset)) is not None:
            reporter.note(newer)
    rows = [
        ("epochs", f"{plan.num_epochs:,}"),
        ("steps", f"{plan.num_steps:,}, {plan.steps_per_epoch:,} an epoch"),
        ("examples a step", f"{plan.global_batch_size:,}, {plan.replica_batch_size:,} on each replica"),
        ("left out", f"{format_number(plan.num_dropped, 'example')} of each epoch"),
        ("validation", f"{format_number(plan.num_validation_steps, 'step')} after each epoch"),
        ("checkpoints", _checkpoints(setup)),
    ]
    if num_commanded:
        size = steps_a_unit(plan.steps_per_epoch, num_commanded)
        rows.append(("dealt out", f"{format_number(size, 'step')} at a time, to the worker that is free"))
    print_table(("plan", ""), rows)
    shares = _shares(request, plan, setup.buckets)
    print_table(
        ("worker", "lanes", "blocks", "shards", "examples", "a step"),
        [[f"{number:,}" for number in share] for share in shares],
    )
    num_examples = plan.replica_batch_size // request.options.accumulate
    recompute = request.options.recompute
    estimate = estimate_memory(
        setup.bundle.model, setup.updater.optimizer, num_examples, setup.updater.kept, recompute=recompute
    )
    print_table(("memory of a replica", "size", "estimated by"), estimate.lines())


def _alone(request: Request) -> Request:
    """Returns the request of one worker, which needs no others."""
    return request._replace(options=msgspec.structs.replace(request.options, strategy="auto", replicas=None))


def _together(devices: Devices, replicas: int | None, num_workers: int) -> Devices:
    """Returns the devices of all workers, given those of one."""
    if num_workers == 1:
        return devices
    num_replicas = num_workers * devices.num_replicas
    if replicas not in (None, num_replicas):
        raise UsageError(
            f"{num_workers} workers have {num_replicas} devices, not {replicas}", next_step="Leave --replicas out"
        )
    return devices._replace(
        num_replicas=num_replicas, summary=f"{num_workers} workers of {devices.summary}", num_workers=num_workers
    )


def _shares(request: Request, plan: TrainPlan, buckets: SplitBuckets | None) -> tuple[WorkerShare, ...]:
    blocks = request.dataset.split_shards(request.splits.train).block_examples()
    if buckets is not None:
        return bucketed_shares(*blocks, buckets, plan, request.options.seed)
    return worker_shares(
        *blocks,
        global_batch_size=plan.global_batch_size,
        num_workers=plan.num_workers,
        seed=request.options.seed,
    )


def _checkpoints(setup: Setup) -> str:
    every = setup.request.options.checkpoint_every
    return "after each epoch" + (f" and every {format_number(every, 'step')}" if every is not None else "")
