"""How long examples are for a model, found by a pass over a split, and batches of one length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shardkit.adapters.tensorflow import Tensors, tensor_specs, to_tensors
from shardkit.adapters.tfdata import ParsedBatch
from shardkit.features import Features
from shardkit.reading.lengths import count_lengths
from shardkit.reading.split import Split
from shardkit.reading.splits import Splits as OpenSplits
from train.input.parsed import parsed_batch
from train.models.model_inputs import Learner
from train.options.length_buckets import Boundaries, SplitBuckets, bucket_split
from train.runs.request import Request

_NUM_AT_ONCE = 1_024


def put_in_buckets(request: Request, learner: Learner, opened: OpenSplits) -> dict[str, SplitBuckets]:
    """Returns the buckets of each split that is read, by its name, and tells the splits the lengths of their examples.

    The validation split has those of the train split, and one more if it has longer examples. Each is read once.

    Args:
        request: With length buckets.
        learner: That says how long an example is.
        opened: The dataset.

    Raises:
        DamageError: If an example cannot be read.
    """
    asked, found = request.options.length_buckets, dict[str, SplitBuckets]()
    wanted: Boundaries | None = asked if isinstance(asked, tuple) else None
    (feature,) = learner.features
    for name in request.split_names:
        lengths = read_lengths(opened[name], learner)
        opened[name].set_lengths(feature.name, lengths)
        found[name] = bucket_split(feature.name, wanted, lengths, count_lengths(lengths))
        wanted = found[name].boundaries
    return found


def read_lengths(split: Split, learner: Learner) -> npt.NDArray[np.int32]:
    """Returns the length of each example of a split for a model, in the stored order."""
    if learner.lengths is None:
        raise ValueError("the examples of this model have no length")
    count = _counter(learner.lengths, learner.features)
    names = [f.name for f in learner.features]
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
    """Returns inputs `[n, rows, ...]` with so many rows; what is cut off must be padding, and what is added is 0."""

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
