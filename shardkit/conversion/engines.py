"""The engines that run conversions, one entry each.

The entry of an engine decides which class runs a conversion, which options of the command it has, and which limits a
forecast holds it to. This module loads no engine and no library, because the help needs it.
"""

from __future__ import annotations

from typing import NamedTuple

from shardkit.units import GiB

WORKER_MEMORY_BYTES = 4 * GiB


class Limit(NamedTuple):
    """A figure that may not be passed, and where it is."""

    value: int
    source: str


class EngineFacts(NamedTuple):
    """One engine.

    Attributes:
        runs: Module and name of the class that runs a conversion: an `Engine` of `beam_pipelines/engines/engine.py`.
        key: Most bytes of one key.
        has_options: Whether it takes `--engine-option` and flags of Beam.
        own_options: Options of `convert`, without their dashes, that have a meaning for this engine alone.
        is_one_machine: Whether all workers share the memory and the disk of the machine that the command runs on.
        worker_memory_bytes: Of a worker unless more is asked for, where it is not that machine's.
        carries_bytes: Whether records always go through its shuffle, in chunks; otherwise they are in spool files that
            all workers see, unless the work folder is in a store.
        memory_factor: Bytes of the engine's memory for a byte that is shuffled, where everything stays in memory.
        holds_key: Whether all of a key must fit into a worker's memory.
        request: Most bytes of the pipeline as it is submitted; None where nothing is submitted.
        workers: Most workers; None where there is no such limit.
        disk: What a worker has unless more is asked for; None where that is not the engine's to say.
        reaches_machine: Whether its workers can see a folder of the machine that the command runs on, or one that all
            of them share.
        has_program: Whether `shardkit engines install` gets a program that it needs.
        processes, threads: Of each worker, and of each of its processes: so many pieces of work at the same time, where
            a worker is a machine and the conversion says what it does.
    """

    runs: str
    key: Limit
    has_options: bool = True
    own_options: tuple[str, ...] = ()
    is_one_machine: bool = False
    worker_memory_bytes: int = WORKER_MEMORY_BYTES
    carries_bytes: bool = False
    memory_factor: float = 0.0
    holds_key: bool = True
    request: Limit | None = None
    workers: Limit | None = None
    disk: Limit | None = None
    reaches_machine: bool = True
    has_program: bool = False
    processes: int = 1
    threads: int = 1


_FN_API = Limit(2**31 - 100, "Beam 2.77, data_plane.py: a buffer of the Fn API is smaller than 2 GiB")
# Measured with 1 GiB: 4.1 GiB in one process, 6.9 with several.
_FN_API_FACTOR = 6.9
# Measured with 188 MiB of records: Prism 3.3 GiB and the command 1.6; the embedded job service 2.2.
_PRISM_FACTOR, _JOB_SERVICE_FACTOR = 24.0, 12.0

ENGINES: dict[str, EngineFacts] = {
    "local": EngineFacts(
        "beam_pipelines.engines.local:Local",
        Limit(2**62, "shardkit: the local engine hands lists over as they are"),
        has_options=False,
        is_one_machine=True,
        memory_factor=1.0,
    ),
    "beam": EngineFacts("beam_pipelines.engines.portable:OneProcess", _FN_API, memory_factor=_FN_API_FACTOR),
    "dask": EngineFacts(
        "beam_pipelines.engines.dask:Dask",
        Limit(2**62, "shardkit: a task of Dask takes the records of its key as pieces, one a part of the inputs"),
    ),
    "flink": EngineFacts(
        "beam_pipelines.engines.portable:Flink",
        _FN_API._replace(source="apache/beam#18848: Flink holds all values of a key in memory, as one"),
    ),
    "spark": EngineFacts(
        "beam_pipelines.engines.spark:Spark",
        Limit(2**62, "shardkit: a task of Spark streams the records of its key from files"),
        holds_key=False,
    ),
    "ray": EngineFacts(
        "beam_pipelines.engines.ray:Ray",
        Limit(2**62, "shardkit: a task of Ray takes the records of its key part by part"),
        holds_key=False,
    ),
    "prism": EngineFacts(
        "beam_pipelines.engines.prism:Prism",
        _FN_API,
        is_one_machine=True,
        memory_factor=_PRISM_FACTOR,
        has_program=True,
    ),
    "portable": EngineFacts("beam_pipelines.engines.portable:Portable", _FN_API, memory_factor=_JOB_SERVICE_FACTOR),
    "dataflow": EngineFacts(
        "beam_pipelines.engines.dataflow.engine:Dataflow",
        Limit(2 * 10**9, "Dataflow quotas: a single element is at most 2 GB"),
        own_options=("project", "region", "temp-location"),
        # The defaults of convert: n2-standard-4 with a process a processor, of two threads.
        worker_memory_bytes=16 * GiB,
        processes=4,
        threads=2,
        carries_bytes=True,
        holds_key=False,
        request=Limit(20 * 10**6, "Dataflow quotas: the request that makes a job is at most 20 MB"),
        workers=Limit(4000, "Dataflow quotas: 4,000 workers a job with the shuffle service, 2,000 without"),
        disk=Limit(100 * 10**9, "shardkit: a worker of Dataflow gets 100 GB unless --engine-option disk-gb says more"),
        reaches_machine=False,
    ),
}
