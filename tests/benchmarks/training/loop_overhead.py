"""What the trainer's loop costs a step, beside a bare `tf.function` that does the same step over and over.

    python -m tests.benchmarks.training.loop_overhead --steps 2000

A table of 20 numbers and a model of one dense layer: a step does next to nothing, so the time of a step is what stands
around it. "bare" calls the compiled step with one batch that is there already and reads its sums one step later;
"loop" is `StepLoop` with that same batch; "loop and reader" reads a new batch each step. One worker, and two
workers that are processes of this host. Bare and loop take turns in the same process; medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.benchmarks.measure import Check, print_checks, print_machine, print_table

NUM_COLUMNS = 20
BATCH_SIZE = 64
NUM_ROWS = 64_000
TARGET_MS = {1: 0.1, 2: 3.0}
MODEL = """
import keras

def build(features, statistics, label):
    inputs = {f.name: keras.Input([], name=f.name) for f in features}
    columns = keras.layers.Concatenate()([keras.layers.Reshape([1])(x) for x in inputs.values()])
    return keras.Model(inputs, keras.layers.Dense(1)(columns))
"""


def write_rows(folder: Path) -> None:
    """Makes the dataset and the model."""
    from shardkit.features import arrow_schema, make_feature
    from shardkit.testing import write_dataset

    features = (*tuple(make_feature(f"x{i}", "float32") for i in range(NUM_COLUMNS)), make_feature("y", "float32"))
    draw = np.random.default_rng(0)
    columns = [pa.array(draw.standard_normal(NUM_ROWS, np.float32)) for _ in features]
    data = pa.record_batch(columns, arrow_schema(features))
    write_dataset(folder / "rows", features, {"train": data}, num_shards=4, block_examples=4000)
    (folder / "model.py").write_text(MODEL)


def measure(folder: Path, num_steps: int, num_rounds: int) -> dict[str, float]:
    """Returns the milliseconds a step of each, in this worker."""
    from train.distribution.environment import import_quietly

    import_quietly()
    import tensorflow as tf

    from train.distribution.cluster import cluster_from_environment
    from train.distribution.devices import Agreement
    from train.distribution.heartbeat import Heartbeat
    from train.distribution.signals import Stop
    from train.loop.epoch_loop import Hooks, LoopParts
    from train.loop.step_loop import StepLoop
    from train.options.config import TrainOptions
    from train.reporting.metric_sums import zero_sums
    from train.reporting.metrics import Meter
    from train.reporting.report import Reporter
    from train.reporting.tensorboard import Profiler
    from train.runs.checkpoints import Checkpoints, Restored, Trained
    from train.runs.request import resolve
    from train.setup import make_steps, set_up

    cluster = cluster_from_environment(os.environ)
    options = TrainOptions(
        dataset=str(folder / "rows"),
        label="y",
        output=str(folder / "run"),
        model=f"{folder}/model.py:build",
        global_batch_size=BATCH_SIZE,
        epochs=-(-num_steps * BATCH_SIZE // NUM_ROWS),
        learning_rate=1e-4,
    )
    setup = set_up(resolve(options), cluster)
    plan, model = setup.plan, setup.bundle.model
    steps = make_steps(setup)
    batch = next(iter(setup.input.training(plan.position(0))))
    go_on = tf.constant(0.0)

    def bare() -> None:
        before = None
        for _ in range(plan.num_steps):
            now = steps.train(batch, go_on)
            if before is not None:
                before.numpy()
            before = now

    def loop(batches: Any) -> None:
        layout = setup.objective.layout
        trained = Trained(model, setup.updater.state, layout.num_sums)
        parts = LoopParts(
            plan=plan,
            layout=layout,
            checkpoints=Checkpoints(folder / "checkpoints", trained, print, is_chief=False),
            checkpoint_every=None,
            reporter=Reporter(),
            profiler=Profiler(None, folder, plan.num_steps, print),
            heartbeat=Heartbeat(None),
            stop=Stop(),
            meet=Agreement(setup.devices, ""),
            hooks=Hooks(),
        )
        StepLoop(parts, Meter(), steps, batches, None).run(Restored(0, zero_sums(layout)))

    ways = {
        "bare": bare,
        "loop": lambda: loop(islice(repeat(batch), plan.num_steps)),
        "loop and reader": lambda: loop(setup.input.training(plan.position(0))),
    }
    milliseconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(num_rounds + 1):
        for name, way in ways.items():
            started = time.monotonic()
            way()
            if round_:
                milliseconds[name].append((time.monotonic() - started) / plan.num_steps * 1000)
    return {name: statistics.median(values) for name, values in milliseconds.items()}


def _times(target_ms: float, milliseconds: dict[str, float]) -> float:
    return target_ms / max(milliseconds["loop"] - milliseconds["bare"], 1e-6)


def main() -> int:
    """Prints the table and the target checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(arguments.worker, arguments.steps, arguments.rounds)))
        return 0
    from tests.support.training.workers import start_processes

    print_machine()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder)
        settings = ("--steps", arguments.steps, "--rounds", arguments.rounds)
        for count in TARGET_MS:
            command = [sys.executable, "-m", __spec__.name, "--worker", name, *map(str, settings)]
            processes = start_processes(count, command, folder=folder)
            found[count] = json.loads(next(process.communicate()[0] for process in processes).splitlines()[-1])
    rows = [
        [str(count), *(f"{ms[name]:.3f}" for name in ms), f"{ms['loop'] - ms['bare']:.3f}"]
        for count, ms in found.items()
    ]
    print_table("milliseconds a step", ["workers", *found[1], "overhead of the loop"], rows)
    print_checks(
        [
            Check(f"{count} workers: {TARGET_MS[count]} ms / overhead a step", _times(TARGET_MS[count], ms), 1)
            for count, ms in found.items()
        ]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
