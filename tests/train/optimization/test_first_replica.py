"""What layers of several replicas remember is the first one's, in the metrics as in the checkpoint."""

from __future__ import annotations

import subprocess

import pytest

from shardkit.reading.splits import open_splits
from tests.support.training.inprocess import TABLE, table
from tests.support.training.workers import train_command
from train.runs.evaluate import evaluate
from train.runs.restore_model import restore_model
from train.runs.run_folder import RunFolder

pytestmark = pytest.mark.full

# Each replica's share of a batch is small, so that what it remembers differs much from what the other one does.
MODEL = """
import keras

def build(features, statistics, label):
    x = keras.Input([], name="x")
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="relu")(keras.layers.Reshape([1])(x)))
    return keras.Model([x], keras.layers.Dense(label.num_outputs)(hidden))
"""


@pytest.mark.slow
def test_what_is_validated_is_what_a_checkpoint_keeps(write, tmp_path) -> None:
    dataset = write(TABLE, {"train": table(300), "test": table(100, seed=1)})
    (tmp_path / "own.py").write_text(MODEL)
    settings = ("--label", "sides", "--model", f"{tmp_path}/own.py:build", "--epochs", 2, "--global-batch-size", 6)
    devices = ("--strategy", "mirrored", "--replicas", 2, "--output", tmp_path / "run")
    found = subprocess.run(
        train_command(dataset, *settings, *devices), capture_output=True, text=True, timeout=480, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "batch normalization sees one replica's share" in found.stderr
    folder = RunFolder(str(tmp_path / "run"))
    evaluated = evaluate(restore_model(folder), open_splits(str(dataset)), "test", 50)
    assert evaluated.metrics == pytest.approx(folder.read_metrics()[-1].validation, rel=1e-5)
