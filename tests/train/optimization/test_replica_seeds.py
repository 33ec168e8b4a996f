"""Dropout on several replicas: each draws a mask of its own, and what is saved is that of all of them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from shardkit.features import make_feature
from tests.support.paths import ROOT
from tests.support.training.outputs import assert_same, weights
from tests.support.training.workers import run_workers

pytestmark = pytest.mark.full

PROGRAM = ROOT / "tests/support/training/replica_masks.py"
NUM_STEPS = 3

# Learns something from two examples of two classes only where each of them sees a mask of its own.
MODEL = """
import keras

def build(features, statistics, label):
    x = keras.Input([], name="x")
    ones = keras.layers.RepeatVector(64)(keras.layers.Reshape([1])(x))
    dropped = keras.layers.Dropout(0.5, noise_shape=[1, 64])(keras.layers.Flatten()(ones))
    return keras.Model([x], keras.layers.Dense(label.num_outputs, kernel_initializer="zeros")(dropped))
"""


def test_each_replica_draws_its_own_mask_and_all_keep_the_same_state(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "out.npz")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "out.npz") as stored:
        found = dict(stored)
    masks = {name: tuple(mask.flatten()) for name, mask in found.items() if "mask" in name}
    for step in range(NUM_STEPS):
        assert masks[f"2/0/mask/{step}"] == masks[f"1/0/mask/{step}"]
        assert set(masks[f"1/0/mask/{step}"]) == {0.0, 2.0}
    assert len(set(masks.values())) == 2 * NUM_STEPS
    assert found["1/0/state"][1] == NUM_STEPS
    for replica in (0, 1):
        np.testing.assert_array_equal(found[f"2/{replica}/state"], found["1/0/state"])


@pytest.mark.slow
@pytest.mark.campaign
def test_workers_draw_what_replicas_draw_and_not_what_the_others_do(write, tmp_path) -> None:
    features = (make_feature("x", "float64"), make_feature("label", "bool"))
    dataset = write(features, {"train": [{"x": 1.0, "label": i == 0} for i in range(2)]}, num_shards=1)
    (tmp_path / "model.py").write_text(MODEL)
    settings = (
        dataset, "--label", "label", "--model", f"{tmp_path}/model.py:build", "--optimizer", "sgd", "--momentum", 0,
        "--learning-rate", 1, "--warmup-steps", 0, "--epochs", 1, "--global-batch-size", 2, "--output",
    )  # fmt: skip
    mirrored = ("--strategy", "mirrored", "--replicas", 2)
    run_workers(1, *settings, tmp_path / "replicas", *mirrored, folder=tmp_path)
    run_workers(2, *settings, tmp_path / "workers", folder=tmp_path)
    run_workers(2, *settings, tmp_path / "local", "--sync-every", 1, folder=tmp_path)
    assert_same(tmp_path / "replicas", tmp_path / "workers")
    for name in ("workers", "local"):
        (kernel,) = (v for v in weights(tmp_path / name).values() if v.shape == (64, 2))
        assert np.abs(kernel).max() > 0.01
