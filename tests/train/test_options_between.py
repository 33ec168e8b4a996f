"""Whole runs with the options between loss and weights: they go on exactly, and give away what they promise."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.features import make_feature
from tests.support.training import inprocess
from tests.support.training.inprocess import Interrupted, Recorder
from train.options.config import TrainOptions
from train.reporting.metric_sums import summarize, zero_sums
from train.reporting.metrics import EpochMetrics
from train.runs.checkpoints import Checkpoints, Trained
from train.runs.request import resolve
from train.setup import Setup, make_steps, set_up

pytestmark = pytest.mark.full

TABLE = (make_feature("x", "float64"), make_feature("color", "string"), make_feature("sides", "string"))

DROPOUT_MODEL = """
    import keras

    def build(features, statistics, label):
        x = keras.Input([], name="x")
        hidden = keras.layers.Dense(16, activation="relu", kernel_regularizer="l2")(keras.layers.Reshape([1])(x))
        hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.Dropout(0.5)(hidden)
        return keras.Model([x], keras.layers.Dense(label.num_outputs, dtype="float32")(hidden))
"""

EVERYTHING = {
    "optimizer": "sgd", "schedule": "linear", "warmup_steps": 3, "clip_norm": 0.5, "accumulate": 3, "ema": 0.9,
    "prune": 0.5, "precision": "float16", "weight_decay": 0.01, "learning_rate": 0.05,
}  # fmt: skip

SETTINGS = {"label": "sides", "epochs": 2, "global_batch_size": 30, "checkpoint_every": 4}


def table(num_rows: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(num_rows):
        x, color = draw.uniform(-1, 1), draw.choice(["red", "green", "blue"])
        rows.append({"x": x, "color": color, "sides": "many" if (x > 0) != (color == "red") else "few"})
    return rows


@pytest.fixture
def dataset(write) -> Path:
    return write(TABLE, {"train": table(300, 0), "test": table(101, 1)})


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "my_model.py").write_text(textwrap.dedent(DROPOUT_MODEL))
    return f"{tmp_path}/my_model.py:build"


def options(dataset: Path, output: Path, **typed: Any) -> TrainOptions:
    return TrainOptions(**{"dataset": str(dataset), "output": str(output), **SETTINGS, **typed})


def train(dataset: Path, output: Path, reporter: Recorder | None = None, **typed: Any) -> list[EpochMetrics]:
    return inprocess.train(dataset, output, reporter, **{**SETTINGS, **typed})


def stored(output: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(output / "checkpoints")))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in n}


def restored(dataset: Path, output: Path, **typed: Any) -> Setup:
    setup = set_up(resolve(options(dataset, output, **typed)))
    trained = Trained(setup.bundle.model, setup.updater.state, setup.objective.layout.num_sums)
    found = Checkpoints(output / "checkpoints", trained, print).restore_newest()
    assert found is not None
    return setup


def evaluate(setup: Setup) -> dict[str, float]:
    sums, steps = zero_sums(setup.objective.layout), make_steps(setup)
    for batch in setup.input.validation() or ():
        sums = sums + steps.evaluate(batch, tf.constant(0.0)).numpy()[:-1].astype(np.float64)
    return summarize(setup.objective.layout, sums)


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit_with_everything_at_once(dataset, tmp_path, model) -> None:
    settings = EVERYTHING | {"model": model}
    whole = train(dataset, tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        train(dataset, tmp_path / "cut", Recorder(14), **settings)
    resumed = train(dataset, tmp_path / "cut", resume=True, **settings)
    assert [(x.step, x.train, x.validation) for x in resumed] == [(x.step, x.train, x.validation) for x in whole]
    expected, found = stored(tmp_path / "whole"), stored(tmp_path / "cut")
    for part in ("loss_scale/scale", "averages/values/0", "pruning/masks/0"):
        assert any(part in name for name in expected)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        if "save_counter" not in name:
            np.testing.assert_array_equal(value, found[name], err_msg=name)


def test_a_run_cannot_go_on_with_another_optimizer(dataset, tmp_path) -> None:
    train(dataset, tmp_path / "run", epochs=1, clip_norm=1.0)
    with pytest.raises(UsageError, match=r"another clip norm.*1\.0 then, 2\.0 now"):
        train(dataset, tmp_path / "run", epochs=1, clip_norm=2.0, resume=True)
    with pytest.raises(UsageError, match=r'another optimizer.*"adamw" then, "lion" now'):
        train(dataset, tmp_path / "run", epochs=1, clip_norm=1.0, optimizer="lion", learning_rate=2e-3, resume=True)


def test_averaged_weights_are_what_is_validated(dataset, tmp_path) -> None:
    lines = train(dataset, tmp_path / "run", ema=0.99, learning_rate=0.05)
    setup = restored(dataset, tmp_path / "run", ema=0.99, learning_rate=0.05)
    model = setup.bundle.model
    last = evaluate(setup)
    averages = stored(tmp_path / "run")
    for i, variable in enumerate(model.trainable_variables):
        variable.assign(averages[f"optimizer/averages/values/{i}/.ATTRIBUTES/VARIABLE_VALUE"])
    assert evaluate(setup) == lines[-1].validation
    assert last != lines[-1].validation


def test_a_pruned_model_has_exactly_the_zeros_that_were_asked_for(dataset, tmp_path) -> None:
    settings = {"prune": 0.8, "ema": 0.9, "epochs": 4, "learning_rate": 0.02, "optimizer": "adam"}
    lines = train(dataset, tmp_path / "run", **settings)
    setup = restored(dataset, tmp_path / "run", **settings)
    for context in (None, setup.updater.averaged()):
        if context is not None:
            context.__enter__()
        for variable in setup.bundle.model.trainable_variables:
            num_zeros = int((variable.numpy() == 0).sum())
            if variable.name == "kernel":
                assert num_zeros == round(0.8 * variable.numpy().size)
            elif variable.name == "embeddings":
                assert num_zeros == 0
    assert lines[-1].validation is not None
    assert lines[-1].validation["accuracy"] > 0.8


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "learning_rate": 0.2},
        {"optimizer": "lion", "learning_rate": 2e-3},
        {"precision": "bfloat16", "learning_rate": 0.02},
        {"precision": "float16", "learning_rate": 0.02},
        {"xla": True, "learning_rate": 0.02},
        {"recompute": True, "learning_rate": 0.02},
    ],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()),
)
def test_a_table_is_learned_in_every_way(dataset, tmp_path, settings) -> None:
    lines = train(dataset, tmp_path / "run", epochs=5, checkpoint_every=None, **settings)
    assert lines[-1].validation is not None
    assert lines[-1].validation["accuracy"] > 0.85


def test_the_learning_rate_is_printed_with_its_arithmetic(dataset, tmp_path) -> None:
    reporter = Recorder()
    settings = {"epochs": 1, "learning_rate": 0.01, "scale_learning_rate": "linear", "global_batch_size": 64}
    train(dataset, tmp_path / "run", reporter, **settings)
    assert any("learning rate 0.0025 (0.01 x 0.25, scaled linearly" in t for t in reporter.texts)


def test_micro_batches_that_do_not_divide_are_refused(dataset, tmp_path) -> None:
    with pytest.raises(UsageError, match="--global-batch-size 28 or 32"):
        train(dataset, tmp_path / "run", accumulate=4)


@pytest.mark.parametrize(
    "body",
    [
        "    i = keras.Input([], name='color', dtype='string')\n"
        "    h = keras.layers.Hashing(8, output_mode='one_hot')(keras.layers.Reshape([1])(i))\n",
        "    i = keras.Input([], name='x')\n"
        "    as_text = lambda x: tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)[:, None]\n"
        "    h = keras.layers.Lambda(as_text, output_shape=(1,))(i)\n",
    ],
)
def test_a_model_that_xla_cannot_compile_is_explained(dataset, tmp_path, body) -> None:
    (tmp_path / "text.py").write_text(
        f"import keras\nimport tensorflow as tf\n\ndef build(f, s, label):\n{body}"
        "    return keras.Model(i, keras.layers.Dense(label.num_outputs)(h))\n"
    )
    with pytest.raises(UsageError, match="cannot be compiled with XLA"):
        train(dataset, tmp_path / "run", model=f"{tmp_path}/text.py:build", xla=True)
