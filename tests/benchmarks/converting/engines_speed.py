"""One conversion on the engines of this machine, in turns: wall time, CPU time, memory.

    python -m tests.benchmarks.converting.engines_speed --folder /some/disk --megabytes 50 150 --rounds 3

The input is that of `convert_speed`, in eight files. Memory is the largest proportional set size of the process tree.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path

from tests.benchmarks.converting.convert_speed import Usage, generate, measure
from tests.benchmarks.measure import print_machine, print_table

_ENGINES = {
    "local, 2 workers": ("--workers", "2"),
    "local, 6 workers": ("--workers", "6"),
    "Beam's own": ("--runner", "beam"),
    "Dask, 2 workers": ("--runner", "dask", "--workers", "2"),
}


def _bench(folder: Path, megabytes: float, rounds: int) -> None:
    source, destination = folder / "generated", folder / "dataset"
    size = generate(source, int(megabytes * 1e6), 8)
    runs: dict[str, list[Usage]] = {name: [] for name in _ENGINES}
    for _ in range(rounds):
        for name, options in _ENGINES.items():
            shutil.rmtree(destination, ignore_errors=True)
            runs[name].append(measure(["shardkit", "convert", str(source), str(destination), *options]))
    for path in (source, destination):
        shutil.rmtree(path)
    rows = []
    for name, found in runs.items():
        wall, cpu = (statistics.median(getattr(usage, field) for usage in found) for field in ("wall_s", "cpu_s"))
        rows.append([name, wall, cpu, max(usage.peak_bytes for usage in found) / 2**20])
    print_table(f"{size / 1e6:.1f} MB of CSV", ("engine", "wall s", "CPU s", "peak MiB"), rows)


def main() -> None:
    """Prints one table a size of the input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[50.0, 150.0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print_machine("shardkit", "apache-beam", "distributed")
    for megabytes in options.megabytes:
        _bench(options.folder, megabytes, options.rounds)


if __name__ == "__main__":
    main()
