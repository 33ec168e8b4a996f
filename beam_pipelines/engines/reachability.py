"""Checks the addresses and programs of an engine before anything is read: Beam itself would wait for them for ever."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PortableOptions

from beam_pipelines.engines.beam_options import parsed_options
from shardkit.clusters import addresses
from shardkit.clusters.addresses import UNTOUCHED, check_port, no_answer, refuse_storage_options
from shardkit.errors import StorageError, UsageError

_DOCKER_S = 30.0
_ADDRESS = re.compile(r"([\w.-]+):(\d+)")


def check_reachable(flags: Sequence[str], starts_workers_here: Callable[[Mapping[str, Any]], bool]) -> None:
    """Checks that the addresses of a job answer, and that workers can be started as its flags say.

    Args:
        flags: Of Beam, all that the job is made with.
        starts_workers_here: Returns whether the engine starts workers on this machine, given the parsed flags.

    Raises:
        UsageError: If an address is none, or what must be installed is not.
        StorageError: If an address does not answer.
    """
    options = parsed_options(flags)
    portable = options.view_as(PortableOptions)
    kind = str(portable.environment_type).upper()
    if kind in ("EXTERNAL", "DOCKER", "PROCESS"):
        refuse_storage_options()
    is_here = starts_workers_here(options.get_all_options())
    for what, address in _addresses(portable, kind, is_here=is_here).items():
        _check_service(what, address)
    if kind == "PROCESS":
        _check_process(portable, is_here=is_here)
    if kind == "DOCKER" and is_here:
        _check_docker()


def _addresses(parsed: PortableOptions, kind: str, *, is_here: bool) -> dict[str, str]:
    is_ours = parsed.job_endpoint in (None, "", "embed")
    found = {} if is_ours else {"job service": str(parsed.job_endpoint)}
    if kind == "EXTERNAL":
        pool = parsed.environment_config or parsed.lookup_environment_option("external_service_address")
        if not pool:
            raise UsageError(
                "no option says where the worker pool is", next_step="Add --engine-option environment-config=HOST:PORT"
            )
        # A job service elsewhere may see another network.
        if is_here:
            found["worker pool"] = str(pool)
    return found


def _check_service(what: str, address: str) -> None:
    match = _ADDRESS.fullmatch(address)
    if match is None and ":" not in address:
        raise UsageError(f"{address!r} is no address of a {what}", state=UNTOUCHED, next_step="Write it like HOST:PORT")
    if match is not None:
        check_port(what, address, match[1], int(match[2]))
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=addresses.CONNECT_S)
        except grpc.FutureTimeoutError as error:
            raise no_answer(what, address, "it does not speak gRPC") from error


def _check_process(parsed: PortableOptions, *, is_here: bool) -> None:
    if parsed.job_endpoint == "embed":
        raise UsageError(
            "the job service in this process starts no workers as processes",
            state=UNTOUCHED,
            next_step="Leave --engine-option environment-type out, or name the --engine-option endpoint of another one",
        )
    command = parsed.lookup_environment_option("process_command")
    with suppress(ValueError, AttributeError):
        command = command or json.loads(parsed.environment_config or "").get("command")
    if not command:
        raise UsageError(
            "no option says which program workers run",
            state=UNTOUCHED,
            next_step="""Add --engine-option 'environment-config={"command": "/opt/apache/beam/boot"}'""",
        )
    if is_here and shutil.which(command) is None:
        raise UsageError(
            f"{command} is no program that workers could run",
            why="it is not there, or may not be run",
            state=UNTOUCHED,
            next_step="Correct the command in --engine-option environment-config",
        )


def _check_docker() -> None:
    if shutil.which("docker") is None:
        raise UsageError(
            "workers are to run in Docker, and there is none",
            why="no program docker is on the path",
            state=UNTOUCHED,
            next_step="Install it, or choose another --engine-option environment-type",
        )
    why = f"it has not answered for {_DOCKER_S:.0f} seconds"
    with suppress(subprocess.TimeoutExpired):
        asked = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=_DOCKER_S, check=False)
        if asked.returncode == 0:
            return
        why = asked.stderr.strip().rpartition("\n")[2]
    raise StorageError(
        "workers are to run in Docker, which does not answer",
        why=why,
        state=UNTOUCHED,
        next_step="Start its daemon, or choose another --engine-option environment-type",
    )
