"""Models over sequences of any length. Padding has weight 0 everywhere, so it changes nothing but the time it takes."""

from __future__ import annotations

import keras
from keras import layers, ops

from train.models.builtin_models import outputs_layer
from train.options.config import LabelSpec

EMBEDDING_SIZE = 64
WIDTHS = (64, 128, 128)
_DROPOUT = 0.3
_KERNEL_SIZE = 5


def token_model(num_indices: int, label: LabelSpec) -> keras.Model:
    """Returns embeddings, a convolution over three tokens, and pooling, over int32 `tokens` of which 0 is padding."""
    tokens = keras.Input([None], dtype="int32", name="tokens")
    mask = ops.expand_dims(ops.cast(ops.not_equal(tokens, 0), "float32"), -1)
    embedded = layers.Embedding(num_indices, EMBEDDING_SIZE, name="embeddings")(tokens) * mask
    local = layers.Conv1D(EMBEDDING_SIZE, 3, padding="same", activation="relu")(embedded)
    pooled = layers.Concatenate()([_mean(embedded, mask), _greatest(local, mask)])
    hidden = layers.Dropout(_DROPOUT)(pooled)
    return keras.Model({"tokens": tokens}, outputs_layer(hidden, label), name="text")


def signal_model(num_channels: int, label: LabelSpec) -> keras.Model:
    """Returns convolutions and pooling over float32 `values` `[length, num_channels]`, where `mask` is 1 and not 0."""
    values = keras.Input([None, num_channels], name="values")
    mask = keras.Input([None], name="mask")
    kept = ops.expand_dims(mask, -1)
    hidden = values * kept
    for i, width in enumerate(WIDTHS):
        hidden = layers.Conv1D(width, _KERNEL_SIZE, padding="same", use_bias=False)(hidden)
        # By position, so that neither padding nor the other examples of a batch matter.
        hidden = layers.Activation("relu")(layers.LayerNormalization()(hidden)) * kept
        if i:
            hidden = layers.MaxPooling1D(2, padding="same")(hidden)
            kept = layers.MaxPooling1D(2, padding="same")(kept)
    pooled = layers.Concatenate()([_mean(hidden, kept), _greatest(hidden, kept)])
    inputs = {"values": values, "mask": mask}
    return keras.Model(inputs, outputs_layer(layers.Dropout(_DROPOUT)(pooled), label), name="sequence")


def _mean(hidden: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
    # A sum over a long sequence has no place in float16.
    hidden, mask = ops.cast(hidden, "float32"), ops.cast(mask, "float32")
    return ops.sum(hidden * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


def _greatest(hidden: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
    # The values are never negative, so padding is never the greatest.
    return ops.max(ops.cast(hidden, "float32") * ops.cast(mask, "float32"), axis=1)
