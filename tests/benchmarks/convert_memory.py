"""Peak memory and speed of a conversion, all processes together.

    python tests/benchmarks/convert_memory.py --gigabytes 4 --files 8 --workers 2 --folder /some/disk

Generates CSV files (20 columns: 8 floats, 8 integers, 4 short words), converts them with the installed `shardkit`
command, samples the proportional set size of the whole process tree ten times a second, and prints a table.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pa_csv

ROWS_A_CHUNK = 100_000


def generate(folder: Path, num_bytes: int, num_files: int) -> int:
    """Writes CSV files of about `num_bytes` in total and returns their real size."""
    words = np.array([f"word{i}" for i in range(200)])
    total = 0
    for number in range(num_files):
        path = folder / f"part-{number:03d}.csv"
        rng = np.random.default_rng(number)
        with path.open("wb") as file:
            writer = None
            while file.tell() < num_bytes / num_files:
                columns = {f"f{i}": np.round(rng.normal(size=ROWS_A_CHUNK), 4).astype(np.float32) for i in range(8)}
                columns |= {f"i{i}": rng.integers(0, 10 ** (i + 1), ROWS_A_CHUNK) for i in range(8)}
                columns |= {f"s{i}": words[rng.integers(0, 200, ROWS_A_CHUNK)] for i in range(4)}
                table = pa.table(columns)
                writer = writer or pa_csv.CSVWriter(file, table.schema)
                writer.write_table(table)
        total += path.stat().st_size
    return total


def tree_bytes(process: psutil.Process) -> int:
    """Returns the proportional set size of a process and all below it."""
    total = 0
    for member in (process, *process.children(recursive=True)):
        try:
            total += member.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def measure(command: list[str]) -> tuple[float, float, int]:
    """Runs a command and returns wall seconds, CPU seconds and peak bytes of its process tree."""
    before = os.times()
    started = time.monotonic()
    process = psutil.Popen(command, stdout=sys.stderr)
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, tree_bytes(process))
        except psutil.Error:
            break
        time.sleep(0.1)
    if process.wait() != 0:
        raise SystemExit(f"{command} ended with {process.returncode}")
    wall = time.monotonic() - started
    after = os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system, peak


def main() -> None:
    """Prints one line a worker count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    source = options.folder / "generated"
    source.mkdir(parents=True, exist_ok=True)
    num_bytes = generate(source, int(options.gigabytes * 1e9), options.files)
    subprocess.run(["sync"], check=True)
    print(f"{'input MB':>9} {'workers':>8} {'wall s':>8} {'CPU s':>8} {'MB/s':>7} {'MB/s/core':>10} {'peak MiB':>9}")
    for workers in options.workers:
        destination = options.folder / f"dataset-{workers}"
        shutil.rmtree(destination, ignore_errors=True)
        command = ["shardkit", "convert", f"{source}/*.csv", str(destination), "--workers", str(workers)]
        wall, cpu, peak = measure(command)
        megabytes = num_bytes / 1e6
        print(
            f"{megabytes:9.0f} {workers:8d} {wall:8.1f} {cpu:8.1f} {megabytes / wall:7.1f} "
            f"{megabytes / cpu:10.2f} {peak / 2**20:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
