"""Checks the address of a running Dask cluster before anything is read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from shardkit.clusters import addresses
from shardkit.errors import UsageError

_WHAT = "scheduler of Dask"
# Protocols that use a port. The port is checked for each; the program there is asked over the first only.
_PORTS = ("tcp", "tls", "ws", "wss")


def check_scheduler(named: str) -> None:
    """Checks that a scheduler answers, given its address or the file that holds it.

    Raises:
        UsageError: If the address is none.
        StorageError: If it does not answer.
    """
    addresses.refuse_storage_options()
    _check_address(address_of(named))


def address_of(named: str) -> str:
    """Returns the address of a scheduler, which may be named by the file that it wrote.

    Raises:
        UsageError: If that file cannot be read.
    """
    if not named.endswith(".json"):
        return named
    try:
        return str(json.loads(Path(named).read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "the scheduler file cannot be read",
            where=named,
            why=str(error),
            state=addresses.UNTOUCHED,
            next_step="Name the file that dask scheduler --scheduler-file wrote",
        ) from error


def _check_address(address: str) -> None:
    from distributed.comm.addressing import parse_address, parse_host_port
    from distributed.comm.registry import get_backend

    try:
        scheme, place = parse_address(address)
        get_backend(scheme)
        if scheme not in _PORTS:
            return
        host, port = parse_host_port(place)
    except ValueError as error:
        raise UsageError(
            f"{address!r} is no address of a {_WHAT}",
            why=str(error),
            state=addresses.UNTOUCHED,
            next_step="Write it like --engine-option address=tcp://HOST:8786",
        ) from error
    addresses.check_port(_WHAT, address, host, port)
    if scheme == _PORTS[0]:
        try:
            identity = asyncio.run(_identity(address))
        except Exception as error:  # Another service may answer anything.
            why = "the program there does not answer as one"
            raise addresses.no_answer(_WHAT, address, why) from error
        if identity.get("type") != "Scheduler":
            raise addresses.no_answer(_WHAT, address, f"the program there is a {identity.get('type')}")


async def _identity(address: str) -> dict[str, Any]:
    from distributed.core import connect

    async with asyncio.timeout(addresses.CONNECT_S):
        comm = await connect(address, timeout=addresses.CONNECT_S)
        try:
            await comm.write({"op": "identity", "reply": True})
            found = await comm.read()
        finally:
            comm.abort()
    return found if isinstance(found, dict) else {}
