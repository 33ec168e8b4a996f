"""Whether what an engine has to reach is there, asked before anything is read: Beam itself waits for it without end."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from apache_beam.options.pipeline_options import PortableOptions

from beam_pipelines.engines.beam_options import parsed_options
from beam_pipelines.engines.settings import RunnerName
from shardkit.errors import StorageError, UsageError

_CONNECT_S = 10.0
_DOCKER_S = 30.0
_ADDRESS = re.compile(r"([\w.-]+):(\d+)")
# Of Dask, for which a port is opened that anybody may ask whether it is there.
_DASK_PORTS = ("tcp", "tls", "ws", "wss")
_UNTOUCHED = "Nothing was read or written"


def check_reachable(runner: RunnerName, flags: Sequence[str]) -> None:
    """Checks that somebody listens where a job will ask, and that workers can be started as it says.

    Args:
        runner: The engine.
        flags: Of Beam, all that the job is made with.

    Raises:
        UsageError: If an address is none, or what must be installed is not.
        StorageError: If nobody answers there.
    """
    options = parsed_options(flags)
    told = options.get_all_options()
    if runner == "dask":
        # So it is stored.
        if told.get("address"):
            _check_dask(str(told["address"]))
        return
    portable = options.view_as(PortableOptions)
    for what, address in _addresses(portable).items():
        if (match := _ADDRESS.fullmatch(address)) is not None:
            _check_port(what, address, match[1], int(match[2]))
    if str(portable.environment_type).upper() == "DOCKER" and _starts_workers_here(runner, told):
        _check_docker()


def _addresses(told: PortableOptions) -> dict[str, str]:
    addresses = {"job service": str(told.job_endpoint)}
    if str(told.environment_type).upper() == "EXTERNAL":
        pool = told.environment_config or told.lookup_environment_option("external_service_address")
        if not pool:
            raise UsageError(
                "nobody said where the worker pool is", next_step="Add --engine-option environment-config=HOST:PORT"
            )
        # A job service elsewhere may see another network.
        if told.job_endpoint == "embed":
            addresses["worker pool"] = str(pool)
    return addresses


def _check_dask(address: str) -> None:
    from distributed.comm.addressing import parse_address, parse_host_port
    from distributed.comm.registry import get_backend

    try:
        scheme, place = parse_address(address)
        get_backend(scheme)
        if scheme not in _DASK_PORTS:
            return
        host, port = parse_host_port(place)
    except ValueError as error:
        raise UsageError(
            f"{address!r} is no address of a scheduler of Dask",
            why=str(error),
            state=_UNTOUCHED,
            next_step="Write it like --engine-option address=tcp://HOST:8786",
        ) from error
    _check_port("scheduler of Dask", address, host, port)


def _check_port(what: str, address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise StorageError(
            f"there is no {what}",
            where=address,
            why=getattr(error, "strerror", None) or str(error),
            state=_UNTOUCHED,
            next_step="Start it, or correct the address",
        ) from error


def _starts_workers_here(runner: RunnerName, told: dict[str, Any]) -> bool:
    if runner == "flink":
        return str(told.get("flink_master")) in ("[local]", "[auto]")
    if runner == "spark":
        return str(told.get("spark_master_url")).startswith("local")
    return runner == "prism" or told.get("job_endpoint") == "embed"


def _check_docker() -> None:
    if shutil.which("docker") is None:
        raise UsageError(
            "workers are to run in Docker, and there is none",
            why="no program docker is on the path",
            state=_UNTOUCHED,
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
        state=_UNTOUCHED,
        next_step="Start its daemon, or choose another --engine-option environment-type",
    )
