"""How much of the time accelerators of a fixed step time are busy in a run of `shardkit train`, beside stock tf.data.

    python -m tests.benchmarks.training.accelerators_busy --folder /some/disk
    python -m tests.benchmarks.training.accelerators_busy --quick

The numbers are those of ResNet-50 on an H100 in the MLPerf Storage benchmark (github.com/mlcommons/storage,
configs/dlio/workload/resnet50_h100.yaml): records of 114,660 bytes, batches of 400, 0.224 s a step, and 90 % of the
time busy is asked for. What is simulated is the accelerator alone: a model of the user's own (`--model FILE.py:build`)
sleeps that long in its forward pass, on each replica, and learns one weight. Reader, tensors, loop, gradients over
replicas, metrics and checkpoints are those of the command. Images stay encoded, as in the benchmark, which hands out no
pixels. On a CPU a step returns when it is done, so nothing of the loop hides behind it, as some of it does on a GPU.

"One process" is a host with N accelerators: `--replicas N` of one process that reads for all of them. "A process each"
is `--workers-per-host N`: each reads its own share, as the ranks of the MLPerf benchmark do. With `--reader tfdata` a
worker reads whole global batches, so that reader is shown in one process; `--ways` has the other one, too.

Each accelerator notes when it sleeps. Busy is steps x step time / wall time from the fourth step of an epoch to its
last one: of the first three, batches may lie ready because the end of the epoch before took its time. Others on the
machine keep a worker from its core when it is due, so the load before each run is shown. The data are read once before
and lie in the page cache, whereas the MLPerf benchmark takes five times the memory to measure disks; what a plain read
of the same files gives is printed beside. Every line is a command of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.measure import Check, print_checks, print_machine, print_table
from tests.benchmarks.process_memory import tree_bytes
from tests.benchmarks.reading.feeding import BATCH_SIZE, ENOUGH, FRAMING_BYTES, RECORD_BYTES, STEP_TIME_S

ACCELERATORS = (1, 2, 4, 8)
NUM_LEFT_OUT = 3
NUM_SHARDS = 16
READ_BYTES = 4 << 20
SAMPLE_S = 0.5
QUICK_RECORDS, QUICK_BATCH_SIZE, QUICK_STEP_S, QUICK_ACCELERATORS = 2000, 40, 0.02, (1, 2)
MODEL = """
import json, os, time
import keras
import numpy as np
import tensorflow as tf

STEP_TIME_S = {step_time_s}
NOTES = open({folder!r} + f"/{{os.getpid()}}.notes", "a", buffering=1)


def compute(_):
    started = time.monotonic()
    time.sleep(STEP_TIME_S)
    NOTES.write(json.dumps([started, time.monotonic(), time.process_time()]) + "\\n")
    return np.float32(0)


class Accelerator(keras.layers.Layer):
    def call(self, images):
        # Calls with side effects would wait for each other within a graph; one that depends on its batch is made anew.
        slept = tf.numpy_function(compute, [tf.strings.length(images[0])], tf.float32, stateful=False)
        return tf.fill([tf.shape(images)[0], 1], tf.ensure_shape(slept, []))

    def compute_output_shape(self, shape):
        return (shape[0], 1)


def build(features, statistics, label):
    image = keras.Input([], dtype="string", name="image")
    return keras.Model({{"image": image}}, keras.layers.Dense(label.num_outputs)(Accelerator()(image)))
"""


class Way(NamedTuple):
    """How batches come to the accelerators.

    Attributes:
        is_process_each: One worker process for each accelerator, not one for all.
    """

    reader: str
    is_process_each: bool


WAYS = {
    "one process, shardkit": Way("shardkit", is_process_each=False),
    "one process, tf.data": Way("tfdata", is_process_each=False),
    "a process each, shardkit": Way("shardkit", is_process_each=True),
    "a process each, tf.data": Way("tfdata", is_process_each=True),
}
DEFAULT_WAYS = tuple(WAYS)[:3]


class Load(NamedTuple):
    """What accelerators are given.

    Attributes:
        batch_size: Examples a step of one accelerator.
        step_time_s: In which it computes them.
        min_steps: Of a run.
    """

    num_records: int
    batch_size: int
    step_time_s: float
    min_steps: int


class Busy(NamedTuple):
    """What one run came to.

    Attributes:
        share: Of the time in which accelerators compute.
        mb_per_s: Of records that they were given.
        num_cores: CPU seconds a second, of all workers.
        load: Processes that wanted a core before the run, as the system averages them over a minute.
        peak_bytes: Memory of all processes of the command.
    """

    share: float
    mb_per_s: float
    num_cores: float
    load: float
    peak_bytes: int
    num_steps: int


def prepare(folder: Path, num_records: int) -> Path:
    """Makes the dataset, uncompressed, of records that are exactly as large as they should be, unless it is there."""
    from shardkit.dataset.open import open_dataset

    target, source = folder / f"records-{num_records}", folder / f"records-{num_records}.parquet"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_rows(source, num_records)
        _shardkit("convert", source, target, "--compression", "none", "--num-shards", NUM_SHARDS)
        source.unlink()
    (split,) = open_dataset(str(target)).manifest.splits
    assert split.num_uncompressed_bytes == (RECORD_BYTES + FRAMING_BYTES) * num_records
    return target


def _write_rows(path: Path, num_records: int) -> None:
    from shardkit.encoding.example import encode_batch
    from shardkit.features import arrow_schema, make_feature

    features = (make_feature("image", "bytes"), make_feature("label", "float32"))
    schema = arrow_schema(features)
    draw = np.random.default_rng(0)

    def rows(count: int, size: int) -> pa.RecordBatch:
        images = pa.array([draw.bytes(size) for _ in range(count)], schema.field("image").type)
        return pa.record_batch([images, pa.array(np.ones(count, np.float32))], schema)

    _, sizes = encode_batch(rows(1, RECORD_BYTES), features)
    size = 2 * RECORD_BYTES + FRAMING_BYTES - int(sizes[0])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, num_records, BATCH_SIZE):
            writer.write_batch(rows(min(BATCH_SIZE, num_records - first), size))


def _shardkit(*arguments: object, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs a command and returns the peak of its memory, and what it said."""
    command = [sys.executable, "-m", "shardkit", *map(str, arguments)]
    peak = 0
    with tempfile.TemporaryFile("w+") as said:
        process = psutil.Popen(command, env=os.environ | (environment or {}), stdout=said, stderr=said)
        while process.poll() is None:
            peak = max(peak, tree_bytes(process))
            time.sleep(SAMPLE_S)
        said.seek(0)
        text = said.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{text}")
    return peak, text


def train(dataset: Path, way: Way, num_accelerators: int, load: Load) -> Busy:
    """Returns what one run of the command keeps busy."""
    global_batch_size = num_accelerators * load.batch_size
    steps_per_epoch = load.num_records // global_batch_size
    epochs = -(-load.min_steps // steps_per_epoch)
    if steps_per_epoch <= NUM_LEFT_OUT:
        raise SystemExit(f"{num_accelerators} accelerators need more records: see --megabytes")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model.py"
        model.write_text(MODEL.format(step_time_s=load.step_time_s, folder=name))
        count = "--workers-per-host" if way.is_process_each else "--replicas"
        settings = ["--label", "label", "--task", "regression", "--model", f"{model}:build", "--output", f"{name}/run"]
        settings += ["--reader", way.reader, "--epochs", epochs, "--global-batch-size", global_batch_size]
        # Accelerators that compute at the same time are threads that sleep at the same time.
        threads = {"TF_NUM_INTEROP_THREADS": str(num_accelerators + 2), "TF_CPP_MIN_LOG_LEVEL": "3"}
        several = [count, num_accelerators] if num_accelerators > 1 else []
        peak, said = _shardkit("train", dataset, *settings, *several, environment=threads)
        notes = [np.array([json.loads(line) for line in path.open()]) for path in Path(name).glob("*.notes")]
    num_local = 1 if way.is_process_each else num_accelerators
    num_steps = steps_per_epoch * epochs
    # A worker that was started again after its last step has no more of them to note.
    whole = [of_worker[-num_steps * num_local :] for of_worker in notes if len(of_worker) >= num_steps * num_local]
    ends = [_ends_of_steps(of_worker, num_local) for of_worker in whole]
    if len(ends) * num_local != num_accelerators:
        raise SystemExit(f"workers were started again before the end; the run does not count\n{said}")
    return _busy(ends, steps_per_epoch, num_accelerators, load)._replace(load=before, peak_bytes=peak)


def _ends_of_steps(notes: np.ndarray, num_local: int) -> np.ndarray:
    """Returns when the accelerators of one process had finished each step, and its CPU seconds then."""
    by_time = notes[np.argsort(notes[:, 1])].reshape(-1, num_local, 3)
    assert (by_time[1:, :, 0].min(axis=1) >= by_time[:-1, :, 1].max(axis=1)).all()
    return by_time.max(axis=1)[:, 1:]


def _busy(ends: list[np.ndarray], steps_per_epoch: int, num_accelerators: int, load: Load) -> Busy:
    of_all = np.stack(ends)
    wall_s = cpu_s = 0.0
    num_steps = 0
    for first, last in pairwise(range(0, of_all.shape[1] + 1, steps_per_epoch)):
        spent = of_all[:, last - 1] - of_all[:, first + NUM_LEFT_OUT - 1]
        wall_s += float(spent[:, 0].mean())
        cpu_s += float(spent[:, 1].sum())
        num_steps += steps_per_epoch - NUM_LEFT_OUT
    num_bytes = num_steps * num_accelerators * load.batch_size * RECORD_BYTES
    return Busy(num_steps * load.step_time_s / wall_s, num_bytes / wall_s / 1e6, cpu_s / wall_s, 0.0, 0, num_steps)


def read_plainly(dataset: Path, num_threads: int) -> float:
    """Returns the MB/s of reading the files into a buffer a thread, and nothing else."""
    files = sorted(dataset.glob("data/*/*.tfrecord"))

    def read(path: Path) -> int:
        buffer, num_bytes = bytearray(READ_BYTES), 0
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                num_bytes += count
        return num_bytes

    with ThreadPoolExecutor(num_threads) as threads:
        started = time.monotonic()
        return sum(threads.map(read, files)) / (time.monotonic() - started) / 1e6


def print_results(found: dict[tuple[str, int], Busy], load: Load, *, as_markdown: bool) -> None:
    """Prints a line a run."""
    headers = ("who reads", "accelerators", "busy", "MB/s", "MB/s wanted", "cores", "load", "peak MB", "steps")
    rows = [
        (
            way,
            f"{number}",
            f"{busy.share:.1%}",
            f"{busy.mb_per_s:,.0f}",
            f"{number * load.batch_size * RECORD_BYTES / load.step_time_s / 1e6:,.0f}",
            f"{busy.num_cores:.2f}",
            f"{busy.load:.1f}",
            f"{busy.peak_bytes / 1e6:,.0f}",
            f"{busy.num_steps}",
        )
        for (way, number), busy in found.items()
    ]
    if as_markdown:
        print(f"| {' | '.join(headers)} |\n|---|{'---:|' * (len(headers) - 1)}")
        print("".join(f"| {' | '.join(row)} |\n" for row in rows), end="")
        return
    print_table(f"batches of {load.batch_size}, {load.step_time_s} s a step", headers, rows)


def main() -> None:
    """Prints the table, the bound and the target checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Where the dataset goes; it is kept. A temporary one if absent.")
    parser.add_argument("--megabytes", type=int, default=4000, help="Of records; they should fit into the page cache.")
    parser.add_argument("--accelerators", type=int, nargs="+", default=ACCELERATORS)
    parser.add_argument("--ways", nargs="+", default=DEFAULT_WAYS, choices=list(WAYS))
    parser.add_argument("--steps", type=int, default=40, help="Of each run, at least.")
    parser.add_argument("--quick", action="store_true", help="Small batches and short steps: shows that it runs.")
    parser.add_argument("--markdown", action="store_true", help="Print a table in Markdown and nothing else.")
    options = parser.parse_args()
    load = Load(options.megabytes * 10**6 // RECORD_BYTES, BATCH_SIZE, STEP_TIME_S, options.steps)
    if options.quick:
        load = Load(QUICK_RECORDS, QUICK_BATCH_SIZE, QUICK_STEP_S, options.steps)
        options.accelerators = QUICK_ACCELERATORS
    if not options.markdown:
        print_machine("shardkit", "tensorflow", "keras", "numpy")
    found: dict[tuple[str, int], Busy] = {}
    with tempfile.TemporaryDirectory() as scratch:
        dataset = prepare(options.folder or Path(scratch), load.num_records)
        read_plainly(dataset, 1)
        bounds = {count: read_plainly(dataset, count) for count in (1, len(os.sched_getaffinity(0)))}
        for number in options.accelerators:
            for way in options.ways:
                found[way, number] = train(dataset, WAYS[way], number, load)
                print(f"{way}, {number}: {found[way, number].share:.1%} busy", file=sys.stderr, flush=True)
    by_way = {key: found[key] for key in sorted(found, key=lambda key: (options.ways.index(key[0]), key[1]))}
    print_results(by_way, load, as_markdown=options.markdown)
    if options.markdown:
        return
    for count, rate in bounds.items():
        print(f"a plain read of the same files, {count} threads: {rate:,.0f} MB/s")
    if not options.quick:
        print_checks(
            [Check(f"{way}: {n} busy", busy.share, ENOUGH) for (way, n), busy in by_way.items() if "shardkit" in way]
        )


if __name__ == "__main__":
    main()
