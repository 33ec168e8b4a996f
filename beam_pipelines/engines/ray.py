"""The engine Ray: a cluster of this machine that ends with the conversion, or a running one."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
from shardkit.clusters.addresses import CONVERSION
from shardkit.clusters.ray import PACKAGES, begin, check_head, find_obstacle, own_cluster, short_folder
from shardkit.conversion.shards.chunks import UnitKey
from shardkit.conversion.steps import Step, call_step
from shardkit.errors import UsageError
from shardkit.units import MiB

_TRIES = 4
# What Ray needs for itself, where no records go through it.
_STORE_BYTES = 128 * MiB


def _needs(options: EngineOptions, facts: Facts) -> UsageError | None:
    return find_obstacle(dict(options.values).get("address"), CONVERSION)


class Ray(NativeEngine):
    """Ray 2."""

    packages = PACKAGES
    lost = r"(WorkerCrashedError|NodeDiedError|OutOfMemoryError|ObjectLostError|ObjectReconstruction\w+)[^\n]*"
    spec = EngineSpec(
        title="Ray 2: a cluster of this machine, or a running one",
        text=(
            "Without an address, a cluster of --workers processes is started here, without a dashboard, and ended with "
            "the conversion. A running cluster is named by the address of its head node, and the command runs on one "
            "of its nodes, as programs of Ray do; shardkit must be installed on all of them. A task whose process or "
            "node dies is done again by Ray, four times at most.",
            SHARED,
            "Ray keeps the records in its object store meanwhile, 30 % of the memory, and moves what does not fit to "
            "its disk. Every part of the inputs gives an object to every unit of shards: use another engine where "
            "their product is over 100,000.",
        ),
        settings=(
            Setting("address", "of the head node of a running cluster, such as 10.0.0.5:6379; auto finds the one that "
                    "this machine belongs to", None, no_value, "a new cluster on this machine"),
            STALL,
        ),
        needs=_needs,
        extra="ray",
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner ray --workers 4",
            "shardkit convert 'raw/*.csv' /mnt/shared/flights --runner ray --engine-option address=10.0.0.5:6379",
        ),
    )  # fmt: skip

    def check_address(self, chosen: Sequence[Chosen]) -> None:
        """Checks that the head node of a running cluster answers."""
        check_head(value_of(chosen, "address"), CONVERSION)

    @contextlib.contextmanager
    def session(self, work: Work) -> Iterator[Session]:
        import ray

        address = value_of(work.chosen, "address")
        folder = Path(tempfile.mkdtemp(prefix="shardkit-ray-", dir=short_folder())) if address is None else None
        try:
            _begin(work, address, folder)
            tasks = _Tasks(work.plan_path)
            yield Session(tasks.each, tasks.shuffled, tasks.cancel, folder)
        finally:
            with contextlib.suppress(Exception):
                ray.shutdown()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


class _Tasks:
    """The verbs, which note what was asked for and is not done."""

    def __init__(self, plan_path: str) -> None:
        self._plan_path = plan_path
        self._asked: list[Any] = []

    def each(self, step: Step, items: Sequence[Any]) -> list[Any]:
        call = _task(call_step)
        return self._got([call.remote(self._plan_path, step, item) for item in items])

    def shuffled(self, cut: Step, write: Step, items: Sequence[Any], keys: Sequence[UnitKey]) -> list[Any]:
        import ray

        cut_part, write_key = _task(_cut, num_returns=len(keys)), _task(_write)
        parts = [cut_part.remote(partial(call_step, self._plan_path, cut), keys, item) for item in items]
        by_key = list(zip(*parts, strict=True)) if len(keys) > 1 else [tuple(parts)]
        self._asked = [ref for refs in by_key for ref in refs]
        # The tasks below take no processor before there is something to do.
        ray.wait(self._asked, num_returns=len(self._asked), fetch_local=False)
        # Records are given up as soon as their shards are written.
        self._asked.clear()
        parts.clear()
        calls = (partial(call_step, self._plan_path, write) for _ in keys)
        return self._got([write_key.remote(*args) for args in zip(calls, keys, _popped(by_key), strict=True)])

    def cancel(self) -> None:
        import ray

        for ref in self._asked:
            ray.cancel(ref, force=True)

    def _got(self, refs: list[Any]) -> list[Any]:
        import ray

        self._asked = refs
        return list(ray.get(refs))


def _popped(by_key: list[Any]) -> Iterator[list[Any]]:
    by_key.reverse()
    while by_key:
        yield list(by_key.pop())


def _task(function: Callable[..., Any], **options: Any) -> Any:
    import ray

    return ray.remote(max_retries=_TRIES - 1, **options)(function)


def _cut(cut: Callable[[Any], Any], keys: Sequence[UnitKey], item: Any) -> Any:
    found: dict[UnitKey, list[bytes]] = {key: [] for key in keys}
    for key, chunk in cut(item):
        found[key].append(chunk)
    lists = list(found.values())
    return lists if len(lists) > 1 else lists[0]


def _write(write: Callable[[Any], Any], key: UnitKey, refs: Sequence[Any]) -> Any:
    import ray

    # One after the other: this process holds the records of one part of the inputs at a time.
    return write((key, (chunk for ref in refs for chunk in ray.get(ref))))


def _begin(work: Work, address: str | None, folder: Path | None) -> None:
    files = work.plan.work_path("tmp")
    settings: dict[str, Any] = {"address": address}
    if folder is not None:
        settings = own_cluster(work.num_workers, folder) | {
            "object_store_memory": _STORE_BYTES if work.plan.exchange is None else None,
            "object_spilling_directory": str(files),
        }
    begin(settings, files, CONVERSION)
