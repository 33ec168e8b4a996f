"""Checks the addresses and programs of an engine before anything is read: Beam itself would wait for them for ever."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PortableOptions

from beam_pipelines.engines.beam_options import parsed_options
from shardkit.conversion.request import RunnerName
from shardkit.errors import StorageError, UsageError
from shardkit.storage.options import VARIABLE

_CONNECT_S = 10.0
_DOCKER_S = 30.0
_ADDRESS = re.compile(r"([\w.-]+):(\d+)")
# Protocols of Dask that use a port. The port is checked for each; the program there is asked over the first only.
_DASK_PORTS = ("tcp", "tls", "ws", "wss")
_UNTOUCHED = "Nothing was read or written"


def check_reachable(runner: RunnerName, flags: Sequence[str]) -> None:
    """Checks that the addresses of a job answer, and that workers can be started as its flags say.

    Args:
        runner: The engine.
        flags: Of Beam, all that the job is made with.

    Raises:
        UsageError: If an address is none, or what must be installed is not.
        StorageError: If an address does not answer.
    """
    options = parsed_options(flags)
    parsed = options.get_all_options()
    if runner == "dask":
        address = parsed.get("address") or _address_in(parsed.get("scheduler_file"))
        if address is not None:
            _refuse_storage_options()
            _check_dask(str(address))
        return
    portable = options.view_as(PortableOptions)
    kind = str(portable.environment_type).upper()
    if kind in ("EXTERNAL", "DOCKER", "PROCESS"):
        _refuse_storage_options()
    for what, address in _addresses(portable, kind).items():
        _check_service(what, address)
    if kind == "PROCESS":
        _check_process(portable)
    if kind == "DOCKER" and _starts_workers_here(runner, parsed):
        _check_docker()


def _refuse_storage_options() -> None:
    if os.environ.get(VARIABLE):
        raise UsageError(
            "--storage-options do not reach workers that others start",
            why="they stay with this command and what it starts itself",
            state=_UNTOUCHED,
            next_step="Leave it out, and let the environment or profile of the workers say what the option does",
        )


def _addresses(parsed: PortableOptions, kind: str) -> dict[str, str]:
    is_ours = parsed.job_endpoint in (None, "", "embed")
    addresses = {} if is_ours else {"job service": str(parsed.job_endpoint)}
    if kind == "EXTERNAL":
        pool = parsed.environment_config or parsed.lookup_environment_option("external_service_address")
        if not pool:
            raise UsageError(
                "no option says where the worker pool is", next_step="Add --engine-option environment-config=HOST:PORT"
            )
        # A job service elsewhere may see another network.
        if parsed.job_endpoint == "embed":
            addresses["worker pool"] = str(pool)
    return addresses


def _check_service(what: str, address: str) -> None:
    match = _ADDRESS.fullmatch(address)
    if match is None and ":" not in address:
        raise UsageError(
            f"{address!r} is no address of a {what}", state=_UNTOUCHED, next_step="Write it like HOST:PORT"
        )
    if match is not None:
        _check_port(what, address, match[1], int(match[2]))
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_S)
        except grpc.FutureTimeoutError as error:
            raise _no_answer(what, address, "it does not speak gRPC") from error


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
    if scheme == _DASK_PORTS[0]:
        try:
            identity = asyncio.run(_identity(address))
        except Exception as error:  # Another service may answer anything.
            raise _no_answer("scheduler of Dask", address, "the program there does not answer as one") from error
        if identity.get("type") != "Scheduler":
            raise _no_answer("scheduler of Dask", address, f"the program there is a {identity.get('type')}")


async def _identity(address: str) -> dict[str, Any]:
    from distributed.core import connect

    async with asyncio.timeout(_CONNECT_S):
        comm = await connect(address, timeout=_CONNECT_S)
        try:
            await comm.write({"op": "identity", "reply": True})
            found = await comm.read()
        finally:
            comm.abort()
    return found if isinstance(found, dict) else {}


def _address_in(scheduler_file: Any) -> str | None:
    if scheduler_file is None:
        return None
    try:
        return str(json.loads(Path(str(scheduler_file)).read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "the scheduler file cannot be read",
            where=str(scheduler_file),
            why=str(error),
            state=_UNTOUCHED,
            next_step="Name the file that dask scheduler --scheduler-file wrote",
        ) from error


def _check_port(what: str, address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_answer(what, address, getattr(error, "strerror", None) or str(error)) from error


def _no_answer(what: str, address: str, why: str) -> StorageError:
    return StorageError(
        f"there is no {what}",
        where=address,
        why=why,
        state=_UNTOUCHED,
        next_step="Start it, or correct the address",
    )


def _check_process(parsed: PortableOptions) -> None:
    if parsed.job_endpoint == "embed":
        raise UsageError(
            "the job service in this process starts no workers as processes",
            state=_UNTOUCHED,
            next_step="Leave --engine-option environment-type out, or name the --engine-option endpoint of another one",
        )
    command = parsed.lookup_environment_option("process_command")
    with suppress(ValueError, AttributeError):
        command = command or json.loads(parsed.environment_config or "").get("command")
    if not command:
        raise UsageError(
            "no option says which program workers run",
            state=_UNTOUCHED,
            next_step="""Add --engine-option 'environment-config={"command": "/opt/apache/beam/boot"}'""",
        )


def _starts_workers_here(runner: RunnerName, parsed: dict[str, Any]) -> bool:
    if runner == "flink":
        return str(parsed.get("flink_master")) in ("[local]", "[auto]")
    if runner == "spark":
        return str(parsed.get("spark_master_url")).startswith("local")
    return runner == "prism" or parsed.get("job_endpoint") == "embed"


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
