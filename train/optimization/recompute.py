"""Activation recomputation: the backward pass computes blocks of a model again instead of keeping their results.

Keras's `RematScope` and `tf.recompute_grad` alone run a block twice with all that it does: dropout draws another mask
the second time, so gradients are wrong, and batch normalization moves its statistics twice. Here the second run sees
the state that the first one saw, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain, pairwise
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from shardkit.errors import UsageError
from train.optimization.gradients import all_layers

Forward = Callable[[Any], tf.Tensor]


def recomputing(model: keras.Model) -> Forward:
    """Returns the forward pass of training that keeps only the tensors between blocks.

    Args:
        model: Functional or sequential. It is cut where one tensor alone goes on, into about as many blocks as the
            square root of such places, which needs the least memory.

    Raises:
        UsageError: If the model cannot be cut, or adds losses of activations by itself.
    """
    graph, cuts = cut_in_blocks(model)
    if any(layer.activity_regularizer is not None for layer in all_layers(model)):
        raise UsageError(
            "the model has losses of activations, which get no gradients when activations are computed again",
            next_step="Leave out --recompute or activity_regularizer",
        )
    head = keras.Model(graph.inputs, cuts[0].tensor)
    tail = _build_block(graph.calls[cuts[-1].end :], cuts[-1].tensor, graph.outputs)
    blocks = [_build_block(graph.calls[a.end : b.end], a.tensor, b.tensor) for a, b in pairwise(cuts)]

    def forward(inputs: Any) -> tf.Tensor:
        hidden = head(inputs, training=True)
        for block in blocks:
            hidden = _run_block(block, hidden)
        return tail(hidden, training=True)

    return forward


def cut_in_blocks(model: keras.Model) -> tuple[CallGraph, list[Cut]]:
    """Returns the calls of a model, and where it is cut, at two places or more. Raises UsageError if there are none."""
    graph = trace_calls(model)
    cuts = [] if graph is None else choose_cuts(find_cuts(graph))
    if graph is None or len(cuts) < 2:
        raise UsageError(
            "the model has no blocks that could be computed again",
            why="nowhere in it, or in one place only, does one tensor alone go from layer to layer",
            next_step="Leave out --recompute; --accumulate needs less memory, too",
        )
    return graph, cuts


def held_outputs(model: keras.Model) -> list[list[keras.KerasTensor]]:
    """Returns, for each moment of a backward pass that computes a block again, the outputs of layers that are held.

    Raises:
        UsageError: If the model cannot be cut.
    """
    graph, cuts = cut_in_blocks(model)
    outputs = [_tensors_of(call.result) for call in graph.calls]
    # Layers before the first cut and after the last one are not computed again.
    kept = [*outputs[: cuts[0].end], [cut.tensor for cut in cuts[1:]], *outputs[cuts[-1].end :]]
    # The last output of a block is that of its cut.
    blocks = [outputs[a.end : b.end - 1] for a, b in pairwise(cuts)]
    return [list(chain.from_iterable((*kept, *block))) for block in blocks]


class Call(NamedTuple):
    """One call of a layer, or of another operation, and its result."""

    layer: keras.Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class CallGraph(NamedTuple):
    """The calls of a model in the order of running, with its inputs and outputs in their own structure."""

    inputs: Any
    outputs: Any
    calls: list[Call]


class Cut(NamedTuple):
    """A place where one tensor alone goes on, and the number of calls before it."""

    tensor: keras.KerasTensor
    end: int


def trace_calls(model: keras.Model) -> CallGraph | None:
    """Returns the calls of a model's layers, those of models inside of it too, on fresh inputs; None without a graph.

    The input and output of a layer are those of its first call, in this model or in another one.
    """
    if isinstance(model, keras.Sequential) and getattr(model, "inputs", None):
        model = keras.Model(model.inputs[0], model.outputs[0])
    if not getattr(model, "operations", ()):
        return None
    calls: list[Call] = []

    def call(layer: keras.Operation, *args: Any, **kwargs: Any) -> Any:
        # An inner model, such as one of keras.applications, takes most of the memory. An inner model that is called
        # with further arguments, such as training=False, is left as it is.
        has_arguments = len(args) != 1 or any(value is not None for value in kwargs.values())
        inner = None if has_arguments or not isinstance(layer, keras.Model) else trace_calls(layer)
        if inner is None:
            result = layer(*args, **kwargs)
            calls.append(Call(layer, args, kwargs, result))
            return result
        return _replay(inner.calls, inner.inputs, args[0], inner.outputs, call)

    again = keras.models.clone_model(model, clone_function=lambda layer: layer, call_function=call)
    return CallGraph(again.input, again.output, calls)


def find_cuts(graph: CallGraph) -> list[Cut]:
    """Returns the places whose tensor everything after them is computed from, in order."""
    first, last = _tensors_of(graph.inputs), _tensors_of(graph.outputs)
    last_use: dict[int, int] = {}
    for position, call in enumerate(graph.calls):
        last_use.update((id(t), position) for t in _tensors_of((call.args, call.kwargs)))
    last_use.update((id(t), len(graph.calls)) for t in last)
    live = {id(t): t for t in first}
    cuts: list[Cut] = []
    for position, call in enumerate(graph.calls):
        live.update((id(t), t) for t in _tensors_of(call.result))
        live = {key: t for key, t in live.items() if last_use.get(key, -1) > position}
        if len(live) == 1 and position < len(graph.calls) - 1:
            (only,) = live.values()
            is_new = all(only is not t for t in (*first, *(c.tensor for c in cuts)))
            if is_new and tf.as_dtype(only.dtype).is_floating:
                cuts.append(Cut(only, position + 1))
    return cuts


def _tensors_of(values: Any) -> list[keras.KerasTensor]:
    return [t for t in keras.tree.flatten(values) if isinstance(t, keras.KerasTensor)]


def choose_cuts(cuts: Sequence[Any]) -> list[Any]:
    """Returns about the square root of the places to cut, evenly spread, the first and the last among them."""
    if len(cuts) < 2:
        return list(cuts)
    num_blocks = max(1, math.isqrt(len(cuts) - 1))
    return [cuts[round(i * (len(cuts) - 1) / num_blocks)] for i in range(num_blocks + 1)]


def _build_block(calls: Sequence[Call], start: keras.KerasTensor, end: Any) -> keras.Model:
    """Returns the model of some calls.

    Keras itself makes a model out of the middle of another one only where no layer is called twice.
    """
    fresh = keras.Input(batch_shape=start.shape, dtype=start.dtype)
    end_of_it = _replay(calls, start, fresh, end, lambda layer, *args, **kwargs: layer(*args, **kwargs))
    return keras.Model(fresh, end_of_it)


def _replay(calls: Sequence[Call], start: Any, fresh: Any, end: Any, call: Callable[..., Any]) -> Any:
    """Makes calls again, from other tensors in the place of `start`, and returns those in the place of `end`."""
    now = dict(zip(map(id, _tensors_of(start)), _tensors_of(fresh), strict=True))

    def renew(values: Any) -> Any:
        return keras.tree.map_structure(lambda v: now.get(id(v), v), values)

    for one in calls:
        result = call(one.layer, *renew(one.args), **renew(one.kwargs))
        now.update(zip(map(id, _tensors_of(one.result)), _tensors_of(result), strict=True))
    return renew(end)


def _run_block(block: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    before = [(v, tf.identity(v.value)) for v in block.non_trainable_variables]
    num_runs = 0

    def run(tensor: tf.Tensor) -> tf.Tensor:
        nonlocal num_runs
        num_runs += 1
        with nullcontext() if num_runs == 1 else keras.StatelessScope(state_mapping=before):
            return block(tensor, training=True)

    return tf.recompute_grad(run)(inputs)
