"""What the trainer is killed over: a small dataset, a model with all that is hard to resume, and what a run came to."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from train.distribution.environment import import_quietly

NUM_ROWS = 2_200
GLOBAL_BATCH_SIZE = 64
CHECKPOINT_EVERY = 5

# Moving averages, random masks and enough weights that a checkpoint takes a while to write.
MODEL = """
import keras

def build(features, statistics, label):
    x = keras.Input([], name="x")
    hidden = keras.layers.Reshape([1])(x)
    hidden = keras.layers.Dense(512, activation="relu")(hidden)
    hidden = keras.layers.BatchNormalization(SYNCHRONIZED)(hidden)
    hidden = keras.layers.Dropout(0.5)(hidden)
    hidden = keras.layers.Dense(512, activation="relu")(hidden)
    hidden = keras.layers.Dropout(0.5)(hidden)
    return keras.Model([x], keras.layers.Dense(label.num_outputs)(hidden))
"""
_INDEX = re.compile(r"step-(\d+)\.index")
_WHOLE = re.compile(r"checkpoint|step-\d+\.(index|data-\d+-of-\d+)")


class Strategy(NamedTuple):
    """How a run is arranged.

    Attributes:
        options: That ask for it.
        num_processes: Of the run under a supervisor; 0 for one that has none.
        contents: Returns what a run came to, which must be what the unbroken one did; an asynchronous strategy
            takes what it promises, such as `work`.
    """

    options: tuple[str, ...]
    num_processes: int
    contents: Callable[[Path], dict[str, str]]


def train_command(dataset: Path, output: Path, *options: object) -> list[str]:
    """Returns the command of one run."""
    return [sys.executable, "-m", "shardkit", "train", str(dataset), "--output", str(output), *map(str, options)]


def options_of(model: Path, num_epochs: int) -> tuple[str, ...]:
    """Returns the options of all runs that are killed, whatever their strategy is."""
    sizes = ("--epochs", num_epochs, "--global-batch-size", GLOBAL_BATCH_SIZE, "--checkpoint-every", CHECKPOINT_EVERY)
    learning = ("--optimizer", "adamw", "--schedule", "cosine", "--ema", 0.99)
    return tuple(map(str, ("--label", "label", "--model", f"{model}:build", *learning, *sizes)))


def write_model(path: Path, *, is_synchronized: bool) -> Path:
    """Writes the model's file."""
    path.write_text(MODEL.replace("SYNCHRONIZED", "synchronized=True" if is_synchronized else ""))
    return path


def convert(folder: Path, name: str, rows: list[dict[str, object]], *options: str) -> Path:
    """Makes a dataset of rows with `shardkit convert`."""
    source, dataset = folder / f"{name}.csv", folder / name
    with source.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    command = [sys.executable, "-m", "shardkit", "convert", str(source), str(dataset), "--num-shards", "4", *options]
    subprocess.run(command, check=True, capture_output=True)
    return dataset


def make_dataset(folder: Path) -> Path:
    """Makes the dataset of the runs that are killed."""
    draw = random.Random(0)
    rows: list[dict[str, object]] = []
    for _ in range(NUM_ROWS):
        x, color = draw.uniform(-1, 1), draw.choice("rgb")
        rows.append({"x": x, "color": color, "label": "yes" if (x > 0) != (color == "r") else "no"})
    return convert(folder, "data", rows, "--split", "train=0.9", "--split", "test=0.1", "--seed", "3")


def checkpoint_steps(folder: Path) -> list[int]:
    """Returns the steps after which there is a checkpoint, ascending."""
    found = (_INDEX.fullmatch(name) for name in _names(folder))
    return sorted(int(match.group(1)) for match in found if match)


def partial_files(folder: Path) -> list[str]:
    """Returns what belongs to no whole checkpoint."""
    names = _names(folder)
    whole = {f"step-{step}" for step in checkpoint_steps(folder)}
    return [n for n in names if not _WHOLE.fullmatch(n) or (n != "checkpoint" and n.partition(".")[0] not in whole)]


def tensors(folder: Path) -> dict[str, Any]:
    """Returns every tensor of the newest checkpoint by name, but how often this process saved."""
    import_quietly()
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / f"step-{checkpoint_steps(folder)[-1]}"))
    names = sorted(reader.get_variable_to_shape_map())
    return {n: reader.get_tensor(n) for n in names if "OBJECT_GRAPH" not in n and "save_counter" not in n}


def contents(output: Path) -> dict[str, str]:
    """Returns a hash of each tensor of the last and of the best checkpoint, and of what each epoch measured."""
    found = {}
    for folder in (output / "checkpoints", output / "best"):
        found[f"{folder.name} step"] = str(checkpoint_steps(folder)[-1])
        for name, value in tensors(folder).items():
            described = f"{value.dtype} {value.shape}".encode()
            found[f"{folder.name} {name}"] = hashlib.sha256(described + value.tobytes()).hexdigest()
    for epoch, step, train, validation in measured(output):
        found[f"epoch {epoch} train"] = json.dumps([step, train])
        found[f"epoch {epoch} validation"] = json.dumps(validation)
    return found


def work(output: Path) -> dict[str, str]:
    """Returns which epochs were made, of how many steps each: what an asynchronous strategy promises."""
    return {f"epoch {epoch}": str(step) for epoch, step, *_ in measured(output)}


def digest(contents: dict[str, str]) -> str:
    """Returns one hash of it all."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def measured(output: Path) -> list[list[Any]]:
    """Returns what each epoch says, without its times."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [[line["epoch"], line["step"], line["train"], line["validation"]] for line in lines]


def step_s(output: Path) -> float:
    """Returns the seconds that a step takes, from what the epochs of an unbroken run say."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return sorted(line["step_ms"] for line in lines)[len(lines) // 2] / 1000


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


STRATEGIES = {
    "single": Strategy(("--strategy", "single"), 0, contents),
    "mirrored": Strategy(("--strategy", "mirrored", "--replicas", "2"), 0, contents),
    "workers": Strategy(("--workers-per-host", "2"), 2, contents),
    # The chief, one parameter server and two workers.
    "servers": Strategy(("--strategy", "parameter-server", "--workers-per-host", "2"), 4, work),
}
