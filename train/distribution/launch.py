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
        "rendezvous_timeout_s", "resume", "command", "export", "profile_steps", "launcher", "workers",
        "launcher_options",
    }
)  # fmt: skip


def plan_launch(options: TrainOptions, command: Sequence[str], environment: Mapping[str, str]) -> Orders | None:
    """Returns the orders for a supervisor, None for a run of this process alone.

    Raises:
        UsageError: If options contradict each other or the environment.
    """
    _check_launcher(options)
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
    if placement.num_workers == 1 and not options.max_restarts and options.launcher is None:
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


def _check_launcher(options: TrainOptions) -> None:
    if options.launcher is None:
        if options.workers is not None or options.launcher_options:
            flag = "--launcher-option" if options.workers is None else "--workers"
            raise UsageError(
                f"{flag} is of use with --launcher only",
                next_step="Name a cluster with --launcher, or use --workers-per-host on this host",
            )
        return
    if options.workers is None:
        raise UsageError(f"--launcher {options.launcher} needs --workers", next_step="Say how many it is to start")
    others = {
        "--hosts": options.hosts is not None,
        "--host-index": options.host_index is not None,
        "--workers-per-host": options.workers_per_host is not None,
        "--strategy parameter-server": options.strategy == "parameter-server",
    }
    if (other := next((flag for flag, is_given in others.items() if is_given), None)) is not None:
        raise UsageError(f"--launcher and {other} do not go together", next_step="Leave one of them out")
    keys = [key for key, _ in options.launcher_options]
    if (twice := next((key for key in keys if keys.count(key) > 1), None)) is not None:
        raise UsageError(f"--launcher-option {twice} is given twice", next_step="Leave one of them out")


def _place(options: TrainOptions, environment: Mapping[str, str]) -> Placement:
    is_one_process = options.strategy in _ONE_PROCESS
    several = {
        "--hosts": options.hosts is not None,
        "--workers-per-host": (options.workers_per_host or 1) > 1,
        "--workers": (options.workers or 1) > 1,
    }
    if is_one_process and any(several.values()):
        raise UsageError(
            f"--strategy {options.strategy} is one process",
            why=f"{next(flag for flag, is_given in several.items() if is_given)} was given",
            next_step="Leave one of them out",
        )
    if options.workers is not None:
        return Placement(first=0, count=options.workers)
    return place(
        hosts=options.hosts,
        host_index=options.host_index,
        workers_per_host=options.workers_per_host,
        environment={} if is_one_process else environment,
        num_servers=(options.parameter_servers or 1) if options.strategy == "parameter-server" else 0,
    )
