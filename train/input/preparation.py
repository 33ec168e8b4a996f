"""Parsed columns to a batch as the model takes it: inputs, labels, weights, and images decoded."""

from __future__ import annotations

import tensorflow as tf

from shardkit.adapters.tensorflow import Tensors, tensor_dtype
from shardkit.adapters.tfdata import ParsedBatch, fold_in
from shardkit.features import Feature, Features
from train.models.batch import Batch
from train.models.images import augment_image, center_image
from train.models.model_inputs import ModelBundle
from train.models.tabular_inputs import label_reader
from train.options.config import LabelSpec


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


class Preparation:
    """What is done to the columns of a batch, as parts of a graph.

    Attributes:
        images: Inputs that hold encoded images until `decode` was called.
    """

    def __init__(self, bundle: ModelBundle, label: LabelSpec, label_feature: Feature, image_size: int) -> None:
        self.features: Features = (*bundle.features, label_feature)
        self.images = bundle.images
        self._bundle = bundle
        self._read_label = label_reader(label, label_feature)
        self._image_size = image_size

    def prepare(self, parsed: ParsedBatch, weights: tf.Tensor, seeds: tf.Tensor | None) -> Batch:
        """Returns inputs, labels and weights; images are still encoded.

        Args:
            parsed: Columns of n examples.
            weights: float32 `[n]`, 0 for padding.
            seeds: int64 `[n, 2]` of the augmentation; None for none.
        """
        labels, is_labelled = self._read_label(parsed, weights)
        inputs = self._bundle.prepare(parsed)
        if seeds is not None and self._bundle.augment is not None:
            inputs = self._bundle.augment(inputs, seeds)
        return Batch(inputs, labels, weights * tf.cast(is_labelled, tf.float32))

    def decode(self, example: Batch, seed: tf.Tensor | None) -> Batch:
        """Returns one example with its images decoded.

        Args:
            example: Of a batch, with encoded images.
            seed: int64 `[2]` of the augmentation; None for none.
        """
        inputs: dict[str, tf.Tensor] = dict(example.inputs)
        for i, name in enumerate(self.images):
            inputs[name] = (
                center_image(inputs[name], self._image_size)
                if seed is None
                else augment_image(inputs[name], self._image_size, fold_in(seed, i))
            )
        return example._replace(inputs=inputs)

    def arrange(self, batch: Batch) -> Batch:
        """Returns the batch with its inputs in the structure that the model declares."""
        return batch._replace(inputs=self._bundle.arrange(batch.inputs))
