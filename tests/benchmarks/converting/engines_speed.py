"""One conversion on the engines of this machine, in turns: wall time, CPU time, memory, and whether bytes are equal.

    python -m tests.benchmarks.converting.engines_speed --folder /some/disk --megabytes 50 150 --rounds 3
    python -m tests.benchmarks.converting.engines_speed --folder /some/disk --megabytes 50 --no-shared-disk
    python -m tests.benchmarks.converting.engines_speed --folder /some/disk --megabytes 2000 --max-memory 1GiB

The input is that of `convert_speed`, in eight files. Engines that `shardkit engines list` calls ready take part; those
that heed it get two workers. Memory is the largest proportional set size of the process tree, and of one process.
Without a shared disk all of it is in a server of S3 on this machine (moto, whose time and memory count for no engine),
as it does for the local engine, but for its work folder.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_pipelines.engines.engine import engine_for, readiness
from beam_pipelines.engines.settings import EngineOptions
from shardkit.conversion.engines import ENGINES
from shardkit.dataset.open import open_dataset
from shardkit.storage import files as storage
from tests.benchmarks.converting.convert_speed import Usage, generate, measure
from tests.benchmarks.measure import print_machine, print_table
from tests.support.stores.servers import serve, use


def _options(engine: str) -> tuple[str, ...]:
    heeds_it = engine_for(EngineOptions(runner=engine)).why_no_workers() is None
    return ("--runner", engine, *(("--workers", "2") if heeds_it else ()))


def _engines(wanted: list[str]) -> list[str]:
    """Returns engines that can run here: nothing of Dataflow's service is."""
    return [e.name for e in readiness() if e.name in wanted and e.lacks is None and ENGINES[e.name].reaches_machine]


@contextlib.contextmanager
def _places(folder: Path, *, is_far: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields where inputs and datasets lie, and the options of engines whose workers share no disk."""
    source = folder / "generated"
    if not is_far:
        yield str(source), str(folder / "dataset"), ()
        return
    with serve("moto", folder) as server, pytest.MonkeyPatch.context() as patch:
        use(server, patch)
        for path in source.iterdir():
            storage.put_file(path, f"{server.url}/in/{path.name}")
        yield f"{server.url}/in", f"{server.url}/out", ("--work-dir", f"{server.url}/work")


def _digest(destination: str) -> str:
    shards = [(s.path, s.sha256) for s in open_dataset(destination).shards]
    return hashlib.sha256(repr(shards).encode()).hexdigest()


def _bench(folder: Path, megabytes: float, options: argparse.Namespace) -> None:
    size = generate(folder / "generated", int(megabytes * 1e6), 8)
    engines = _engines(options.engines)
    runs: dict[str, list[Usage]] = {name: [] for name in engines}
    digests, refused = dict[str, str](), dict[str, str]()
    with _places(folder, is_far=options.no_shared_disk) as (source, destination, far):
        for _ in range(options.rounds):
            for name in engines:
                own = () if name == "local" else far
                command = ["shardkit", "convert", source, destination, "--overwrite", *_options(name), *own]
                command += ["--max-memory", options.max_memory] if options.max_memory else []
                try:
                    runs[name].append(measure(command))
                except SystemExit as end:
                    refused[name] = str(end).rpartition("error[")[2].partition("\n")[0][:100]
                    continue
                digests[name] = _digest(destination)
    for path in (folder / "generated", folder / "dataset"):
        shutil.rmtree(path, ignore_errors=True)
    rows: list[list[str | float]] = []
    base = statistics.median(u.wall_s for u in runs[engines[0]]), statistics.median(u.cpu_s for u in runs[engines[0]])
    for name, found in runs.items():
        if not found:
            rows.append([name, "-", "-", "-", "-", "-", "-", refused[name]])
            continue
        wall, cpu = (statistics.median(getattr(usage, field) for usage in found) for field in ("wall_s", "cpu_s"))
        is_equal = "equal" if digests[name] == digests[engines[0]] else "OTHER BYTES"
        memory = (max(getattr(usage, field) for usage in found) / 2**20 for field in ("peak_bytes", "largest_bytes"))
        rows.append([name, wall, cpu, wall / base[0], cpu / base[1], *memory, is_equal])
    where = "without a shared disk" if options.no_shared_disk else "on a shared disk"
    print_table(
        f"{size / 1e6:.1f} MB of CSV, {where}",
        ("engine", "wall s", "CPU s", "wall ratio", "CPU ratio", "peak MiB", "a process", "shards"),
        rows,
    )


def main() -> None:
    """Prints one table a size of the input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[50.0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), help="The first one is what others are set to.")
    parser.add_argument("--no-shared-disk", action="store_true")
    parser.add_argument("--max-memory", help="That of each conversion's option; none by default.")
    options = parser.parse_args()
    print_machine("shardkit", "apache-beam", "distributed", "pyspark", "ray")
    for megabytes in options.megabytes:
        _bench(options.folder, megabytes, options)


if __name__ == "__main__":
    main()
