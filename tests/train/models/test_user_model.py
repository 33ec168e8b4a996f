"""What is said when a model of the user's own fails: one sentence, and the line, however deep in a graph it lies."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

from shardkit.errors import UsageError
from train.models.user_model import call_user_code, load_build_function

pytestmark = pytest.mark.full

MODEL = """
import keras
import tensorflow as tf


class Raises(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            raise RuntimeError("no training here")
        return x


class Asserts(keras.layers.Layer):
    def call(self, x):
        tf.debugging.assert_less(x, -100.0, message="too large")
        return x


def build(features, statistics, label_spec):
    inputs = keras.Input([1])
    return keras.Model(inputs, {layer}()(inputs))
"""


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("Raises", ", line 9: RuntimeError: no training here. Correct the line that is named."),
        ("Asserts", ": InvalidArgumentError: assertion failed: [too large] [Condition x < y did not hold"),
    ],
)
def test_what_a_graph_raises_is_one_sentence(tmp_path: Path, layer: str, said: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.replace("{layer}", layer))
    model: keras.Model = load_build_function(f"{path}:build")((), {}, None)  # type: ignore[arg-type]
    step = tf.function(lambda x: model(x, training=True))
    with pytest.raises(UsageError) as caught:
        call_user_code(path, lambda: step(tf.ones([2, 1])).numpy())
    message = str(caught.value)
    assert message.startswith(f"the model file failed in {path}{said}")
    assert "\n" not in message
    assert "File" not in message
    assert len(message) < 400 + len(str(path))
