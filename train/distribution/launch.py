"""From the options to the processes of a run: whether there is a supervisor, and what it keeps running. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from shardkit.errors import UsageError
from train.distribution.cluster import Placement, place
from train.distribution.heartbeat import START_LIMIT_S
from train.distribution.supervisor import Orders
from train.options.config import TrainOptions
from train.options.strategy_checks import check_async, check_sync_every

DEFAULT_MAX_RESTARTS = 3
LOGS = "workers"

_ONE_PROCESS = ("single", "mirrored")
# Options that may differ between the hosts of one run.
_OF_ONE_HOST = frozenset(
    {
        "dataset", "version", "output", "hosts", "host_index", "workers_per_host", "max_restarts", "elastic",
        "rendezvous_timeout_s", "resume", "command", "export", "profile_steps",
    }
)  # fmt: skip


def plan_launch(options: TrainOptions, command: Sequence[str], environment: Mapping[str, str]) -> Orders | None:
    """Returns the orders for a supervisor, None for a run of this process alone.

    Raises:
        UsageError: If options contradict each other or the environment.
    """
    placement = _place(options, environment)
    if options.elastic and not placement.num_servers and (placement.num_workers == 1 or not placement.is_local):
        raise UsageError(
            "--elastic needs several workers on one host",
            why="there is one worker" if placement.num_workers == 1 else "several hosts cannot agree on fewer workers",
            next_step="Use --workers-per-host without other hosts, or leave --elastic out",
        )
    if options.elastic and options.replicas is not None:
        raise UsageError(
            "--elastic and --replicas do not go together",
            why="fewer workers have fewer devices",
            next_step="Leave --replicas out",
        )
    check_sync_every(options, placement.num_workers)
    check_async(options, placement.num_servers)
    if placement.num_workers == 1 and not options.max_restarts:
        return None
    return Orders(
        command=tuple(command),
        placement=placement,
        logs=Path(options.output) / LOGS,
        max_restarts=DEFAULT_MAX_RESTARTS if options.max_restarts is None else options.max_restarts,
        is_elastic=options.elastic,
        start_limit_s=START_LIMIT_S + options.rendezvous_timeout_s,
    )


def with_version(command: Sequence[str], version: int) -> tuple[str, ...]:
    """Returns the command of a worker that reads this version of the dataset, whatever is appended meanwhile."""
    position = command.index("train") + 1
    return (*command[:position], "--version", str(version), *command[position:])


def run_identity(options: TrainOptions, fingerprint: str) -> dict[str, str]:
    """Returns the values that all workers of a run must have in common, by the names that a user knows.

    Args:
        options: As typed.
        fingerprint: Of the dataset; its path may differ from host to host.
    """
    typed = msgspec.to_builtins(options)
    same = {
        f"--{n.replace('_', '-')}": msgspec.json.encode(v).decode() for n, v in typed.items() if n not in _OF_ONE_HOST
    }
    return same | {"dataset": fingerprint}


def _place(options: TrainOptions, environment: Mapping[str, str]) -> Placement:
    is_one_process = options.strategy in _ONE_PROCESS
    if is_one_process and (options.hosts is not None or (options.workers_per_host or 1) > 1):
        raise UsageError(
            f"--strategy {options.strategy} is one process",
            why="--hosts was given" if options.hosts is not None else "--workers-per-host was given",
            next_step="Leave one of them out",
        )
    return place(
        hosts=options.hosts,
        host_index=options.host_index,
        workers_per_host=options.workers_per_host,
        environment={} if is_one_process else environment,
        num_servers=(options.parameter_servers or 1) if options.strategy == "parameter-server" else 0,
    )
