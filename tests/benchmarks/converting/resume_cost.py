"""Kills conversions at random moments and in every phase, and measures what finishing them reads again.

    python -m tests.benchmarks.converting.resume_cost --folder /some/disk --megabytes 200 --trials 5 --seed 1

Inputs are made first: one CSV file, one Parquet file of 100 row groups, 2,000 images, six CSV files in gzip, the CSV
once more with duplicates removed. Each is converted with one and with two workers, undisturbed first; then the whole
process group is killed with SIGKILL and the same command finishes it under `strace`, which counts every byte that the
kernel gave out of the inputs. The promise: no more than what was left, 5 % of all input, and one input split a worker;
and the bytes of all shards and of the manifest but its `created` block are those of the undisturbed run. Ends with
code 1 if it breaks.
"""

from __future__ import annotations

import argparse
import gzip
import io
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.benchmarks.converting.resume_trials import (
    Conversion,
    Trial,
    contents,
    has_strace,
    input_bytes,
    phases,
    random_moment,
    run_traced,
    try_once,
)
from tests.benchmarks.measure import print_machine, print_table

MB = 1_000_000
CHUNK_ROWS = 20_000
NUM_IMAGES = 2_000
SHARDS = ("--num-shards", "10", "--split", "train=0.7", "--split", "test=0.3")


def csv_chunks(num_bytes: int, seed: int) -> Iterator[str]:
    """Yields lines of CSV; the header first."""
    rng = np.random.default_rng(seed)
    yield "id,x,y,word,when\n"
    written = first = 0
    while written < num_bytes:
        x, y = rng.random(CHUNK_ROWS), rng.integers(0, 10**9, CHUNK_ROWS)
        rows = zip(range(first, first + CHUNK_ROWS), x.tolist(), y.tolist(), strict=True)
        text = "".join(f"{i},{a:.9f},{b},word {b % 997},2024-01-{b % 28 + 1:02d}\n" for i, a, b in rows)
        written, first = written + len(text), first + CHUNK_ROWS
        yield text


def write_csv(path: Path, num_bytes: int, seed: int) -> None:
    """Writes one CSV file, in gzip if the name says so."""
    with gzip.open(path, "wt", compresslevel=3) if path.suffix == ".gz" else path.open("w") as file:
        file.writelines(csv_chunks(num_bytes, seed))


def write_parquet(path: Path, num_bytes: int, seed: int) -> None:
    """Writes one Parquet file of 100 row groups."""
    rng = np.random.default_rng(seed)
    num_rows = num_bytes // 100 // 24
    schema = pa.schema({"id": pa.int64(), "x": pa.float64(), "y": pa.float64()})
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in range(100):
            ids = np.arange(group * num_rows, (group + 1) * num_rows)
            writer.write_table(pa.table({"id": ids, "x": rng.random(num_rows), "y": rng.random(num_rows)}, schema))


def write_images(folder: Path, seed: int) -> None:
    """Writes JPEG files of about 18 KB in ten class folders."""
    rng = np.random.default_rng(seed)
    for number in range(NUM_IMAGES):
        target = folder / f"class{number % 10}" / f"{number:05d}.jpg"
        target.parent.mkdir(exist_ok=True)
        pixels = Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).resize((224, 224))
        buffer = io.BytesIO()
        pixels.save(buffer, "JPEG", quality=92)
        target.write_bytes(buffer.getvalue())


def make_inputs(folder: Path, megabytes: int, seed: int) -> dict[str, Path]:
    """Writes all inputs and returns their folders by name."""
    found = {name: folder / name for name in ("csv", "parquet", "images", "gzip")}
    for path in found.values():
        path.mkdir(parents=True)
    write_csv(found["csv"] / "rows.csv", megabytes * MB, seed)
    write_parquet(found["parquet"] / "rows.parquet", megabytes * MB, seed)
    write_images(found["images"], seed)
    for number in range(6):
        write_csv(found["gzip"] / f"{number}.csv.gz", megabytes * MB // 8, seed + number)
    return found


def conversions(inputs: dict[str, Path]) -> Iterator[Conversion]:
    """Yields everything that is converted."""
    for num_workers in (1, 2):
        for name, source in inputs.items():
            yield Conversion(name, source, SHARDS, num_workers)
        yield Conversion("csv --dedup", inputs["csv"], (*SHARDS, "--dedup"), num_workers)


def run_trials(conversion: Conversion, folder: Path, num_trials: int, rng: random.Random) -> Iterator[Trial]:
    """Yields the trials of one conversion, after an undisturbed run."""
    destination = folder / "out"
    started = time.perf_counter()
    clean_bytes = run_traced(conversion, destination, folder / "traces")
    seconds = time.perf_counter() - started
    wanted, total = contents(destination), input_bytes(conversion.source)
    shutil.rmtree(destination)
    name = f"{conversion.name}, {conversion.num_workers} worker{'s' * (conversion.num_workers > 1)}"
    print(f"\n{name}: {total / MB:.1f} MB; undisturbed it reads {clean_bytes / total:.3f} of that in {seconds:.1f} s")
    moments = list(phases(destination, conversion))
    for number in range(len(moments) + num_trials):
        if number < len(moments):
            moment, condition = moments[number], phases(destination, conversion)[moments[number]]
        else:
            moment, condition = random_moment(rng, seconds)
        trial = try_once(conversion, folder, moment, condition, wanted, clean_bytes)
        print(f"  {moment}: {_describe(trial)}", flush=True)
        if trial is not None:
            yield trial


def _describe(trial: Trial | None) -> str:
    if trial is None:
        return "finished before it could be killed"
    work = trial.work
    return (
        f"{work.num_finished} of {work.num_splits} splits done, {work.left_bytes / MB:.1f} MB left, "
        f"{trial.read_bytes / MB:.1f} MB read, {trial.allowed_bytes / MB:.1f} MB allowed, "
        f"{'the same bytes' if trial.is_same else 'OTHER BYTES'}{'' if trial.is_fine else '  BROKEN'}"
    )


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for inputs and outputs; a temporary one if not given")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--trials", type=int, default=5, help="random moments for each conversion, beside all phases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the name of a conversion")
    arguments = parser.parse_args()
    if not has_strace():
        parser.error("strace is needed to count what is read")
    print_machine("shardkit", "pyarrow", "apache-beam")
    rng = random.Random(arguments.seed)
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as work:
        inputs = make_inputs(Path(work, "inputs"), arguments.megabytes, arguments.seed)
        for conversion in conversions(inputs):
            if arguments.only in conversion.name:
                trials += run_trials(conversion, Path(work), arguments.trials, rng)
    rows = []
    for key in dict.fromkeys((t.conversion.name, t.conversion.num_workers) for t in trials):
        own = [t for t in trials if (t.conversion.name, t.conversion.num_workers) == key]
        # Beyond what was left, in parts of all input.
        again = max((t.read_bytes - t.work.left_bytes) / t.work.total_bytes for t in own)
        share = max(t.read_bytes / t.allowed_bytes for t in own)
        same = sum(t.is_same for t in own)
        fine = sum(t.is_fine for t in own)
        rows.append((key[0], key[1], len(own), same, f"{again:+.3f}", f"{share:.3f}", fine))
    headers = ("input", "workers", "killed", "same bytes", "worst again / input", "worst read / allowed", "as promised")
    print_table("resume costs", headers, rows)
    return not (trials and all(t.is_fine for t in trials))


if __name__ == "__main__":
    sys.exit(main())
