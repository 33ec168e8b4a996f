"""How many accelerators of a fixed step time are kept busy by one process that reads, beside tf.data.

    python -m tests.benchmarks.reading.feeding --folder /some/disk --megabytes 600

Records of 114,660 bytes (one feature of random bytes: the ResNet-50 workload of the MLPerf Storage benchmark), batches
of 400, 0.224 s a step, in which an accelerator sleeps. With N accelerators all take one batch each at a step, N x 400
records together; one process reads for all of them. Busy is the accelerator utilisation (AU) of that benchmark: steps x
step time / wall time, of steps after a warm-up.

The benchmark itself asks for data five times as large as memory, to measure disks. This measures readers: the data are
a few hundred MB, read epoch after epoch, and lie in the page cache. tf.data reads the same files, parsed by
`parse_example`: tuned (parallel interleave, map and prefetch with AUTOTUNE), and naive (one file after the other,
nothing ahead). Every row is a process of its own. "Flat out" is the rate with steps of no time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.measure import Check, is_installed, print_checks, print_machine, print_table, shardkit_command

if TYPE_CHECKING:
    import tensorflow as tf

    from shardkit.adapters.tfdata import ShardFiles
    from shardkit.bench.rates import Open
    from shardkit.bench.run import Work

RECORD_BYTES = 114_660
BATCH_SIZE = 400
STEP_TIME_S = 0.224
ACCELERATORS = (1, 2, 4, 8)
ENOUGH = 0.9
COMPRESSIONS = ("none", "gzip")
FRAMING_BYTES = 16
NUM_SHARDS = 8
SHARDKIT, TUNED, NAIVE = "shardkit", "tf.data, tuned", "tf.data, naive"


class Row(NamedTuple):
    """One way to read one dataset."""

    reader: str
    compression: str


def prepare(folder: Path, num_bytes: int) -> None:
    """Makes the datasets; those that are there already are kept."""
    from shardkit.dataset.open import open_dataset

    num_rows = max(1, num_bytes // RECORD_BYTES)
    source = folder / f"rows-{num_rows}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    for compression in COMPRESSIONS:
        target = dataset_folder(folder, num_bytes, compression)
        if not target.exists():
            if not source.exists():
                _write_rows(source, num_rows)
            options = ["--compression", compression, "--num-shards", str(NUM_SHARDS)]
            command = [shardkit_command(), "convert", str(source), str(target), *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (split,) = open_dataset(str(target)).manifest.splits
        assert (
            split.num_uncompressed_bytes
            == (RECORD_BYTES + FRAMING_BYTES) * split.num_examples
            == num_rows * (RECORD_BYTES + FRAMING_BYTES)
        )
    source.unlink(missing_ok=True)


def dataset_folder(folder: Path, num_bytes: int, compression: str) -> Path:
    """Returns where a dataset lies."""
    return folder / f"{num_bytes // 10**6}-MB-{compression}"


def _write_rows(path: Path, num_rows: int) -> None:
    rng = np.random.default_rng(0)
    size = RECORD_BYTES - _overhead_bytes()
    schema = pa.schema([pa.field("image", pa.binary(), nullable=False)])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for first in range(0, num_rows, BATCH_SIZE):
            rows = [rng.bytes(size) for _ in range(min(BATCH_SIZE, num_rows - first))]
            writer.write_table(pa.table({"image": pa.array(rows, pa.binary())}, schema=schema))


def _overhead_bytes() -> int:
    """Returns what a record is larger than its value."""
    from shardkit.encoding.example import encode_batch
    from shardkit.features import arrow_schema, make_feature

    features = (make_feature("image", "bytes"),)
    batch = pa.record_batch([pa.array([bytes(RECORD_BYTES)], pa.binary())], schema=arrow_schema(features))
    _, sizes = encode_batch(batch, features)
    return int(sizes[0]) - FRAMING_BYTES - RECORD_BYTES


def measure_row(row: Row, location: str, num_threads: int, seconds: float) -> dict[str, Any]:
    """Returns what one row reads flat out, its memory, and how busy it keeps accelerators."""
    from functools import partial

    from shardkit.bench.rates import PeakMemory, measure
    from shardkit.bench.run import BenchOptions, plan_work, read_batches
    from shardkit.dataset.open import open_dataset

    dataset = open_dataset(location)
    options = BenchOptions(num_threads=num_threads, batch_size=BATCH_SIZE)
    work = plan_work(dataset, dataset.manifest.splits[0], options)

    def opens(num_accelerators: int) -> Any:
        if row.reader == SHARDKIT:
            return partial(read_batches, work, num_ahead=num_accelerators)
        from shardkit.adapters import tfdata_bench

        return tfdata_bench.open_tfdata(work, None if row.reader == TUNED else naive)

    opens(1)
    memory = PeakMemory()
    window = measure(opens(2), seconds)
    rate = window.num_batches * BATCH_SIZE * RECORD_BYTES / 1e6
    busy, peak = [], []
    for number in ACCELERATORS:
        busy.append(share_busy(opens(number), number, seconds))
        peak.append(memory.num_bytes())
    return {"mb_per_s": rate / window.wall_s, "mb_per_cpu_s": rate / window.cpu_s, "busy": busy, "peak_bytes": peak[-1]}


def naive(files: ShardFiles, work: Work) -> tf.data.Dataset:
    """Returns parsed batches that are read one after the other when they are asked for."""
    import tensorflow as tf

    from shardkit.adapters.tfdata_bench import parser

    options = tf.data.Options()
    # Both would put a prefetch where none is written.
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    records = tf.data.TFRecordDataset(list(files.urls), files.compression).with_options(options)
    return records.batch(work.batch_size, drop_remainder=True).repeat().map(parser(work.features))


def share_busy(open_batches: Open, num_accelerators: int, seconds: float) -> float:
    """Returns steps x step time / wall time, after three steps: at each step all take a batch, then sleep."""
    num_steps = max(10, round(seconds / STEP_TIME_S))
    with closing(open_batches()) as batches:
        held: deque[object] = deque(maxlen=num_accelerators)
        started = 0.0
        for step in range(3 + num_steps):
            started = time.perf_counter() if step == 3 else started
            held.extend(islice(batches, num_accelerators))
            time.sleep(STEP_TIME_S)
        return num_steps * STEP_TIME_S / (time.perf_counter() - started)


def measure_apart(row: Row, location: str, num_threads: int, seconds: float) -> dict[str, Any]:
    """Returns what `measure_row` does, from a process of its own."""
    request = json.dumps([row, location, num_threads, seconds])
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--row", request],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def print_results(results: dict[Row, dict[str, Any]], *, as_markdown: bool) -> None:
    """Prints a line a row."""
    headers = (
        "reader",
        "files",
        *(f"{n} busy" for n in ACCELERATORS),
        "fed at 90%",
        "flat out MB/s",
        "MB/CPU s",
        "peak MiB",
    )
    lines = []
    for row, found in results.items():
        fed = max((n for n, busy in zip(ACCELERATORS, found["busy"], strict=True) if busy >= ENOUGH), default=0)
        peak = "-" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**20:.0f}"
        lines.append(
            (
                row.reader,
                {"none": "uncompressed"}.get(row.compression, row.compression),
                *(f"{busy:.1%}" for busy in found["busy"]),
                f"{fed}",
                f"{found['mb_per_s']:.0f}",
                f"{found['mb_per_cpu_s']:.0f}",
                peak,
            )
        )
    if as_markdown:
        print(f"| {' | '.join(headers)} |\n|{'---|' * 2}{'---:|' * (len(headers) - 2)}")
        print("".join(f"| {' | '.join(line)} |\n" for line in lines), end="")
        return
    title = f"records of {RECORD_BYTES:,} bytes, batches of {BATCH_SIZE}, {STEP_TIME_S} s a step"
    print_table(title, headers, lines)


def main() -> None:
    """Prints a table, a line for every reader and compression, then the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Where the datasets go; they are kept. A temporary one if absent.")
    parser.add_argument("--megabytes", type=int, default=600, help="Of records.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="Threads that read.")
    parser.add_argument("--seconds", type=float, default=4.0, help="Of each measurement, at least ten steps.")
    parser.add_argument("--readers", nargs="+", default=[SHARDKIT, TUNED, NAIVE], choices=[SHARDKIT, TUNED, NAIVE])
    parser.add_argument("--markdown", action="store_true", help="Print a table in Markdown and nothing else.")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        row, *rest = json.loads(options.row)
        print(json.dumps(measure_row(Row(*row), *rest)))
        return
    if not options.markdown:
        print_machine("shardkit", "tensorflow", "numpy", "pyarrow")
    readers = [reader for reader in options.readers if reader == SHARDKIT or is_installed("tensorflow")]
    num_bytes = options.megabytes * 10**6
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        prepare(folder, num_bytes)
        results = {
            row: measure_apart(
                row, str(dataset_folder(folder, num_bytes, row.compression)), options.threads, options.seconds
            )
            for row in (Row(reader, compression) for reader in readers for compression in COMPRESSIONS)
        }
    print_results(results, as_markdown=options.markdown)
    if options.markdown or SHARDKIT not in readers:
        return
    checks = []
    for compression in COMPRESSIONS:
        busy = dict(zip(ACCELERATORS, results[Row(SHARDKIT, compression)]["busy"], strict=True))
        checks += [Check(f"{n} accelerators busy, {compression}", busy[n], ENOUGH) for n in (4, 8)]
    print_checks(checks)


if __name__ == "__main__":
    main()
