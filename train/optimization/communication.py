"""How long workers need to add up their gradients, measured apart from a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from shardkit.units import MiB
from train.distribution.devices import Devices
from train.optimization.gradients import all_layers, reduce_gradients
from train.options.config import Precision

# Repetitions for few bytes, where a busy machine makes some take many times as long; and for many, which take long.
NUM_REPETITIONS, NUM_LARGE_REPETITIONS, LARGE_BYTES = 15, 3, 16 * MiB


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
