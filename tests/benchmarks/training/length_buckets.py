"""What length buckets of a training run save, and whether they cost accuracy.

    python -m tests.benchmarks.training.length_buckets --data sst_binary_train.csv --text sentence --label label

Converts one file of texts with labels, and trains the text model with `--length-buckets` and without, in turns, each
round with another seed. Padding is counted in what the model is given: positions of a batch that hold no word, of all
positions of an epoch. Examples a second are the median of all epochs but the first of each run, in which graphs are
made; seconds are those of the whole command, with the pass that counts the words.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.measure import Cell, Check, print_checks, print_machine, print_table

NONE, CHOSEN = "none", "auto"
WAYS: dict[str, Any] = {NONE: None, CHOSEN: "auto", "8,16,24,32": (8, 16, 24, 32)}
MAX_LOSS_OF_ACCURACY = 0.005


class Epochs(NamedTuple):
    """What a run came to.

    Attributes:
        examples_per_s: Of each epoch but the first.
        accuracy: Of the validation split, after the last epoch.
        seconds: Of the whole command.
    """

    examples_per_s: list[float]
    accuracy: float
    seconds: float


def train(settings: list[str], output: Path) -> Epochs:
    """Trains in a process of its own."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "shardkit", "train", *settings, "--output", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - started
    lines: list[dict[str, Any]] = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return Epochs([line["examples_per_s"] for line in lines[1:]], lines[-1]["validation"]["accuracy"], seconds)


def look(options: dict[str, Any]) -> tuple[int, float]:
    """Returns how many lengths the batches of an epoch have, and the share of their positions that is padding."""
    from train.options.config import TrainOptions
    from train.options.step_plan import Position
    from train.runs.request import resolve
    from train.setup import set_up

    setup = set_up(resolve(TrainOptions(**options, epochs=1)))
    shapes, num_words, num_positions = set(), 0, 0
    for batch in setup.input.training(Position(0, 0)):
        tokens = batch.inputs["tokens"].numpy()
        shapes.add(tokens.shape)
        num_words += int(np.count_nonzero(tokens))
        num_positions += tokens.size
    return len(shapes), 1 - num_words / num_positions


def main() -> int:
    """Prints the table and the target checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="file of texts and labels")
    parser.add_argument("--text", required=True, help="column of the texts")
    parser.add_argument("--label", required=True, help="column of the labels")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--global-batch-size", type=int, default=128)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print_machine("tensorflow", "keras")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        convert = ("convert", arguments.data, folder / "data", "--split", "train=0.9", "--split", "test=0.1")
        subprocess.run([sys.executable, "-m", "shardkit", *map(str, convert)], check=True, capture_output=True)
        fixed = [str(folder / "data"), "--model", "text", "--features", arguments.text, "--label", arguments.label]
        fixed += ["--epochs", str(arguments.epochs), "--global-batch-size", str(arguments.global_batch_size)]
        runs: dict[str, list[Epochs]] = {way: [] for way in WAYS}
        names = list(WAYS)
        for number in range(arguments.rounds):
            shift = number % len(names)
            for way in (*names[shift:], *names[:shift]):
                buckets = [] if way == NONE else ["--length-buckets", way]
                runs[way].append(train([*fixed, *buckets, "--seed", str(number)], folder / f"{number}-{way}"))
        seen = {}
        options = {"dataset": fixed[0], "output": str(folder / "none"), "label": arguments.label, "model": "text"}
        options |= {"features": (arguments.text,), "global_batch_size": arguments.global_batch_size}
        for way, asked in WAYS.items():
            seen[way] = look({**options, "length_buckets": asked})
    rates = {
        way: statistics.median([rate for run in found for rate in run.examples_per_s]) for way, found in runs.items()
    }
    accuracies = {way: [run.accuracy for run in found] for way, found in runs.items()}
    rows: list[list[Cell]] = [
        [
            way,
            seen[way][0],
            f"{seen[way][1]:.1%}",
            rates[way],
            f"{rates[way] / rates[NONE]:.2f}",
            f"{statistics.mean(accuracies[way]):.4f}",
            f"{min(accuracies[way]):.4f}-{max(accuracies[way]):.4f}",
            statistics.median([run.seconds for run in found]),
        ]
        for way, found in runs.items()
    ]
    header = "buckets | lengths | padding | examples/s | of none | test accuracy | from-to | seconds"
    print_table(
        f"{arguments.data.name}, {arguments.epochs} epochs in batches of {arguments.global_batch_size}, "
        f"{arguments.rounds} rounds",
        header.split(" | "),
        rows,
    )
    lost = statistics.mean(accuracies[NONE]) - statistics.mean(accuracies[CHOSEN])
    checks = [
        Check("share of positions that is no padding, auto", 1 - seen[CHOSEN][1], 0.9),
        Check("examples/s, auto / none", rates[CHOSEN] / rates[NONE], 1.3),
        Check(f"accuracy, auto - none + {MAX_LOSS_OF_ACCURACY}", MAX_LOSS_OF_ACCURACY - lost, 0),
    ]
    print_checks(checks)
    return int(any(c.measured is None or c.measured < c.target for c in checks))


if __name__ == "__main__":
    sys.exit(main())
