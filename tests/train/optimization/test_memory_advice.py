"""A device that is full: the error names a batch size that divides, and one that fits."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from tests.support.training.inprocess import TABLE, table, train
from train.optimization.memory_estimate import MemoryEstimate, advise, more_parts, smaller_batch

pytestmark = pytest.mark.full

# Needs more than any machine can address for more than 10 examples at a time.
GREEDY_MODEL = """
    import keras
    import tensorflow as tf

    class Greedy(keras.layers.Layer):
        def call(self, x):
            size = tf.where(tf.shape(x)[0] > 10, tf.constant(2**47, tf.int64), 16)
            return x + tf.reduce_sum(tf.random.uniform(tf.stack([size]))) * 0.0

    def build(features, statistics, label):
        count = keras.Input([], name="count")
        hidden = Greedy()(keras.layers.Reshape([1])(count))
        return keras.Model(count, keras.layers.Dense(label.num_outputs)(hidden))
"""


def estimate(num_examples: int, per_example: int = 100, fixed: int = 300) -> MemoryEstimate:
    return MemoryEstimate(fixed, 0, 0, num_examples * per_example, 1, per_example // 4, num_examples)


@given(
    num_replicas=st.integers(1, 8),
    accumulate=st.integers(1, 4),
    share=st.integers(1, 64),
    limit=st.none() | st.integers(0, 10_000),
)
def test_what_is_named_divides_and_is_smaller(num_replicas, accumulate, share, limit) -> None:
    unit = num_replicas * accumulate
    size = share * unit
    found = smaller_batch(size, num_replicas, accumulate, estimate(share), limit)
    if found is None:
        assert share == 1 or (limit is not None and limit < 300 + 100)
    else:
        assert found % unit == 0
        assert unit <= found <= size // 2
        if limit is not None:
            assert 300 + 100 * (found // unit) <= limit
    parts = more_parts(share * accumulate, accumulate)
    if parts is None:
        assert share == 1
    else:
        assert parts >= 2 * accumulate
        assert share * accumulate % parts == 0


def test_the_limit_decides_where_it_is_known() -> None:
    assert smaller_batch(64, 1, 1, estimate(64), None) == 32
    assert smaller_batch(64, 1, 1, estimate(64), 300 + 10 * 100) == 10
    assert smaller_batch(64, 1, 1, estimate(64), 10**9) == 32


def test_all_ways_out_are_named() -> None:
    assert advise(64, 2, 1, estimate(32), None, is_training=True) == (
        "Use --global-batch-size 32, or --accumulate 2, which keeps the batch and computes it in parts"
    )
    assert advise(64, 2, 1, estimate(32), None, is_training=False) == "Use --global-batch-size 32"
    assert "smaller model: its weights, gradients and optimizer take 300" in advise(
        2, 2, 1, estimate(1), None, is_training=True
    )


def test_a_run_that_is_out_of_memory_names_a_batch_that_fits(write, tmp_path) -> None:
    dataset = write(TABLE, {"train": table(100)})
    (tmp_path / "greedy.py").write_text(textwrap.dedent(GREEDY_MODEL))
    settings = {"model": f"{tmp_path}/greedy.py:build", "epochs": 1}
    with pytest.raises(UsageError, match="not enough memory") as caught:
        train(dataset, tmp_path / "one", global_batch_size=20, **settings)
    text = str(caught.value)
    named = re.search(r"--global-batch-size (\d+), or --accumulate (\d+)", text)
    assert named is not None, text
    size, parts = map(int, named.groups())
    assert len(train(dataset, tmp_path / "smaller", global_batch_size=size, **settings)) == 1
    assert len(train(dataset, tmp_path / "parts", global_batch_size=20, accumulate=parts, **settings)) == 1
