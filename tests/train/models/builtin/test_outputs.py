"""What models of sequences give: padding changes nothing, long ones stay finite, and they can be saved."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from train.models.builtin.sequence import signal_model
from train.models.builtin.text import token_model
from train.options.config import LabelSpec

pytestmark = pytest.mark.full

TWO = LabelSpec(name="y", task="classification", classes=("a", "b"), class_names=("a", "b"))


def test_padding_changes_nothing_and_an_empty_text_is_a_text() -> None:
    model = token_model(9, TWO)
    tokens = np.array([[2, 3, 4], [5, 0, 0], [0, 0, 0]])
    padded = np.pad(tokens, [(0, 0), (0, 13)])
    np.testing.assert_allclose(model(tokens), model(padded), atol=1e-6)
    assert np.isfinite(model(padded)).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_long_sequences_have_finite_outputs_in_half_precision(policy) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        tokens, signal = token_model(9, TWO), signal_model(2, TWO)
    finally:
        keras.config.set_dtype_policy("float32")
    found = tokens(np.ones((2, 3000), np.int32))
    assert found.dtype == tf.float32
    assert np.isfinite(found).all()
    values, mask = np.full((2, 3000, 2), 8.0), np.repeat([[1.0], [0.0]], 3000, axis=1)
    assert np.isfinite(signal({"values": values, "mask": mask})).all()


def test_models_of_sequences_can_be_saved_and_loaded(tmp_path) -> None:
    tokens = np.array([[2, 3, 0]])
    signal = {"values": np.ones((1, 4, 2)), "mask": np.array([[1.0, 1.0, 1.0, 0.0]])}
    for model, inputs in ((token_model(9, TWO), tokens), (signal_model(2, TWO), signal)):
        model.save(tmp_path / "m.keras")
        np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "m.keras")(inputs), model(inputs))


def test_padding_of_a_series_changes_nothing() -> None:
    model = signal_model(3, TWO)
    values, mask = np.random.default_rng(0).normal(size=(2, 8, 3)), np.ones((2, 8))
    more = {"values": np.pad(values, [(0, 0), (0, 24), (0, 0)]), "mask": np.pad(mask, [(0, 0), (0, 24)])}
    np.testing.assert_allclose(model({"values": values, "mask": mask}), model(more), atol=1e-5)
