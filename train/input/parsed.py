"""Batches of shardkit's own reader as the parsed columns that models take."""

from __future__ import annotations

import tensorflow as tf

from shardkit.adapters.tensorflow import Tensors, tensor_dtype
from shardkit.adapters.tfdata import ParsedBatch
from shardkit.features import Features


def parsed_batch(tensors: Tensors, features: Features) -> ParsedBatch:
    """Returns the columns of a batch that `shardkit.adapters.tensorflow.to_tensors` gave.

    Args:
        tensors: By name, and `NAME/present` where the dataset may lack a value.
        features: Wanted. One that is nullable here but not in the dataset is present everywhere.
    """
    values: dict[str, tf.Tensor | tf.RaggedTensor] = {}
    present: dict[str, tf.Tensor] = {}
    for feature in features:
        column = tensors[feature.name]
        found = tensors.get(f"{feature.name}/present")
        is_time = feature.dtype == "date" or "[" in feature.dtype
        if found is not None and is_time and not isinstance(column, tf.RaggedTensor):
            # The reader's null is NaT, the least int64; a parsed one is 0.
            shown = tf.reshape(found, [-1] + [1] * (len(column.shape) - 1))
            column = tf.where(shown, column, tf.zeros([], column.dtype))
        values[feature.name] = column
        if feature.nullable:
            present[feature.name] = tf.ones([num_rows(column)], tf.bool) if found is None else found
    return ParsedBatch(values, present)


def absent_examples(features: Features, num_examples: int) -> ParsedBatch:
    """Returns examples of zeros and empty strings, which lack whatever may be lacking."""
    values: dict[str, tf.Tensor | tf.RaggedTensor] = {}
    for feature in features:
        dtype = tensor_dtype(feature)
        if feature.num_values is None:
            values[feature.name] = tf.RaggedTensor.from_row_lengths(
                tf.zeros([num_examples], dtype), tf.ones([num_examples], tf.int64)
            )
        else:
            values[feature.name] = tf.zeros([num_examples, *(size or 0 for size in feature.shape)], dtype)
    return ParsedBatch(values, {f.name: tf.zeros([num_examples], tf.bool) for f in features if f.nullable})


def num_rows(column: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | int:
    """Returns the number of examples in a column, in eager code and in graphs."""
    return column.nrows() if isinstance(column, tf.RaggedTensor) else tf.shape(column)[0]
