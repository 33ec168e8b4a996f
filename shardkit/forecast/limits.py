"""Limits of engines, of stores and of the format, each with its source."""

from __future__ import annotations

from typing import NamedTuple, get_args

from shardkit.conversion.layout_math import MAX_SHARDS
from shardkit.conversion.request import RunnerName
from shardkit.units import GiB, MiB, TiB

ENGINES: tuple[RunnerName, ...] = get_args(RunnerName)


class Limit(NamedTuple):
    """A figure that may not be passed, and where it stands."""

    value: int
    source: str


class Engine(NamedTuple):
    """What an engine can and cannot.

    Attributes:
        key: Most bytes of one key.
        carries_bytes: Whether records always go through its shuffle, in chunks; otherwise they lie in spool files that
            all workers see, unless the work folder is in a store.
        memory_factor: Bytes of the engine's memory for a byte that is shuffled, where everything stays in memory.
        holds_key: Whether all of a key must fit into a worker's memory.
        request: Most bytes of the pipeline as it is submitted; None where nothing is submitted.
        workers: Most workers; None where there is no such limit.
        disk: What a worker has unless more is asked for; None where that is not the engine's to say.
        reaches_machine: Whether its workers can see a folder of the machine that the command runs on, or one that all
            of them share.
        processes, threads: Of each worker, and of each of its processes: so many pieces of work at the same time, where
            a worker is a machine and the conversion says what it does.
    """

    key: Limit
    carries_bytes: bool = False
    memory_factor: float = 0.0
    holds_key: bool = True
    request: Limit | None = None
    workers: Limit | None = None
    disk: Limit | None = None
    reaches_machine: bool = True
    processes: int = 1
    threads: int = 1


_FN_API = Limit(2**31 - 100, "Beam 2.77, data_plane.py: a buffer of the Fn API is smaller than 2 GiB")
# Measured with 1 GiB: 4.1 GiB in one process, 6.9 with several.
_FN_API_FACTOR = 6.9

ENGINE: dict[RunnerName, Engine] = {
    "local": Engine(memory_factor=1.0, key=Limit(2**62, "shardkit: the local engine hands lists over as they are")),
    "beam": Engine(memory_factor=_FN_API_FACTOR, key=_FN_API),
    "prism": Engine(memory_factor=_FN_API_FACTOR, key=_FN_API),
    "dask": Engine(key=_FN_API),
    "portable": Engine(key=_FN_API),
    "flink": Engine(
        key=_FN_API._replace(source="apache/beam#18848: Flink holds all values of a key in memory, as one")
    ),
    "spark": Engine(key=_FN_API._replace(source="Beam's Spark runner holds all values of a key in memory, as one")),
    "dataflow": Engine(
        key=Limit(2 * 10**9, "Dataflow quotas: a single element is at most 2 GB"),
        carries_bytes=True,
        holds_key=False,
        request=Limit(20 * 10**6, "Dataflow quotas: the request that makes a job is at most 20 MB"),
        workers=Limit(4000, "Dataflow quotas: 4,000 workers a job with the shuffle service, 2,000 without"),
        disk=Limit(100 * 10**9, "shardkit: a worker of Dataflow gets 100 GB unless --engine-option disk-gb says more"),
        reaches_machine=False,
        # The defaults of convert: n2-standard-4 with a process a processor, of two threads.
        processes=4,
        threads=2,
    ),
}

SHARDS = Limit(MAX_SHARDS, "shardkit: a shard table has at most a million rows")
MANIFEST = Limit(256 * MiB, "shardkit: a manifest is at most 256 MiB")
# The design's groups: 1,024 of 256 MiB, ordered in memory each.
GROUP = Limit(256 * MiB, "shardkit: 1,024 groups of at most 256 MiB, each of which is ordered in memory")
OBJECT = Limit(5 * TiB, "Amazon S3, Google Cloud Storage: an object is at most 5 TiB")
COUNTS = Limit(2**62, "shardkit: sizes are 64-bit integers")
RECORD = Limit(2 * GiB, "protobuf: a message, and so an example, is smaller than 2 GiB")

# Requests a second that a store takes for one prefix before it asks for patience.
PUTS_PER_S = Limit(3500, "Amazon S3: 3,500 PUT a second and prefix; others take about as many")
GETS_PER_S = Limit(5500, "Amazon S3: 5,500 GET a second and prefix; others take about as many")
