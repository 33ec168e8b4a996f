"""Activations that are computed again give the same gradients, and the model's state moves once."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from shardkit.errors import UsageError
from train.models.batch import Batch
from train.optimization.gradients import check_compilable, gradient_function
from train.optimization.objectives import Classification
from train.optimization.recompute import choose_cuts, find_cuts, recomputing, trace_calls
from train.optimization.step import train_step
from train.optimization.updater import Updater, make_optimizer
from train.options.config import LabelSpec
from train.options.optimizer_options import OptimizerOptions, plan_schedule

pytestmark = pytest.mark.full


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


def test_what_is_computed_again_reads_no_updated_weight() -> None:
    num_runs = 0

    def be_late_when_computed_again() -> float:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 2:
            time.sleep(0.5)
        return 0.0

    class Late(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([tf.py_function(be_late_when_computed_again, [], tf.float32)]):
                return x * tf.convert_to_tensor(self.scale)

    keras.utils.set_random_seed(1)
    sizes = [layers.Dense(8), layers.Dense(8, activation="relu"), Late(), layers.Dense(8), layers.Dense(3)]
    model = keras.Sequential([keras.Input([4]), *sizes])
    options = OptimizerOptions(name="sgd", learning_rate=0.1)
    optimizer = make_optimizer(options, plan_schedule("constant", options.learning_rate, 8, 0))
    updater = Updater(optimizer, model.trainable_variables, options, 8)
    objective = Classification(LabelSpec(name="y", task="classification", classes=("a", "b", "c")))
    draw = np.random.default_rng(1)
    batch = Batch(
        tf.constant(draw.normal(size=(16, 4)), tf.float32),
        tf.constant(draw.integers(0, 3, 16), tf.int32),
        tf.ones([16]),
    )
    initial = [v.numpy() for v in model.variables]
    results = []
    for forward in (None, recomputing(model)):
        for variable, value in zip(model.variables, initial, strict=True):
            variable.assign(value)
        backward = gradient_function(model, objective, forward=forward)
        num_runs = 0
        tf.function(partial(train_step, backward, updater, objective))(batch)
        results.append([v.numpy() for v in model.variables])
    assert num_runs == 2
    for once, again in zip(*results, strict=True):
        np.testing.assert_allclose(again, once, rtol=1e-6, atol=1e-7)


def count_cuts(model: keras.Model) -> int:
    graph = trace_calls(model)
    assert graph is not None
    return len(find_cuts(graph))


def test_a_model_is_cut_between_its_blocks() -> None:
    model = residual_model(4)
    num_sums = sum(isinstance(layer, layers.Add) for layer in model.layers)
    assert count_cuts(model) == 1 + num_sums
    assert count_cuts(keras.Sequential([keras.Input([3]), *(layers.Dense(3) for _ in range(5))])) == 4


def test_a_named_model_is_cut_inside() -> None:
    inputs = keras.Input([48, 48, 3])
    body = keras.applications.MobileNetV3Small(input_shape=(48, 48, 3), include_top=False, weights=None, pooling="avg")
    explicit = keras.Model(inputs, layers.Dense(1)(body(inputs, training=False)))
    assert count_cuts(explicit) == 1
    assert count_cuts(keras.Model(inputs, layers.Dense(1)(body(inputs)))) > 30


def test_layers_that_were_called_elsewhere_or_twice_are_cut_where_they_stand() -> None:
    grown = keras.Sequential([keras.Input([8]), *(layers.Dense(8) for _ in range(4))])
    grown.add(layers.Dense(1))
    inputs = keras.Input([8])
    hidden, shared = inputs, layers.Dense(8, activation="tanh")
    for _ in range(5):
        hidden = shared(hidden)
    twice = keras.Model(inputs, layers.Dense(1)(hidden))
    outer = keras.Model(inputs, layers.Dense(1)(layers.Dense(8)(grown(layers.Dense(8)(inputs)))))
    for model, num_cuts in ((grown, 4), (twice, 5), (outer, 7)):
        assert count_cuts(model) == num_cuts
        plain, _ = two_steps(model, lambda x, model=model: model(x, training=True))
        again, _ = two_steps(model, recomputing(model))
        for a, b in zip(plain, again, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


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
