"""A loss that is no number: the error names the batch, what is odd in it, and lines that give exactly that batch."""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from inprocess import train

from shardkit.errors import UsageError
from shardkit.features import make_feature
from train.batch import Batch
from train.nonfinite import explain, look_at

FEATURES = (make_feature("key", "int64"), make_feature("x", "float32"), make_feature("y", "float32"))

MODEL = """
    import keras

    def build(features, statistics, label):
        x = keras.Input([], name="x")
        return keras.Model({"x": x}, keras.layers.Dense(1)(keras.layers.Reshape([1])(x)))
"""


@pytest.fixture
def dataset(write) -> Path:
    rows = [{"key": i, "x": math.inf if i in (41, 77) else i / 120, "y": i / 60} for i in range(120)]
    return write(FEATURES, {"train": rows})


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    return {"label": "y", "model": f"{tmp_path}/model.py:build", "global_batch_size": 10, "seed": 3, "epochs": 2}


def test_the_error_names_the_batch_the_input_and_the_row(dataset, tmp_path, settings) -> None:
    with pytest.raises(UsageError) as caught:
        train(dataset, tmp_path / "run", **settings)
    text = str(caught.value)
    found = re.search(r"at step (\d+) in batch (\d+) of 12 of epoch 1: .* no numbers: 'x' in rows? (\d+)", text)
    assert found is not None, text
    step, batch, row = map(int, found.groups())
    assert step == batch
    code = re.search(r"count from 0: (.*)\.$", text)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1].replace("; ", "\n"), names)  # noqa: S102 - the lines that the user is told to run
    given = names["batch"]
    assert isinstance(given, dict) or hasattr(given, "keys")
    bad = np.flatnonzero(~np.isfinite(given["x"]))  # type: ignore[index]
    assert bad[0] == row
    assert set(given["key"][bad]) <= {41, 77}  # type: ignore[index]


def test_the_stock_reader_names_them_too(dataset, tmp_path, settings) -> None:
    with pytest.raises(UsageError, match=r"of 12 of epoch 1: .* no numbers: 'x' in row.*--reader shardkit"):
        train(dataset, tmp_path / "run", reader="tfdata", **settings)


def test_a_batch_of_numbers_is_not_blamed() -> None:
    inputs = {"x": tf.constant([[1.0, -7e30], [2.0, 3.0]]), "n": tf.constant([1, 2])}
    findings = look_at(Batch(inputs, tf.zeros([2]), tf.ones([2])))
    why, advice = explain(findings)
    assert why == "all inputs in its batch are numbers, up to 7e+30 in 'x'"
    assert "--learning-rate" in advice


def test_rows_are_those_of_the_global_batch() -> None:
    values = np.zeros([20, 3], np.float32)
    values[[1, 4, 5, 6, 9, 11, 19], 2] = np.nan
    findings = look_at(Batch(tf.constant(values), tf.zeros([20]), tf.ones([20])), first_row=40)
    assert explain(findings)[0] == "inputs in its batch are no numbers: 'input' in rows 41, 44, 45, 46, 49 and 2 more"
    only = look_at(Batch({"n": tf.constant([1])}, tf.zeros([1]), tf.ones([1])))
    assert "cannot be the reason" in explain(only)[0]
