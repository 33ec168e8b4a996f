"""Parsed columns to a batch as the model takes it: inputs, labels, weights, and images decoded."""

from __future__ import annotations

import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch, fold_in
from shardkit.features import Feature, Features
from train.models.batch import Batch
from train.models.images import augment_image, center_image
from train.models.model_inputs import ModelBundle
from train.models.tabular_inputs import label_reader
from train.options.config import LabelSpec


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
