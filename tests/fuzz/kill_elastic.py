"""Two workers of which one is lost twice at the same spot: the run goes on with one, and misses or repeats no example.

The model has one weight for each example, which starts at 0 and is drawn to the label of that example alone, by plain
SGD: after k updates it is `label * (1 - (1 - rate)**k)`. So every weight tells how often its example was trained on.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import numpy as np

from tests.fuzz.kill_inputs import checkpoint_steps, convert, tensors, train_command
from tests.fuzz.kill_runs import Run
from tests.fuzz.kill_trials import MAX_NOTICE_S

NUM_EXAMPLES = 600
GLOBAL_BATCH_SIZE = 60
STEPS_PER_EPOCH = NUM_EXAMPLES // GLOBAL_BATCH_SIZE
LEARNING_RATE = 3.0
# Of the way to the label that one update goes.
RATE = 2 * LEARNING_RATE / GLOBAL_BATCH_SIZE
CHECKPOINT_EVERY = 7
NUM_EPOCHS = 16
MAX_DIFFERENCE = 1e-6
GOING_ON = "going on with 1 worker from the last checkpoint"

COUNTING_MODEL = f"""
import keras

def build(features, statistics, label):
    number = keras.Input([], name="number", dtype="int64")
    one = keras.layers.CategoryEncoding({NUM_EXAMPLES}, output_mode="one_hot")(keras.layers.Reshape([1])(number))
    weights = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return keras.Model([number], weights(one))
"""


def make_counting_run(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Returns a dataset of numbered examples, and the options of a run of two workers that counts them."""
    folder.mkdir(parents=True, exist_ok=True)
    # As many of each, so that the label has the mean 0 and the deviation 1 that it is normalised by.
    rows: list[dict[str, object]] = [{"number": i, "y": 1.0 if i % 2 else -1.0} for i in range(NUM_EXAMPLES)]
    model = folder / "counting.py"
    model.write_text(COUNTING_MODEL)
    learning = ("--optimizer", "sgd", "--momentum", 0, "--schedule", "constant", "--warmup-steps", 0)
    sizes = ("--global-batch-size", GLOBAL_BATCH_SIZE, "--checkpoint-every", CHECKPOINT_EVERY, "--epochs", NUM_EPOCHS)
    options = ("--label", "y", "--model", f"{model}:build", *learning, "--learning-rate", LEARNING_RATE, *sizes)
    return convert(folder, "numbers", rows), (*map(str, options), "--workers-per-host", "2")


def times_trained_on(output: Path) -> np.ndarray:
    """Returns how often each example was trained on, as its own weight tells."""
    (weights,) = [v for v in tensors(output / "checkpoints").values() if v.shape == (NUM_EXAMPLES, 1)]
    return np.log1p(-np.abs(weights[:, 0].astype(np.float64))) / np.log1p(-RATE)


def lose_twice(run: Run, rng: random.Random) -> list[float]:
    """Kills worker 1 at a random step, and again before the workers are further; returns how late that was noticed."""
    step = rng.randrange(2 * CHECKPOINT_EVERY, (NUM_EPOCHS - 4) * STEPS_PER_EPOCH)
    worker = run.worker(1, 0)
    run.until(lambda: (worker.step or 0) >= step)
    first_s = run.signal(signal.SIGKILL, worker.pid)
    notices = [run.loss_said(first_s)[0] - first_s]
    worker = run.worker(1, 1)
    run.pause(rng.uniform(0, 3))
    second_s = run.signal(signal.SIGKILL, worker.pid)
    return [*notices, run.loss_said(second_s)[0] - second_s]


def lose_a_worker_twice(folder: Path, rng: random.Random) -> bool:
    """Runs unbroken and with losses, says what came of it, and returns whether it was as promised."""
    dataset, options = make_counting_run(folder)
    whole, cut = folder / "whole", folder / "cut"
    unbroken = Run(train_command(dataset, whole, *options), folder / "tmp")
    run = None
    try:
        codes = [unbroken.end()]
        run = Run(train_command(dataset, cut, *options, "--elastic", "--strategy", "multi-worker"), folder / "tmp")
        notices = lose_twice(run, rng)
        codes.append(run.end())
        left = run.survivors()[1]
    finally:
        for started in filter(None, (unbroken, run)):
            started.kill_all()
    losses = [text for _, text in run.said if "from the last checkpoint" in text]
    for text in losses:
        print(f"  {text}", flush=True)
    problems = [] if codes == [0, 0] else [f"exit codes {codes}: {run.said[-3:]}"]
    if not losses or GOING_ON not in losses[-1]:
        problems.append("it did not go on with one worker")
    if max(notices) > MAX_NOTICE_S:
        problems.append(f"noticed after {max(notices):.1f} s")
    if left:
        problems.append(f"{len(left)} processes are left")
    if not problems:
        problems += compare(whole, cut)
    print(f"elastic: {'; '.join(problems) or 'as promised'}", flush=True)
    return not problems


def compare(whole: Path, cut: Path) -> list[str]:
    """Says how often examples were trained on, and returns what differs from an unbroken run."""
    problems = []
    for name, output in (("unbroken", whole), ("elastic", cut)):
        times = times_trained_on(output)
        steps = checkpoint_steps(output / "checkpoints")[-1]
        print(f"  {name}: {steps} steps of {GLOBAL_BATCH_SIZE}, each of {NUM_EXAMPLES} examples trained on "
              f"{times.min():.4f} to {times.max():.4f} times in {NUM_EPOCHS} epochs", flush=True)  # fmt: skip
        if steps != NUM_EPOCHS * STEPS_PER_EPOCH or np.abs(times - NUM_EPOCHS).max() > 0.01:
            problems.append(f"{name}: {np.sum(np.abs(times - NUM_EPOCHS) > 0.01)} examples were lost or repeated")
    one, other = tensors(whole / "checkpoints"), tensors(cut / "checkpoints")
    difference = max(float(np.abs(one[name] - other[name]).max()) for name in one)
    print(f"  largest difference of a final tensor: {difference:.2g}", flush=True)
    if difference > MAX_DIFFERENCE:
        problems.append(f"final tensors differ by {difference:.2g}")
    return problems
