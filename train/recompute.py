"""Activation recomputation: the backward pass computes blocks of a model again instead of remembering what they gave.

Keras's `RematScope` and `tf.recompute_grad` alone run a block twice with all that it does: dropout draws another mask
the second time, so gradients are wrong, and batch normalization moves its statistics twice. Here the second run sees
the state that the first one saw, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from shardkit.errors import UsageError
from train.gradients import all_layers

Forward = Callable[[Any], tf.Tensor]


def recomputing(model: keras.Model) -> Forward:
    """Returns the forward pass of training that remembers only what lies between blocks.

    Args:
        model: Functional or sequential. It is cut where one tensor alone goes on, into about as many blocks as the
            square root of such places, which needs the least memory.

    Raises:
        UsageError: If the model cannot be cut, or adds losses of activations by itself.
    """
    model = _as_functional(model)
    cuts = choose_cuts(find_cuts(model))
    if len(cuts) < 2:
        raise UsageError(
            "the model has no blocks that could be computed again",
            why="it is no functional model in which one tensor alone goes from layer to layer",
            next_step="Leave out --recompute; --accumulate needs less memory, too",
        )
    if any(layer.activity_regularizer is not None for layer in all_layers(model)):
        raise UsageError(
            "the model has losses of activations, which get no gradients when activations are computed again",
            next_step="Leave out --recompute or activity_regularizer",
        )
    head, tail = keras.Model(model.input, cuts[0]), keras.Model(cuts[-1], model.output)
    blocks = [keras.Model(start, end) for start, end in pairwise(cuts)]

    def forward(inputs: Any) -> tf.Tensor:
        hidden = head(inputs, training=True)
        for block in blocks:
            hidden = _run_block(block, hidden)
        return tail(hidden, training=True)

    return forward


def find_cuts(model: keras.Model) -> list[keras.KerasTensor]:
    """Returns the tensors that everything after them is computed from, in order; none for a model without a graph."""
    model = _as_functional(model)
    operations = list(getattr(model, "operations", ()))
    if not operations:
        return []
    last_use: dict[int, int] = {}
    for position, operation in enumerate(operations):
        last_use.update((id(t), position) for t in tf.nest.flatten(operation.input))
    last_use.update((id(t), len(operations)) for t in tf.nest.flatten(model.output))
    live = {id(t): t for t in model.inputs}
    cuts: list[keras.KerasTensor] = []
    for position, operation in enumerate(operations):
        live.update((id(t), t) for t in tf.nest.flatten(operation.output))
        live = {key: t for key, t in live.items() if last_use.get(key, -1) > position}
        if len(live) == 1 and position < len(operations) - 1:
            (only,) = live.values()
            is_new = all(only is not t for t in (*model.inputs, *cuts))
            if is_new and tf.as_dtype(only.dtype).is_floating:
                cuts.append(only)
    return cuts


def _as_functional(model: keras.Model) -> keras.Model:
    if isinstance(model, keras.Sequential) and getattr(model, "inputs", None):
        return keras.Model(model.inputs[0], model.outputs[0])
    return model


def choose_cuts(cuts: Sequence[Any]) -> list[Any]:
    """Returns about the square root of the places to cut, evenly spread, the first and the last among them."""
    if len(cuts) < 2:
        return list(cuts)
    num_blocks = max(1, math.isqrt(len(cuts) - 1))
    return [cuts[round(i * (len(cuts) - 1) / num_blocks)] for i in range(num_blocks + 1)]


def _run_block(block: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    before = [(v, tf.identity(v.value)) for v in block.non_trainable_variables]
    num_runs = 0

    def run(tensor: tf.Tensor) -> tf.Tensor:
        nonlocal num_runs
        num_runs += 1
        with nullcontext() if num_runs == 1 else keras.StatelessScope(state_mapping=before):
            return block(tensor, training=True)

    return tf.recompute_grad(run)(inputs)
