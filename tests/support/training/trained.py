"""A table, and runs that learn from it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardkit.features import Features, make_feature
from shardkit.testing import write_dataset
from tests.support.training import inprocess
from train.runs.run_folder import RunFolder

TABLE = (
    make_feature("id", "int64"),
    make_feature("x", "float64", nullable=True),
    make_feature("color", "string", nullable=True),
    make_feature("hour-of-day", "int64"),
    make_feature("when", "timestamp[us]", nullable=True),
    make_feature("vector", "float32", (2,)),
    make_feature("sides", "string", nullable=True),
    make_feature("size", "float64"),
)

MODEL = """
    import keras

    def build(features, statistics, label):
        x = keras.Input([], name="x")
        there = keras.Input([], name="x.present", dtype="bool")
        vector = keras.Input([2], name="vector")
        # What is absent is NaN, and no layer promises what it makes of that.
        scaled = keras.ops.where(there, (x - statistics["x"].mean) / statistics["x"].std, 0.0)
        flag = keras.ops.cast(there, "float32")
        columns = [keras.layers.Reshape([1])(scaled), keras.layers.Reshape([1])(flag), vector]
        hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()(columns))
        hidden = keras.layers.Dropout(0.5)(hidden)
        return keras.Model([x, there, vector], keras.layers.Dense(label.num_outputs)(hidden))
"""


def make_rows(num_rows: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Returns rows of `TABLE`."""
    draw = random.Random(seed)
    made = []
    for i in range(num_rows):
        x, color = draw.uniform(-1, 1), draw.choice(["red", "green", "blue"])
        sides = "many" if (x > 0) != (color == "red") else "few"
        made.append(
            {"id": i, "x": None if i % 10 == 9 else x, "color": None if i % 17 == 3 else color,
             "hour-of-day": draw.randrange(24), "when": None if i % 13 == 2 else 1_600_000_000_000_000 + i * 10**9,
             "vector": [draw.gauss(0, 1), x], "sides": sides, "size": 1000 + 100 * x + (50 if color == "red" else 0)}
        )  # fmt: skip
    return made


def save(folder: Path, features: Features, splits: dict[str, list[dict[str, Any]]]) -> Path:
    """Writes a dataset and returns its folder."""
    batches = {
        name: pa.record_batch(
            [pa.array([r[f.name] for r in own], f.arrow_type) for f in features], names=[f.name for f in features]
        )
        for name, own in splits.items()
    }
    write_dataset(folder, features, batches, block_examples=16)
    return folder


def train(dataset: Path, output: Path, **settings: Any) -> RunFolder:
    """Trains and returns the folder."""
    inprocess.train(dataset, output, **{"epochs": 3, "global_batch_size": 20, "learning_rate": 1e-2} | settings)
    return RunFolder(str(output))
