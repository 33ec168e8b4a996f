"""How much faster two workers train than one, with a model that keeps one core busy.

    python -m tests.benchmarks.training.worker_scaling --rounds 3
    python -m tests.benchmarks.training.worker_scaling --quick

Runs `shardkit train --workers-per-host 1` and `2` on the same generated dataset: 64 numbers an example and a network of
six dense layers of 512 (1.3 million weights, whose gradients the workers add up in every step). The environment gives
TensorFlow one thread to compute with in each process, so that one worker uses one core, and the second one the other.

Weak: each worker keeps its batch, the global one doubles. Strong: the global batch stays, each worker takes half of it.
"2 runs" is the bound: two runs of one worker at the same time that know nothing of each other, their rates added up;
what is missing there to 2 is the machine's, or its other users'. Rates are those of `metrics.jsonl`, without the first
epoch, in which the graph is traced; all take turns, and ratios are made within a round, then their median is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa

from tests.benchmarks.measure import Check, print_checks, print_machine, print_table

NUM_VALUES = 64
BATCH_SIZE, STEPS_PER_EPOCH, NUM_EPOCHS = 2048, 16, 4
QUICK_BATCH_SIZE, QUICK_EPOCHS = 128, 2
NUM_SHARDS = 8
SAMPLE_S = 0.25
TARGETS = {"weak": 1.8, "strong": 1.6}
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "OMP_NUM_THREADS": "1"}
MODEL = """
import keras

def build(features, statistics, label):
    values = x = keras.Input([64], name="values")
    for _ in range(6):
        x = keras.layers.Dense(512, activation="relu")(x)
    return keras.Model({"values": values}, keras.layers.Dense(label.num_outputs)(x))
"""


class Case(NamedTuple):
    """What is run at the same time.

    Attributes:
        num_workers: Of each run.
        num_batches: Of one worker's size that make a global batch.
        num_runs: At the same time.
    """

    num_workers: int
    num_batches: int
    num_runs: int = 1


ONE = "1 worker"
CASES = {ONE: Case(1, 1), "weak": Case(2, 2), "strong": Case(2, 1), "2 runs": Case(1, 1, 2)}


class Rates(NamedTuple):
    """What was measured.

    Attributes:
        waiting, communicating: Shares of the time.
        num_cores: CPU seconds a second in the second half of the time, start-up included in the first.
    """

    examples_per_s: float
    step_ms: float
    waiting: float
    communicating: float
    num_cores: float


def write_rows(folder: Path, num_rows: int) -> Path:
    """Makes the dataset and the model."""
    from shardkit.features import arrow_schema, make_feature
    from shardkit.testing import write_dataset

    features = (make_feature("values", "float32", (NUM_VALUES,)), make_feature("y", "float32"))
    schema, draw = arrow_schema(features), np.random.default_rng(0)
    values = pa.array(draw.standard_normal(num_rows * NUM_VALUES, np.float32))
    columns = [pa.FixedSizeListArray.from_arrays(values, NUM_VALUES), pa.array(draw.standard_normal(num_rows, "f4"))]
    rows = pa.record_batch([columns[0].cast(schema.field("values").type), columns[1]], schema)
    write_dataset(folder / "rows", features, {"train": rows}, num_shards=NUM_SHARDS, block_examples=4000)
    (folder / "model.py").write_text(MODEL)
    return folder / "rows"


def measure(folder: Path, case: Case, batch_size: int, num_epochs: int) -> Rates:
    """Returns the rates of one case."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        outputs = [Path(name) / str(i) for i in range(case.num_runs)]
        settings = ["--label", "y", "--task", "regression", "--model", folder / "model.py:build"]
        settings += ["--epochs", num_epochs, "--global-batch-size", batch_size * case.num_batches]
        settings += ["--workers-per-host", case.num_workers]
        runs = [_start("train", folder / "rows", *settings, "--output", output) for output in outputs]
        num_cores = _cores_until_end(runs)
        for run, output in zip(runs, outputs, strict=True):
            if run.wait():
                raise SystemExit(Path(f"{output}.log").read_text())
        lines = [json.loads(line) for out in outputs for line in (out / "metrics.jsonl").read_text().splitlines()[1:]]

    def mean(key: str) -> float:
        return statistics.mean(line[key] or 0.0 for line in lines)

    rate = mean("examples_per_s") * case.num_runs
    return Rates(rate, mean("step_ms"), mean("waiting_share"), mean("communication_share"), num_cores)


def _start(*arguments: object) -> psutil.Popen:
    command = [sys.executable, "-m", "shardkit", *map(str, arguments)]
    with Path(f"{arguments[-1]}.log").open("w") as said:
        return psutil.Popen(command, env=os.environ | ONE_THREAD, stdout=said, stderr=said)


def _cores_until_end(runs: Sequence[psutil.Popen]) -> float:
    samples = []
    while any(run.poll() is None for run in runs):
        samples.append((time.monotonic(), sum(map(_cpu_seconds, runs))))
        time.sleep(SAMPLE_S)
    half = [sample for sample in samples[len(samples) // 2 :] if sample[1]]
    steady = half[: max(2, len(half) - int(1 / SAMPLE_S))]
    (first_at, first_s), (last_at, last_s) = steady[0], steady[-1]
    return (last_s - first_s) / max(last_at - first_at, SAMPLE_S)


def _cpu_seconds(run: psutil.Popen) -> float:
    try:
        times = [process.cpu_times() for process in (run, *run.children(recursive=True))]
    except psutil.Error:
        return 0.0
    return sum(t.user + t.system for t in times)


def print_results(rounds: Sequence[dict[str, Rates]], batch_size: int, *, as_markdown: bool) -> dict[str, float]:
    """Prints a line a case and returns how many times as fast as one worker each is."""
    headers = ("case", "workers", "global batch", "examples/s", "times", "step ms", "waiting", "communicating", "cores")
    times = {name: statistics.median(r[name].examples_per_s / r[ONE].examples_per_s for r in rounds) for name in CASES}
    rows: list[tuple[Any, ...]] = []
    for name, case in CASES.items():
        middle = Rates(*(statistics.median(values) for values in zip(*(r[name] for r in rounds), strict=True)))
        shares = (f"{middle.waiting:.1%}", f"{middle.communicating:.1%}", f"{middle.num_cores:.2f}")
        workers = f"{case.num_workers}" if case.num_runs == 1 else f"{case.num_runs} x {case.num_workers}"
        rate = (f"{middle.examples_per_s:,.0f}", f"{times[name]:.2f}", f"{middle.step_ms:.0f}")
        rows.append((name, workers, f"{case.num_batches * batch_size:,}", *rate, *shares))
    if as_markdown:
        print(f"| {' | '.join(headers)} |\n|---|{'---:|' * (len(headers) - 1)}")
        print("".join(f"| {' | '.join(row)} |\n" for row in rows), end="")
    else:
        print_table(f"medians of {len(rounds)} rounds", headers, rows)
    return times


def main() -> None:
    """Prints the table and the target checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH_SIZE, help="Examples a step of one worker.")
    parser.add_argument("--epochs", type=int, default=NUM_EPOCHS, help="Of each run, 2 at least.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="One short round of small batches: shows that it runs.")
    parser.add_argument("--markdown", action="store_true", help="Print a table in Markdown and nothing else.")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.epochs, options.rounds = QUICK_BATCH_SIZE, QUICK_EPOCHS, 1
    if not options.markdown:
        print_machine("shardkit", "tensorflow", "keras")
    rounds: list[dict[str, Rates]] = []
    with tempfile.TemporaryDirectory() as name:
        write_rows(Path(name), 2 * options.batch * STEPS_PER_EPOCH)
        for _ in range(options.rounds):
            rounds.append({})
            for title, case in CASES.items():
                rounds[-1][title] = measure(Path(name), case, options.batch, options.epochs)
                print(f"{title}: {rounds[-1][title].examples_per_s:,.0f} examples/s", file=sys.stderr, flush=True)
    times = print_results(rounds, options.batch, as_markdown=options.markdown)
    if not options.markdown and not options.quick:
        print_checks([Check(f"examples/s of 2 workers / 1, {name}", times[name], t) for name, t in TARGETS.items()])


if __name__ == "__main__":
    main()
