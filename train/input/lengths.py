"""How long examples are for a model, found by a pass over a split, and batches of one length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shardkit.adapters.tensorflow import Tensors, tensor_specs, to_tensors
from shardkit.adapters.tfdata import ParsedBatch
from shardkit.features import Features
from shardkit.reading.split import Split
from train.input.parsed import parsed_batch
from train.models.model_inputs import ModelBundle

_NUM_AT_ONCE = 1_024


def read_lengths(split: Split, bundle: ModelBundle) -> npt.NDArray[np.int32]:
    """Returns the length of each example of a split for a model, in the stored order."""
    if bundle.lengths is None:
        raise ValueError("the examples of this model have no length")
    count = _counter(bundle.lengths, bundle.features)
    names = [f.name for f in bundle.features]
    batches = split.batches(
        global_batch_size=_NUM_AT_ONCE, shuffle=False, remainder="pad", features=names, decodes_text=False
    )
    found = [np.zeros(0, np.int32)]
    for batch in batches:
        tensors = to_tensors(batch)
        tensors.pop("mask", None)
        lengths = count(tensors).numpy()
        found.append(lengths if batch.mask is None else lengths[batch.mask])
    return np.concatenate(found)


def bring_to_length(inputs: dict[str, tf.Tensor], length: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns inputs `[n, rows, ...]` with so many rows. Rows that are cut off must be padding; added rows are 0."""

    def bring(values: tf.Tensor) -> tf.Tensor:
        if values.shape.rank < 2 or values.shape[1] is not None:
            return values
        cut = values[:, :length]
        padding = [[0, 0], [0, length - tf.shape(cut)[1]], *([0, 0] for _ in values.shape[2:])]
        return tf.ensure_shape(tf.pad(cut, padding), values.shape)

    return {name: bring(values) for name, values in inputs.items()}


def _counter(lengths: Callable[[ParsedBatch], tf.Tensor], features: Features) -> Callable[[Tensors], tf.Tensor]:
    @tf.function(input_signature=[tensor_specs(features, _NUM_AT_ONCE)])
    def count(tensors: Tensors) -> tf.Tensor:
        return tf.cast(lengths(parsed_batch(tensors, features)), tf.int32)

    return count
