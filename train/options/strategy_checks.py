"""Which options go with local SGD and with parameter servers, and when workers that step on their own average. Pure."""

from __future__ import annotations

import msgspec

from shardkit.errors import UsageError
from train.options.config import TrainOptions


def num_syncs(steps_per_epoch: int, every: int) -> int:
    """Returns how often an epoch averages: never more than once in `every` steps, but for an epoch that is shorter."""
    return max(1, steps_per_epoch // every)


def is_sync_due(step: int, steps_per_epoch: int, every: int) -> bool:
    """Returns whether the workers average after a step.

    They do at the end of each epoch, and evenly spread before it. Where `every` does not divide an epoch, its steps are
    spread over as many syncs as fit, so there are a few steps more between two.

    Args:
        step: Steps of the run that are done, from 1.
        every: At least so many steps are between two syncs of an epoch that has as many.
    """
    done = (step - 1) % steps_per_epoch + 1
    count = num_syncs(steps_per_epoch, every)
    return done * count // steps_per_epoch > (done - 1) * count // steps_per_epoch


def check_sync_every(options: TrainOptions, num_workers: int) -> None:
    """Checks that options go with averaging now and then, if that is wanted. Raises UsageError if they do not."""
    if options.sync_every is None:
        return
    if num_workers == 1:
        raise UsageError(
            "--sync-every needs several workers",
            why="there is one, and no other worker to average with",
            next_step="Start several with --workers-per-host or --hosts, or leave --sync-every out",
        )
    if options.prune is not None:
        raise UsageError(
            "--sync-every and --prune do not go together",
            why="each worker would prune other weights, and their average would have few zeros",
            next_step="Leave one of them out",
        )
    if options.reduce_in != "float32":
        raise UsageError(
            f"--sync-every and --reduce-in {options.reduce_in} do not go together",
            why="weights are averaged instead of gradients, and would lose their last digits each time",
            next_step="Leave --reduce-in out",
        )


def check_one_replica(num_replicas: int, num_workers: int) -> None:
    """Checks that every worker has one replica. Raises UsageError if they have several."""
    if num_replicas != num_workers:
        raise UsageError(
            "--sync-every needs workers of one device each",
            why=f"{num_workers} workers have {num_replicas} devices",
            next_step="Start one worker a GPU, each with its own CUDA_VISIBLE_DEVICES",
        )


def can_sync(options: TrainOptions, num_replicas: int, num_workers: int) -> bool:
    """Returns whether a run whose workers add up gradients could do with averages instead."""
    if options.sync_every is not None or num_replicas != num_workers:
        return False
    try:
        check_sync_every(msgspec.structs.replace(options, sync_every=1), num_workers)
    except UsageError:
        return False
    return True


def check_async(options: TrainOptions, num_servers: int) -> None:
    """Checks that options go with parameter servers, or with none, or raises `UsageError`."""
    if not num_servers:
        if options.strategy == "parameter-server":
            raise UsageError(
                "TF_CONFIG names no parameter servers",
                why="--strategy parameter-server was given",
                next_step="Give its cluster the jobs chief, ps and worker, or unset it",
            )
        if options.parameter_servers is not None:
            raise UsageError(
                "--parameter-servers is for --strategy parameter-server", next_step="Add that, or leave it out"
            )
        return
    if options.strategy not in ("auto", "parameter-server"):
        raise UsageError(
            f"--strategy {options.strategy} has no parameter servers",
            why="TF_CONFIG names some",
            next_step="Use --strategy parameter-server",
        )
    for option, why in _excluded(options).items():
        raise UsageError(
            f"{option} does not go with parameter servers", why=why, next_step="Leave it out, or use another --strategy"
        )


def _excluded(options: TrainOptions) -> dict[str, str]:
    """Returns the options that were given and have no meaning there, with the reason."""
    reasons = {
        "--elastic": (options.elastic, "the others go on without a worker that is lost anyway"),
        "--sync-every": (options.sync_every is not None, "workers never wait for each other"),
        "--replicas": (options.replicas is not None, "each worker has one device"),
        "--reduce-in": (options.reduce_in != "float32", "gradients are not added up over replicas"),
        "--memory-limit": (options.memory_limit is not None, "the servers of TensorFlow take no limit in MiB"),
        "--xla": (options.xla, "it compiles no step whose variables lie on other devices"),
        "--profile-steps": (options.profile_steps is not None, "the process that could record them computes none"),
    }
    return {option: why for option, (is_given, why) in reasons.items() if is_given}
