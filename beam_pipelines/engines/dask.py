"""The engine Dask: a cluster of this machine that ends with the conversion, or a running one."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from beam_pipelines.engines.dask_cluster import dask_cluster
from beam_pipelines.engines.native import NativeEngine, Session, Work
from beam_pipelines.engines.settings import (
    SHARED,
    STALL,
    Chosen,
    EngineOptions,
    EngineSpec,
    Facts,
    Setting,
    no_value,
    value_of,
)
from beam_pipelines.engines.watch import KEPT, cancel_soon
from shardkit.clusters import addresses
from shardkit.clusters.addresses import CONNECT_S
from shardkit.conversion.shards.chunks import UnitKey
from shardkit.conversion.steps import Step, call_step, close_plan
from shardkit.errors import StorageError, UsageError

_SCHEDULER = "scheduler of Dask"
# Protocols that use a port. The port is checked for each; the program there is asked over the first only.
_PROTOCOLS = ("tcp", "tls", "ws", "wss")

# Each piece is one task, which takes the scheduler 1 ms and 7 KB.
_MAX_PIECES = 100_000
_CLOSE_S = 5.0


def _needs_nothing(options: EngineOptions, facts: Facts) -> UsageError | None:
    return None


class Dask(NativeEngine):
    """A Dask cluster."""

    packages = ("distributed",)
    lost = r"(?<=KilledWorker: )[^\n]*"
    spec = EngineSpec(
        title="Dask: a cluster of this machine, or a running one",
        text=(
            "Without an address, processes are started here, one for each of --workers, and ended with the conversion. "
            "A running cluster is named by the address of its scheduler; shardkit must be installed where its workers "
            "run. A worker that dies is replaced, and its work is done again, four times at most.",
            "Under Python 3.11 Dask's profiler locks a worker now and then; it is off in processes that are started "
            "here. Start the workers of another cluster with DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False.",
            SHARED,
            "Workers of Dask hold the records in memory meanwhile, and move to their disks what is over 60 % of it. "
            f"Every part of the inputs gives a piece to every unit of shards: there may be {_MAX_PIECES:,} pieces.",
        ),
        settings=(
            Setting("address", "of the scheduler of a running cluster, such as tcp://10.0.0.5:8786, or the file that "
                    "its --scheduler-file names", None, no_value, "a new cluster on this machine"),
            STALL,
        ),
        needs=_needs_nothing,
        extra="dask",
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner dask --workers 4",
            "shardkit convert 'raw/*.csv' /mnt/shared/flights --runner dask --engine-option "
            "address=tcp://10.0.0.5:8786",
        ),
    )  # fmt: skip

    def check_address(self, chosen: Sequence[Chosen]) -> None:
        """Checks that the scheduler of a running cluster answers."""
        if (address := value_of(chosen, "address")) is not None:
            check_scheduler(address)

    @contextmanager
    def session(self, work: Work) -> Iterator[Session]:
        named = value_of(work.chosen, "address")
        with ExitStack() as stack:
            if named is None:
                address = stack.enter_context(dask_cluster(work.num_workers, work.plan.work_path("tmp")))
            else:
                address = address_of(named)
            tasks = _Tasks(_new_client(address), work.plan_path)
            stack.callback(cancel_soon, tasks.cancel)
            yield Session(tasks.each, tasks.shuffled, tasks.cancel)


class _Tasks:
    """The verbs, which note what was asked for and is not done."""

    def __init__(self, client: Any, plan_path: str) -> None:
        self._client = client
        self._plan_path = plan_path
        self._asked: list[Any] = []

    def each(self, step: Step, items: Sequence[Any]) -> list[Any]:
        return self._got(self._map(self._call(step), items, step.__name__))

    def shuffled(self, cut: Step, write: Step, items: Sequence[Any], keys: Sequence[UnitKey]) -> list[Any]:
        _check_pieces(len(items), len(keys))
        self._asked = parts = self._map(partial(_cut, self._call(cut)), items, cut.__name__)
        # A part is taken apart as soon as it is there, and given up; its pieces are when their shards are written.
        pieces = [self._map(partial(_piece, key), parts, "piece", priority=1) for key in keys]
        write_key = partial(_write, self._call(write))
        shards = [
            self._client.submit(write_key, key, own, key=f"{write.__name__}-{key}-{id(self)}", priority=2)
            for key, own in zip(keys, pieces, strict=True)
        ]
        self._asked = []
        del parts, pieces
        return self._got(shards)

    def cancel(self) -> None:
        """Gives up what was asked for, and lets workers, which may live on, remove what they keep of the plan."""
        self._client.cancel(self._asked)
        self._client.run(close_plan, self._plan_path, on_error="ignore")
        self._client.close(_CLOSE_S)

    def _call(self, step: Step) -> Callable[[Any], Any]:
        return partial(call_step, self._plan_path, step)

    def _map(self, function: Callable[[Any], Any], items: Sequence[Any], name: str, **options: Any) -> list[Any]:
        return list(self._client.map(function, items, key=name, pure=False, **options)) if items else []

    def _got(self, futures: list[Any]) -> list[Any]:
        self._asked = futures
        return list(self._client.gather(futures))


def _cut(cut: Callable[[Any], Any], item: Any) -> dict[UnitKey, list[bytes]]:
    found: dict[UnitKey, list[bytes]] = {}
    for key, chunk in cut(item):
        found.setdefault(key, []).append(chunk)
    return found


def _piece(key: UnitKey, found: dict[UnitKey, list[bytes]]) -> list[bytes]:
    return found.get(key, [])


def _write(write: Callable[[Any], Any], key: UnitKey, pieces: list[list[bytes]]) -> Any:
    return write((key, (chunk for piece in pieces for chunk in piece)))


def _check_pieces(num_parts: int, num_keys: int) -> None:
    if num_parts * num_keys > _MAX_PIECES:
        raise UsageError(
            "these are too many records for Dask without a shared disk",
            why=f"{num_parts:,} parts of the inputs times {num_keys:,} units of shards are over {_MAX_PIECES:,} pieces",
            state=KEPT,
            next_step="Run the same command with --runner spark, or with a --work-dir that all workers share",
        )


def _new_client(address: str) -> Any:
    from distributed import Client

    with warnings.catch_warnings():
        # Of other versions of any package; workers with other versions that decide on bytes are refused.
        warnings.simplefilter("ignore")
        try:
            return Client(address, timeout=CONNECT_S, set_as_default=False)
        except Exception as error:
            raise StorageError(
                "Dask takes no work",
                where=address,
                why=" ".join(str(error).split())[:500] or type(error).__name__,
                state=KEPT,
                next_step="With --debug it shows everything",
            ) from error


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
        if scheme not in _PROTOCOLS:
            return
        host, port = parse_host_port(place)
    except ValueError as error:
        raise UsageError(
            f"{address!r} is no address of a {_SCHEDULER}",
            why=str(error),
            state=addresses.UNTOUCHED,
            next_step="Write it like --engine-option address=tcp://HOST:8786",
        ) from error
    addresses.check_port(_SCHEDULER, address, host, port)
    if scheme == _PROTOCOLS[0]:
        try:
            identity = asyncio.run(_identity(address))
        except Exception as error:  # Another service may answer anything.
            why = "the program there does not answer as one"
            raise addresses.no_answer(_SCHEDULER, address, why) from error
        if identity.get("type") != "Scheduler":
            raise addresses.no_answer(_SCHEDULER, address, f"the program there is a {identity.get('type')}")


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
