"""The last layers of the built-in models: logits, or the predicted number."""

from __future__ import annotations

import keras
from keras import layers, ops

from train.options.config import LabelSpec

_DROPOUT = 0.3


def outputs_layer(hidden: keras.KerasTensor, label: LabelSpec) -> keras.KerasTensor:
    """Returns the logits of the classes, or the predicted number in the label's unit."""
    # The output stays float32 under mixed precision; logits and targets need its range.
    outputs = layers.Dense(label.num_outputs, dtype="float32", name="outputs")(hidden)
    if label.task == "regression":
        outputs = layers.Rescaling(label.std, offset=label.mean, dtype="float32")(outputs)
    return outputs


def pooled_outputs(
    averaged: keras.KerasTensor, greatest: keras.KerasTensor, mask: keras.KerasTensor, label: LabelSpec
) -> keras.KerasTensor:
    """Returns what `outputs_layer` does, of sequences whose padding, where the mask is 0, changes nothing.

    Args:
        averaged, greatest: What the mean and the greatest value over all positions are taken of.
        mask: `[n, length, 1]`.
    """
    pooled = layers.Concatenate()([_mean(averaged, mask), _greatest(greatest, mask)])
    return outputs_layer(layers.Dropout(_DROPOUT)(pooled), label)


def _mean(hidden: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
    # A sum over a long sequence has no place in float16.
    hidden, mask = ops.cast(hidden, "float32"), ops.cast(mask, "float32")
    return ops.sum(hidden * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


def _greatest(hidden: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
    # The values are never negative, so padding is never the greatest.
    return ops.max(ops.cast(hidden, "float32") * ops.cast(mask, "float32"), axis=1)
