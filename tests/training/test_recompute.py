"""Activations that are computed again give the same gradients, and the model's state moves once."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from shardkit.errors import UsageError
from train.gradients import check_compilable
from train.recompute import choose_cuts, find_cuts, recomputing


def residual_model(num_blocks: int) -> keras.Model:
    inputs = keras.Input([8])
    hidden = layers.Dense(8)(inputs)
    for seed in range(num_blocks):
        branch = layers.BatchNormalization()(layers.Dense(8, activation="relu")(hidden))
        hidden = layers.Add()([hidden, layers.Dropout(0.3, seed=seed)(branch)])
    return keras.Model(inputs, layers.Dense(1)(hidden))


def two_steps(model: keras.Model, forward: Callable[[tf.Tensor], tf.Tensor]) -> tuple[list[np.ndarray], int]:
    """Returns loss and gradients of a second step, then the state, and the number of matrix products in the graph."""

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(x) ** 2)
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    x = tf.constant(np.random.default_rng(0).normal(size=(16, 8)), tf.float32)
    step(x)
    values = [v.numpy() for v in (*step(x), *model.non_trainable_variables)]
    graph = step.get_concrete_function(x).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return values, sum(n.op == "MatMul" for n in nodes)


def test_gradients_and_state_are_those_of_the_plain_model() -> None:
    model = residual_model(9)
    initial = [v.numpy() for v in model.variables]
    plain, num_plain = two_steps(model, lambda x: model(x, training=True))
    for variable, value in zip(model.variables, initial, strict=True):
        variable.assign(value)
    again, num_again = two_steps(model, recomputing(model))
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert num_again >= num_plain + 5


def test_a_model_is_cut_between_its_blocks() -> None:
    model = residual_model(4)
    sums = [layer.output for layer in model.layers if isinstance(layer, layers.Add)]
    assert [id(t) for t in find_cuts(model)] == [id(model.layers[1].output), *map(id, sums)]
    sequential = keras.Sequential([keras.Input([3]), *(layers.Dense(3) for _ in range(5))])
    assert [id(t) for t in find_cuts(sequential)] == [id(layer.output) for layer in sequential.layers[:-1]]


@given(st.integers(2, 1000))
def test_cuts_are_about_the_square_root(num_places: int) -> None:
    chosen = choose_cuts(range(num_places))
    assert chosen[0] == 0
    assert chosen[-1] == num_places - 1
    assert chosen == sorted(set(chosen))
    assert (len(chosen) - 2) ** 2 <= num_places <= (len(chosen) + 1) ** 2


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    class Subclass(keras.Model):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return inputs

    with pytest.raises(UsageError, match="no blocks"):
        recomputing(Subclass())
    penalized = [layers.Dense(3, activity_regularizer="l2") for _ in range(5)]
    with pytest.raises(UsageError, match="activity_regularizer"):
        recomputing(keras.Sequential([keras.Input([3]), *penalized]))


def test_xla_is_refused_where_layers_add_up_over_replicas() -> None:
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.Sequential([layers.BatchNormalization(synchronized=True)])(inputs))
    with pytest.raises(UsageError, match="Leave out --xla"):
        check_compilable(model)
