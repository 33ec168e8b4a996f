"""Shard files to columns: shardkit's reader and stock tf.data take turns on the same files.

    python -m tests.benchmarks.reading.read_speed --folder /some/disk --rounds 5

For each kind of data, the installed `shardkit` command converts generated files (Parquet; a folder of JPEG files) with
`--compression-level balanced` (the default) and `small` and with `--compression none`; TensorFlow rewrites the
records with its own `TFRecordWriter`, gzip. Every reader is a process of its own, shardkit's a new one each round; what
counts is CPU time of all its threads for a pass over the files, after a first pass. shardkit inflates, checks both
CRC32C of every record and decodes to Arrow columns by `dataset.block_reader` and `encoding.decoder`; tf.data does
`TFRecordDataset(files, "GZIP").batch(N).map(parse_example)`. Before, each reader says what it has read (rows, and a
sum over the bits of every column): all must say the same. The files lie in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from tests.benchmarks.measure import (
    Cell,
    Check,
    is_installed,
    print_checks,
    print_machine,
    print_table,
    shardkit_command,
)

SHARDKIT, TF_DATA = "shardkit", "tf.data"
VARIANTS = {
    "balanced": ("--compression-level", "balanced"),
    "small": ("--compression-level", "small"),
    "raw": ("--compression", "none"),
}
MIN_S = 0.2
TF_GZIP = "gzip of TFRecordWriter"


class Kind(NamedTuple):
    """One kind of data.

    Attributes:
        num_rows: Rows at scale 1.
        num_batch_rows: Of tf.data.
        target: Times less CPU time than tf.data on the same gzip files.
        target_equal_level: The same where each reads its own files, compressed by zlib 6 and its like.
    """

    name: str
    title: str
    num_rows: int
    num_batch_rows: int
    target: float
    target_equal_level: float | None = None


KINDS = (
    Kind("columns", "20 columns", 200_000, 1024, 5.5, 4.0),
    Kind("tokens", "512 tokens", 40_000, 256, 2.9),
    Kind("floats", "768 floats", 20_000, 256, 5.0),
    Kind("images", "JPEG bytes", 4_000, 64, 4.0),
)


class Job(NamedTuple):
    """What a reader is asked for.

    Attributes:
        variant: Name of the files.
    """

    reader: str
    variant: str
    num_threads: int = 1


def prepare(kind: Kind, folder: Path, scale: float) -> None:
    """Makes inputs and converts them; what is there already is kept."""
    import pyarrow.parquet as pq

    from tests.benchmarks import workloads

    done = folder / f"done-{scale:g}"
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "input"
    source.mkdir(parents=True)
    num_rows = int(kind.num_rows * scale)
    if kind.name == "images":
        files = workloads.jpeg_files()
        for i in range(num_rows):
            path = source / f"class{i % 10}" / f"{i:06d}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(files[i % len(files)])
    else:
        work = getattr(workloads, f"rows_of_{kind.name}")(num_rows)
        pq.write_table(workloads.pa.Table.from_batches([work.batch]), source / "rows.parquet")
    for variant, options in VARIANTS.items():
        command = [shardkit_command(), "convert", str(source), str(folder / variant), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done.touch()


class Reader:
    """A process that reads on request."""

    def __init__(self, name: str, program: str = __spec__.name) -> None:
        command = [sys.executable, "-m", program, "--serve", name]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **request: Any) -> Any:
        """Returns the answer to one request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a reader ended with {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(name: str, requests: TextIO, answers: TextIO) -> None:
    """Answers requests, a line each, until there are no more."""
    passes: dict[str, Callable[[], Iterator[Any]]] = {}
    for line in requests:
        request = json.loads(line)
        folder = Path(request["folder"])
        key = json.dumps(request.get("job"))
        if key not in passes and request["what"] != "rewrite":
            make = shardkit_pass if name == SHARDKIT else tensorflow_pass
            passes[key] = make(folder, request["num_batch_rows"], Job(*request["job"]))
        if request["what"] == "rewrite":
            answer: Any = rewrite(folder)
        elif request["what"] == "check":
            answer = content_of(passes[key]())
        else:
            answer = time_passes(passes[key], request["min_s"])
        answers.write(json.dumps({"answer": answer, "peak_mib": _peak_mib()}) + "\n")
        answers.flush()


def time_passes(read: Callable[[], Iterator[Any]], min_s: float) -> dict[str, float]:
    """Returns CPU and wall seconds and page faults of a pass over the files, the mean of as many as take `min_s`."""
    for _ in read():
        pass
    num_passes, faults = 0, _page_faults()
    started, wall = time.process_time(), time.monotonic()
    while num_passes == 0 or time.process_time() - started < min_s:
        for _ in read():
            pass
        num_passes += 1
    return {
        "cpu_s": (time.process_time() - started) / num_passes,
        "wall_s": (time.monotonic() - wall) / num_passes,
        "faults": (_page_faults() - faults) / num_passes,
    }


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _peak_mib() -> float:
    # Not getrusage, which starts from what the parent process had.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def shardkit_pass(folder: Path, num_batch_rows: int, job: Job) -> Callable[[], Iterator[Any]]:
    """Returns what yields the columns of a dataset, a block at a time."""
    from shardkit.dataset.block_index import BlockRef, list_blocks
    from shardkit.dataset.block_reader import map_blocks
    from shardkit.dataset.open import open_dataset
    from shardkit.encoding.decoder import RecordDecoder

    dataset = open_dataset(str(folder / job.variant))
    refs = [ref for shard in dataset.shards for ref in list_blocks(shard)]
    decoder = RecordDecoder(dataset.manifest.features)

    def decode(ref: BlockRef, frames: bytes) -> Any:
        return decoder.decode(frames, f"{ref.path}, block {ref.block_index}")

    def read() -> Iterator[Any]:
        return map_blocks(dataset, refs, decode, num_threads=job.num_threads, max_ahead=2 * job.num_threads)

    return read


def tensorflow_pass(folder: Path, num_batch_rows: int, job: Job) -> Callable[[], Iterator[Any]]:
    """Returns what yields the columns of the same files, parsed by tf.data."""
    import tensorflow as tf

    from shardkit.dataset.open import open_dataset

    types = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
    dataset = open_dataset(str(folder / "raw"))
    spec = {
        f.name: tf.io.FixedLenFeature([] if f.is_scalar else [f.num_values], types[f.stored_as])
        for f in dataset.manifest.features
    }
    files, compression = shard_files(folder, job.variant)
    records = tf.data.TFRecordDataset(files, compression).batch(num_batch_rows)
    examples = records.map(lambda serialized: tf.io.parse_example(serialized, spec))
    return lambda: iter(examples)


def shard_files(folder: Path, variant: str) -> tuple[list[str], str]:
    """Returns the files of a variant and how tf.data names their compression."""
    from shardkit.dataset.open import open_dataset

    if variant == TF_GZIP:
        return [str(folder / "stock.tfrecord.gz")], "GZIP"
    dataset = open_dataset(str(folder / variant))
    return [dataset.shard_url(shard) for shard in dataset.shards], "" if variant == "raw" else "GZIP"


def rewrite(folder: Path) -> int:
    """Writes the records once more as TensorFlow compresses them by default, and returns their number."""
    import tensorflow as tf

    target, num_records = folder / "stock.tfrecord.gz", 0
    with tf.io.TFRecordWriter(str(target), "GZIP") as writer:
        for record in tf.data.TFRecordDataset(shard_files(folder, "raw")[0]).as_numpy_iterator():
            writer.write(record)
            num_records += 1
    return num_records


def content_of(batches: Iterator[Any]) -> dict[str, list[int]]:
    """Returns rows, bytes and the sum of the bits of each column, whatever the order of the rows."""
    totals: dict[str, list[int]] = {}
    for batch in batches:
        columns = batch if isinstance(batch, dict) else {n: batch.column(n) for n in batch.schema.names}
        for name, column in columns.items():
            num_rows = len(column)
            values = _values_of(column)
            bits = values.view({1: np.uint8, 4: np.uint32, 8: np.uint64}[values.itemsize])
            total = totals.setdefault(name, [0, 0, 0])
            total[0] += num_rows
            total[1] += values.nbytes
            total[2] = (total[2] + int(bits.sum(dtype=np.uint64))) % 2**64
    return totals


def _values_of(column: Any) -> Any:
    """Returns the numbers of a column, or all bytes of its strings."""
    if hasattr(column, "numpy"):
        values = column.numpy().ravel()
        return np.frombuffer(b"".join(values), np.uint8) if values.dtype == object else _stored(values)
    while hasattr(column.type, "value_type"):
        column = column.flatten()
    array = column.to_numpy(zero_copy_only=False)
    if array.dtype != object:
        return _stored(array)
    return np.frombuffer(b"".join(v.encode() if isinstance(v, str) else v for v in array), np.uint8)


def _stored(values: Any) -> Any:
    """Returns numbers of any width as a tf.train.Example has them."""
    return np.ascontiguousarray(values, np.float32 if values.dtype.kind == "f" else np.int64)


def run(kind: Kind, folder: Path, readers: dict[str, Reader], rounds: int) -> list[Check]:
    """Prints the table of one kind of data and returns what its targets say."""
    jobs = [Job(SHARDKIT, variant) for variant in VARIANTS] + [Job(SHARDKIT, "balanced", 2)]
    if TF_DATA in readers:
        readers[TF_DATA].ask(what="rewrite", folder=str(folder))
        jobs += [Job(TF_DATA, variant) for variant in (*VARIANTS, TF_GZIP)]

    def ask(what: str, job: Job) -> Any:
        return readers[job.reader].ask(
            what=what, folder=str(folder), num_batch_rows=kind.num_batch_rows, job=job, min_s=MIN_S
        )

    contents = {job: ask("check", job)["answer"] for job in jobs}
    expected = next(iter(contents.values()))
    for job, content in contents.items():
        if content != expected:
            raise SystemExit(f"{kind.title}: {job} reads other values than {jobs[0]}")
    times: dict[Job, list[dict[str, float]]] = {job: [] for job in jobs}
    for number in range(rounds):
        # What memory costs depends on the layout of the heap, by chance: so several processes are measured, not one.
        readers[SHARDKIT].close()
        readers[SHARDKIT] = Reader(SHARDKIT)
        shift = number % len(jobs)
        for job in jobs[shift:] + jobs[:shift]:
            times[job].append(ask("pass", job)["answer"])
    cpu = {job: statistics.median(t["cpu_s"] for t in found) for job, found in times.items()}
    wall = {job: statistics.median(t["wall_s"] for t in found) for job, found in times.items()}
    num_rows = next(iter(expected.values()))[0]
    raw_bytes = _size(folder, "raw")
    ours = cpu[Job(SHARDKIT, "balanced")]
    rows: list[tuple[Cell, ...]] = [
        (
            job.reader + (f", {job.num_threads} threads" if job.num_threads > 1 else ""),
            job.variant,
            _size(folder, job.variant) / raw_bytes,
            num_rows / cpu[job],
            raw_bytes / cpu[job] / 1e6,
            wall[job],
            statistics.median(t["faults"] for t in times[job]),
            cpu[job] / ours,
        )
        for job in sorted(jobs, key=lambda job: cpu[job])
    ]
    headers = ("reader", "files", "size", "rows/s a core", "MB/s a core", "wall s", "faults", "CPU time, default = 1")
    print_table(f"read, {kind.title}: {num_rows:,} rows, {raw_bytes / 1e6:.0f} MB of records", headers, rows)
    return _checks(kind, cpu)


def _checks(kind: Kind, cpu: dict[Job, float]) -> list[Check]:
    def ratio(theirs: str, ours: str) -> float | None:
        job = Job(TF_DATA, theirs)
        return cpu[job] / cpu[Job(SHARDKIT, ours)] if job in cpu else None

    found = [
        Check(f"read, {kind.title}: speed / tf.data, the same gzip files", ratio("balanced", "balanced"), kind.target),
        Check(f"read, {kind.title}: speed / tf.data, each its own default", ratio(TF_GZIP, "balanced"), kind.target),
    ]
    if kind.target_equal_level is not None:
        equal = ratio(TF_GZIP, "small")
        found.append(Check(f"read, {kind.title}: speed / tf.data, both level 6", equal, kind.target_equal_level))
    return found


def _size(folder: Path, variant: str) -> int:
    return sum(Path(path).stat().st_size for path in shard_files(folder, variant)[0])


def main() -> None:
    """Prints one table for each kind of data, the memory of the readers, then the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Where inputs and datasets go; they are kept.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="Times the usual number of rows.")
    parser.add_argument("--kinds", nargs="+", default=[k.name for k in KINDS], choices=[k.name for k in KINDS])
    parser.add_argument("--serve", choices=[SHARDKIT, TF_DATA], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, sys.stdin, sys.stdout)
        return
    if options.folder is None:
        parser.error("--folder is needed")
    print_machine("pyarrow", "isal", "zlib-ng", "tensorflow")
    names = [SHARDKIT, *([TF_DATA] if is_installed("tensorflow") else [])]
    if TF_DATA not in names:
        print("not installed here: tensorflow")
    checks = []
    for kind in (k for k in KINDS if k.name in options.kinds):
        prepare(kind, options.folder / kind.name, options.scale)
        readers = {name: Reader(name) for name in names}
        try:
            checks += run(kind, options.folder / kind.name, readers, options.rounds)
            any_job = {"folder": str(options.folder / kind.name), "num_batch_rows": kind.num_batch_rows}
            peaks = [
                f"{name} {reader.ask(what='pass', job=Job(name, 'balanced'), min_s=0, **any_job)['peak_mib']:.0f} MiB"
                for name, reader in readers.items()
            ]
            print(f"peak memory of a reader, Python and imports included: {', '.join(peaks)}")
        finally:
            for reader in readers.values():
                reader.close()
    print_checks(checks)


if __name__ == "__main__":
    main()
