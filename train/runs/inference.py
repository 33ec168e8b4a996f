"""From parsed columns to the outputs of a trained model: no augmentation, no dropout."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch
from train.models.images import NUM_CHANNELS, center_image
from train.models.model_inputs import ModelBundle
from train.options.config import LabelSpec


def model_inputs(bundle: ModelBundle, image_size: int, batch: ParsedBatch) -> Any:
    """Returns the inputs of a model for parsed columns, images decoded, in eager code and in graphs."""
    inputs: dict[str, tf.Tensor] = dict(bundle.prepare(batch))
    for name in bundle.images:
        inputs[name] = tf.map_fn(
            lambda encoded: center_image(encoded, image_size),
            inputs[name],
            fn_output_signature=tf.TensorSpec([image_size, image_size, NUM_CHANNELS], tf.float32),
        )
    return bundle.arrange(inputs)


def model_outputs(bundle: ModelBundle, image_size: int, batch: ParsedBatch) -> tf.Tensor:
    """Returns the model's outputs for parsed columns, float32: logits `[n, classes]`, or numbers `[n]`."""
    return tf.cast(bundle.model(model_inputs(bundle, image_size, batch), training=False), tf.float32)


def readable_outputs(label: LabelSpec, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns outputs of a model as a user reads them.

    They are `prediction` `[n]`, the name of a class or a number; and for classes `probability` `[n]`, that of the
    prediction, and `probabilities` `[n, classes]`.
    """
    if label.task == "regression":
        return {"prediction": tf.reshape(outputs, [-1])}
    probabilities = tf.nn.softmax(outputs)
    best = tf.argmax(probabilities, axis=1)
    return {
        "prediction": tf.gather(tf.constant(label.class_names, tf.string), best),
        "probability": tf.reduce_max(probabilities, axis=1),
        "probabilities": probabilities,
    }
