"""From a batch to the gradients of its loss: forward and backward, micro-batches, the sum over replicas, clipping.

How long workers need for that sum is measured apart from a step.

Gradients of embeddings are `tf.IndexedSlices` and stay that: the rows of a batch are few beside those of a table.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.units import MiB
from train.distribution.devices import Devices
from train.models.batch import Batch
from train.optimization.objectives import Objective
from train.options.config import Precision

# Repetitions for few bytes, where a busy machine makes some take many times as long; and for many, which take long.
NUM_REPETITIONS, NUM_LARGE_REPETITIONS, LARGE_BYTES = 15, 3, 16 * MiB


Gradient: TypeAlias = Any  # tf.Tensor, tf.IndexedSlices, or None where the loss does not depend on the variable.


class Backward(NamedTuple):
    """What one replica makes of its share of a batch.

    Attributes:
        gradients: Of the trainable variables, in their order; None for one that the loss does not depend on.
        sums: Of the objective, before the update.
    """

    gradients: list[Gradient]
    sums: tf.Tensor


# Share of a replica, total weight of the global batch, loss scale.
ComputeGradients = Callable[[Batch, tf.Tensor, tf.Tensor], Backward]


def gradient_function(
    model: keras.Model,
    objective: Objective,
    *,
    num_micro_batches: int = 1,
    xla: bool = False,
    forward: Callable[[Any], tf.Tensor] | None = None,
) -> ComputeGradients:
    """Returns the function from a share of a batch to its gradients, times the loss scale.

    Args:
        model: Built.
        num_micro_batches: Equal parts of the share, one after the other; the memory for one part is enough.
        xla: Compile forward and backward together.
        forward: The model's forward pass of training; None calls the model.

    Raises:
        UsageError: If the model cannot be compiled.
    """
    if xla:
        check_compilable(model)

    def backward(batch: Batch, total_weight: tf.Tensor, loss_scale: tf.Tensor) -> Backward:
        with tf.GradientTape() as tape:
            outputs = model(batch.inputs, training=True) if forward is None else forward(batch.inputs)
            losses = objective.losses(batch.labels, outputs)
            loss = tf.math.divide_no_nan(tf.reduce_sum(objective.weights(batch) * losses), total_weight)
            loss += penalty(model) / (num_replicas() * num_micro_batches)
            scaled_loss = loss * loss_scale
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        if forward is not None:
            gradients = _all_at_once(gradients)
        return Backward(gradients, objective.sums(batch, outputs))

    if num_micro_batches == 1 and not xla:
        return backward
    # A separate `tf.function` is traced once for all micro-batches. Layers that add up over replicas cannot do so in a
    # graph inside of the replica's graph.
    part = backward if has_synchronized_layers(model) else tf.function(backward, jit_compile=xla or None)
    return _in_parts(part, num_micro_batches)


def _in_parts(part: ComputeGradients, num_parts: int) -> ComputeGradients:
    """Returns the function that adds up what another one gives for equal parts of a batch."""

    def backward(batch: Batch, total_weight: tf.Tensor, loss_scale: tf.Tensor) -> Backward:
        first, *others = split_batch(batch, num_parts)
        result = part(first, total_weight, loss_scale)
        for micro_batch in others:
            # One after the other: side by side they would need the memory of the whole batch.
            with tf.control_dependencies([_values(g) for g in result.gradients if g is not None]):
                one = part(micro_batch, total_weight, loss_scale)
            result = _add(result, one)
        return result

    return backward


def split_batch(batch: Batch, num_parts: int) -> list[Batch]:
    """Returns equal parts of a batch."""
    parts = zip(*(tf.split(t, num_parts) for t in tf.nest.flatten(batch)), strict=True)
    return [tf.nest.pack_sequence_as(batch, part) for part in parts]


def add_gradients(first: Sequence[Gradient], second: Sequence[Gradient]) -> list[Gradient]:
    """Returns the sums of two lists of gradients; sparse ones stay sparse."""
    return [_sum_of(a, b) for a, b in zip(first, second, strict=True)]


def reduce_gradients(gradients: Sequence[Gradient], dtype: Precision) -> list[Gradient]:
    """Returns the sums of gradients over all replicas."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(gradients)
    present = [_pack(g, dtype) for g in gradients if g is not None]
    reduced = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if g is None else _unpack(next(reduced), g, dtype) for g in gradients]


def are_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Returns whether no gradient holds infinity or NaN."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(_values(g))) for g in gradients if g is not None])


def scale_gradients(gradients: Sequence[Gradient], factor: tf.Tensor) -> list[Gradient]:
    """Returns gradients times a number."""
    return [
        g
        if g is None
        else tf.IndexedSlices(g.values * factor, g.indices, g.dense_shape)
        if isinstance(g, tf.IndexedSlices)
        else g * factor
        for g in gradients
    ]


def clip_gradients(gradients: Sequence[Gradient], norm: float) -> list[Gradient]:
    """Returns gradients whose global norm is at most `norm`."""
    summed = [_sum_rows(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    clipped, _ = tf.clip_by_global_norm(summed, norm)
    return list(clipped)


def has_synchronized_layers(model: keras.Model) -> bool:
    """Whether layers of a model add up over replicas while they compute."""
    return any(isinstance(x, keras.layers.BatchNormalization) and x.synchronized for x in all_layers(model))


def all_layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model, with those inside of others."""
    for inner in getattr(layer, "layers", ()):
        yield inner
        yield from all_layers(inner)


def check_compilable(model: keras.Model) -> None:
    """Checks that nothing is known that keeps XLA from compiling a model. Raises UsageError if there is."""
    if has_synchronized_layers(model):
        raise UsageError(
            "the model cannot be compiled with XLA on several replicas",
            why="its batch normalization adds up over replicas in the middle of a step",
            next_step="Leave out --xla, use one replica, or a model without synchronized=True",
        )
    if any(i.dtype == "string" for i in getattr(model, "inputs", None) or ()):
        raise UsageError(
            "the model cannot be compiled with XLA", why="it reads text", next_step="Leave out --xla or that feature"
        )


def num_replicas() -> int:
    """Returns the number of replicas that step together."""
    return int(tf.distribute.get_replica_context().num_replicas_in_sync)


def all_replicas_sum(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a value over all replicas."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value) if context.num_replicas_in_sync > 1 else value


def penalty(model: keras.Model) -> tf.Tensor:
    """Returns the sum of the losses that layers add by themselves, such as weight regularization."""
    return tf.add_n([tf.cast(loss, tf.float32) for loss in model.losses]) if model.losses else tf.constant(0.0)


def _all_at_once(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Returns gradients of which none is there before all are.

    TensorFlow's dependency optimizer forgets that what reads a weight for the second time comes before what updates
    it: measured with 2.21, one first step in ten read the scale of a batch normalization after its update.
    """
    return list(tf.tuple(list(gradients)))


def _add(first: Backward, second: Backward) -> Backward:
    return Backward(add_gradients(first.gradients, second.gradients), first.sums + second.sums)


def _sum_of(a: Gradient, b: Gradient) -> Gradient:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tf.IndexedSlices) and isinstance(b, tf.IndexedSlices):
        return tf.IndexedSlices(tf.concat([a.values, b.values], 0), tf.concat([a.indices, b.indices], 0), a.dense_shape)
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)


def _sum_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    # The norm of rows that occur twice is not the norm of their sum.
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _pack(gradient: Gradient, dtype: Precision) -> Gradient:
    """Returns a gradient as it travels.

    Slices are gathered, which TensorFlow does not do for bfloat16: two numbers of a row go as one float32.
    """
    if not isinstance(gradient, tf.IndexedSlices) or dtype != "bfloat16":
        return tf.cast(gradient, dtype)
    num_rows, row_size = tf.shape(gradient.indices)[0], _row_size(gradient)
    num_pairs = (row_size + 1) // 2
    rows = tf.cast(tf.reshape(gradient.values, [num_rows, row_size]), tf.bfloat16)
    pairs = tf.reshape(tf.pad(rows, [[0, 0], [0, row_size % 2]]), [num_rows, num_pairs, 2])
    dense_shape = tf.stack([tf.cast(gradient.dense_shape[0], tf.int32), num_pairs])
    return tf.IndexedSlices(tf.bitcast(pairs, tf.float32), gradient.indices, dense_shape)


def _unpack(packed: Gradient, gradient: Gradient, dtype: Precision) -> Gradient:
    """Returns the sum of a packed gradient in the gradient's own type."""
    if not isinstance(gradient, tf.IndexedSlices) or dtype != "bfloat16":
        return tf.cast(packed, gradient.dtype)
    num_rows, row_shape = tf.shape(packed.indices)[0], gradient.values.shape[1:]
    rows = tf.reshape(tf.bitcast(packed.values, tf.bfloat16), [num_rows, -1])[:, : _row_size(gradient)]
    values = tf.cast(tf.reshape(rows, [num_rows, *row_shape]), gradient.dtype)
    return tf.IndexedSlices(values, packed.indices, gradient.dense_shape)


def _row_size(slices: tf.IndexedSlices) -> int:
    return math.prod(slices.values.shape[1:])


def _values(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def measure_all_reduce_s(
    devices: Devices, model: keras.Model, reduce_in: Precision, num_repetitions: int | None = None
) -> float:
    """Returns the seconds in which all workers add up as many bytes as the gradients of a step have.

    Communication inside of a step cannot be measured: one graph computes and communicates, perhaps at the same time. So
    this function repeats the same reduction of the same shapes alone. It returns the fastest repetition, because other
    work of the machine only adds time. It leaves out tables of embeddings, of which only the rows of a batch travel.
    All workers must call it at the same point. It returns 0 for one worker.

    Args:
        reduce_in: Type that they travel in.
        num_repetitions: How often it is tried; if not given, as often as there is time for so many bytes.
    """
    shapes = dense_gradient_shapes(model)
    if devices.num_workers == 1 or not shapes:
        return 0.0

    def reduction(shapes: Sequence[Sequence[int]]) -> tf.types.experimental.ConcreteFunction:
        def reduce_all() -> tf.Tensor:
            reduced = reduce_gradients([tf.zeros(shape) for shape in shapes], reduce_in)
            return tf.add_n([tf.reshape(gradient, [-1])[0] for gradient in reduced])  # So that nothing is left out.

        @tf.function
        def once() -> tf.Tensor:
            return devices.strategy.experimental_local_results(devices.strategy.run(reduce_all))[0]

        return once.get_concrete_function()

    of_gradients = reduction(shapes)
    reduction([[1]])().numpy()  # Connects the workers, and waits for the slowest to come.
    if num_repetitions is None:
        num_bytes = sum(math.prod(shape) for shape in shapes) * tf.as_dtype(reduce_in).size
        num_repetitions = NUM_REPETITIONS if num_bytes < LARGE_BYTES else NUM_LARGE_REPETITIONS
    return min(_measured_s(of_gradients) for _ in range(num_repetitions))


def dense_gradient_shapes(model: keras.Model) -> list[Sequence[int]]:
    """Returns the shapes of the gradients that travel whole."""
    layers = (model, *all_layers(model))
    tables = {id(v) for x in layers if isinstance(x, keras.layers.Embedding) for v in x.trainable_variables}
    return [v.shape for v in model.trainable_variables if id(v) not in tables]


def _measured_s(call: Callable[[], tf.Tensor]) -> float:
    started_at = time.monotonic()
    call().numpy()
    return time.monotonic() - started_at
