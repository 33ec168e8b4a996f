"""What local SGD saves on the way between workers, and what it costs in accuracy.

    python -m tests.benchmarks.training.local_sgd --data fashion-mnist --epochs 6

Converts the IDX files of Fashion-MNIST in a folder, and trains the same model on two workers of this host: with
gradients added up in every step, and with weights averaged every 1 and every 8 steps. Each run has a network of its
own (`unshare`), so the bytes on its loopback device are all that its workers sent each other: weights or gradients,
sums of the metrics, evaluation and heartbeats. The initial meeting counts, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.measure import Check, print_checks, print_machine, print_table

NUM_WORKERS = 2
SYNC_EVERY = (None, 1, 8)
MAX_LOSS_OF_ACCURACY = 0.01
MODEL = """
import keras
from keras import layers

def build(features, statistics, label):
    image = keras.Input([28, 28], dtype="uint8", name="image")
    x = layers.Flatten()(layers.Rescaling(1 / 255)(image))
    x = layers.Dense(128, activation="relu")(x)
    return keras.Model({"image": image}, layers.Dense(label.num_outputs)(x))
"""


class Run(NamedTuple):
    """What a run came to.

    Attributes:
        accuracy: Of the validation split, after the last epoch.
        train_s: Of all epochs.
    """

    num_bytes: int
    num_steps: int
    accuracy: float
    train_s: float

    @property
    def bytes_a_step(self) -> float:
        """Over the whole run."""
        return self.num_bytes / self.num_steps


def train(folder: Path, every: int | None, model: str, epochs: int, batch_size: int) -> Run:
    """Trains in a network of its own."""
    output = folder / f"every-{every}"
    settings = [folder / "data", "--label", "label", "--model", model, "--epochs", epochs, "--output", output]
    settings += ["--global-batch-size", batch_size]
    settings += [] if every is None else ["--sync-every", every]
    inside = [sys.executable, "-m", __spec__.name, "--inside", str(folder), *map(str, settings)]
    apart = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    out = subprocess.run([*apart, *inside], stdout=subprocess.PIPE, check=True, text=True).stdout
    lines: list[dict[str, Any]] = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return Run(
        num_bytes=int(out.splitlines()[-1]),
        num_steps=lines[-1]["step"],
        accuracy=lines[-1]["validation"]["accuracy"],
        train_s=sum(line["train_s"] for line in lines),
    )


def run_inside(folder: Path, settings: list[str]) -> None:
    """Runs the workers, and prints how many bytes came in on the loopback device."""
    from tests.support.training.workers import finish_all, start_workers

    ended = finish_all(start_workers(NUM_WORKERS, *settings, folder=folder), timeout_s=3600)
    if any(code for code, _, _ in ended):
        sys.exit("".join(said for _, _, said in ended))
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    print(line.split()[1])


def main() -> int:
    """Prints the table and the target checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four IDX files")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--global-batch-size", type=int, default=128)
    parser.add_argument("--model", help="as shardkit train takes it; one hidden layer of 128 if not given")
    if sys.argv[1:2] == ["--inside"]:
        run_inside(Path(sys.argv[2]), sys.argv[3:])
        return 0
    arguments = parser.parse_args()
    print_machine("tensorflow", "keras")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        splits = ("--split", "train=0.85", "--split", "test=0.15")
        convert = ("convert", arguments.data, folder / "data", "--include", "*ubyte.gz", *splits)
        subprocess.run([sys.executable, "-m", "shardkit", *map(str, convert)], check=True, capture_output=True)
        model = arguments.model or f"{folder}/model.py:build"
        found = {
            every: train(folder, every, model, arguments.epochs, arguments.global_batch_size) for every in SYNC_EVERY
        }
    together = found[None]
    rows = [
        (
            "gradients, each step" if every is None else f"weights, every {every}",
            run.bytes_a_step,
            run.bytes_a_step / together.bytes_a_step,
            f"{run.accuracy:.4f}",
            run.train_s,
        )
        for every, run in found.items()
    ]
    print_table(
        f"{NUM_WORKERS} workers, {together.num_steps:,} steps of {arguments.global_batch_size}",
        ["sent", "bytes a step", "of gradients", "test accuracy", "seconds"],
        rows,
    )
    last = SYNC_EVERY[-1]
    assert last is not None
    saved = together.bytes_a_step / found[last].bytes_a_step
    lost = together.accuracy - found[last].accuracy
    print_checks(
        [
            Check(f"bytes with gradients / with weights every {last}", saved, last),
            Check(
                f"accuracy with weights every {last} - with gradients + {MAX_LOSS_OF_ACCURACY}",
                MAX_LOSS_OF_ACCURACY - lost,
                0,
            ),
        ]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
