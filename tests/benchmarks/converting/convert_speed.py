"""Speed and peak memory of the whole `shardkit convert`, all processes together, start-up included.

    python -m tests.benchmarks.converting.convert_speed --folder /some/disk --megabytes 53 1000 --workers 1 2 --rounds 3

Generates CSV files (20 columns: 8 floats, 8 integers, 4 short words), converts them with the installed command, checks
the result with `shardkit verify`, and compares with how fast pyarrow alone parses the same files on one core. CPU time
after imports leaves out what a bare process needs to import the same modules. The busy share is CPU time per core and
wall time from the end of the imports to the end of the command; what other programs took of the cores is shown beside.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pa_csv

from shardkit.conversion.layout_math import deal_workers
from tests.benchmarks.measure import print_machine, print_table

_ROWS_A_CHUNK = 50_000
_SAMPLES_A_SECOND = 10
_IMPORTS = (
    "from shardkit.runtime.process_limits import lighten_process as f; f(); import logging; logging.disable(50); "
    "import shardkit.cli.run_convert, shardkit.conversion.prepare, beam_pipelines.engines.local"
)
_PARSE = """
import sys, pyarrow as pa, pyarrow.csv as c
for path in sys.argv[1:]:
    for batch in c.open_csv(path, c.ReadOptions(use_threads=False, block_size=4 << 20)):
        pass
"""


class Usage(NamedTuple):
    """What one command took.

    Attributes:
        wall_s: From its start to its end.
        cpu_s: User and system time of its whole process tree.
        others_s: CPU time that other programs took meanwhile.
        peak_bytes: Largest proportional set size of the tree.
        largest_bytes: Largest proportional set size of one process of it.
    """

    wall_s: float
    cpu_s: float
    others_s: float
    peak_bytes: int
    largest_bytes: int


def generate(folder: Path, num_bytes: int, num_files: int) -> int:
    """Writes CSV files of about `num_bytes` in total and returns their real size."""
    folder.mkdir(parents=True, exist_ok=True)
    words = np.array([f"word{i}" for i in range(200)])
    total = 0
    for number in range(num_files):
        path = folder / f"part-{number:03d}.csv"
        rng = np.random.default_rng(number)
        with path.open("wb") as file:
            writer = None
            while file.tell() < num_bytes / num_files:
                columns: dict[str, np.ndarray]
                columns = {f"f{i}": np.round(rng.normal(size=_ROWS_A_CHUNK), 4).astype(np.float32) for i in range(8)}
                columns |= {f"i{i}": rng.integers(0, 10 ** (i + 1), _ROWS_A_CHUNK) for i in range(8)}
                columns |= {f"s{i}": words[rng.integers(0, 200, _ROWS_A_CHUNK)] for i in range(4)}
                table = pa.table(columns)
                writer = writer or pa_csv.CSVWriter(file, table.schema)
                writer.write_table(table)
        total += path.stat().st_size
    return total


def measure(command: Sequence[str]) -> Usage:
    """Runs a command to its end, whose failure ends the benchmark."""
    own, machine, started = os.times(), psutil.cpu_times(), time.monotonic()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = largest = 0
    seen: dict[int, float] = {}
    while process.poll() is None:
        sizes = _tree_bytes(process, seen)
        peak, largest = max(peak, sum(sizes)), max(largest, *sizes, 0)
        try:
            process.wait(1 / _SAMPLES_A_SECOND)
        except psutil.TimeoutExpired:
            continue
    wall = time.monotonic() - started
    if process.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} ended with {process.returncode}: {process.stderr.read().decode()[-2000:]}"
        )
    after, machine_after = os.times(), psutil.cpu_times()
    waited = after.children_user + after.children_system - own.children_user - own.children_system
    # A process whose parent does not wait for it, as those of Ray, counts as it was last seen.
    cpu = max(waited, sum(seen.values()))
    idle = machine_after.idle + machine_after.iowait - machine.idle - machine.iowait
    return Usage(wall, cpu, max(0.0, psutil.cpu_count() * wall - idle - cpu), peak, largest)


def _tree_bytes(process: psutil.Process, seen: dict[int, float]) -> list[int]:
    sizes: list[int] = []
    with suppress(psutil.Error):
        for member in (process, *process.children(recursive=True)):
            times = member.cpu_times()
            seen[member.pid] = times.user + times.system
            sizes.append(member.memory_full_info().pss)
    return sizes


def _row(size: int, workers: int, runs: Sequence[Usage], imports: Usage, parse_rate: float) -> list[str | float | int]:
    wall, cpu = statistics.median(r.wall_s for r in runs), statistics.median(r.cpu_s for r in runs)
    num_processes, _ = deal_workers(workers)
    # Where there are worker processes, the command itself imports everything too and then waits.
    num_importing = 1 if num_processes == 1 else num_processes + 1
    work = cpu - imports.cpu_s * num_importing
    cores = min(workers, len(os.sched_getaffinity(0)))
    rate = size / 1e6 / work
    return [
        size / 1e6,
        workers,
        wall,
        cpu,
        work,
        rate,
        rate / parse_rate,
        f"{work / cores / (wall - imports.wall_s):.0%}",
        statistics.median(r.others_s for r in runs) / wall,
        max(r.peak_bytes for r in runs) / 2**20,
    ]


def _bench(folder: Path, megabytes: float, num_files: int, workers: Sequence[int], rounds: int) -> None:
    source, destination = folder / "generated", folder / "dataset"
    shutil.rmtree(source, ignore_errors=True)
    size = generate(source, int(megabytes * 1e6), num_files)
    subprocess.run(["sync"], check=True)
    files = sorted(map(str, source.iterdir()))
    runs: dict[int, list[Usage]] = {w: [] for w in workers}
    imports: list[Usage] = []
    parses: list[Usage] = []
    for _ in range(rounds):
        imports.append(measure([sys.executable, "-c", _IMPORTS]))
        parses.append(measure([sys.executable, "-c", _PARSE, *files]))
        for count in workers:
            shutil.rmtree(destination, ignore_errors=True)
            runs[count].append(measure(["shardkit", "convert", str(source), str(destination), "--workers", str(count)]))
            subprocess.run(["shardkit", "verify", str(destination)], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(destination)
    shutil.rmtree(source)
    bare = measure([sys.executable, "-c", _PARSE]).cpu_s
    parse_rate = size / 1e6 / (statistics.median(p.cpu_s for p in parses) - bare)
    by_cpu = sorted(imports, key=lambda i: i.cpu_s)[len(imports) // 2]
    print_table(
        f"{len(files)} CSV files; imports take {by_cpu.cpu_s:.2f} s of CPU; pyarrow alone parses {parse_rate:.0f} MB/s "
        "per core",
        (
            *("input MB", "workers", "wall s", "CPU s", "after imports", "MB/s per core", "of pyarrow's rate"),
            *("cores busy", "cores of others", "peak MiB"),
        ),
        [_row(size, w, runs[w], by_cpu, parse_rate) for w in workers],
    )


def main() -> None:
    """Prints one table a size of the input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[53.0])
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print_machine("shardkit", "apache-beam", "pyarrow", "isal")
    for megabytes in options.megabytes:
        _bench(options.folder, megabytes, options.files, options.workers, options.rounds)


if __name__ == "__main__":
    main()
