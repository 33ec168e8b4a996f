"""A model, its features, and how a parsed batch becomes its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch
from shardkit.errors import UsageError
from shardkit.features import Features
from train.models.user_model import call_user_code, model_path
from train.options.config import LabelSpec
from train.options.tabular_columns import TabularColumns, Value


class ModelBundle(NamedTuple):
    """A model and the makers of its inputs.

    Attributes:
        features: Those that are read.
        model: Its variables live where the strategy wants them.
        prepare: Makes inputs from a parsed batch, in the input graph; images are still encoded.
        images: Inputs that hold encoded images.
        arrange: Puts the inputs, images decoded, in the structure that the model declares.
        lengths: Returns how many positions each example of a parsed batch takes in the inputs, `[n]`, in the input
            graph; None where all take the same.
        augment: Changes the inputs of a training batch by chance, before images are decoded: a function of the inputs
            and of seeds, int64 `[n, 2]`, one for each example. None leaves them as they are.
        summary: What it reads, for the user.
        notes: What the user should know.
        columns: Of a tabular model.
        vocabulary: Of a model of tokens.
    """

    features: Features
    model: keras.Model
    prepare: Callable[[ParsedBatch], dict[str, tf.Tensor]]
    images: tuple[str, ...]
    arrange: Callable[[dict[str, tf.Tensor]], Any]
    summary: str
    lengths: Callable[[ParsedBatch], tf.Tensor] | None = None
    augment: Callable[[dict[str, tf.Tensor], tf.Tensor], dict[str, tf.Tensor]] | None = None
    notes: tuple[str, ...] = ()
    columns: TabularColumns | None = None
    vocabulary: tuple[Value, ...] | None = None


def check_model(bundle: ModelBundle, reference: str, inputs: object, label: LabelSpec) -> tuple[str, ...]:
    """Builds a user's model on one batch of zeros, checks its outputs, and returns notes for the user.

    Args:
        bundle: With the model.
        reference: `FILE.py:function`.
        inputs: Specification of the inputs of a batch.
        label: What is predicted.

    Raises:
        UsageError: If the model cannot take the inputs, or gives something of another shape.
    """
    num_examples = 2

    def zeros(spec: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([num_examples, *(size or 1 for size in spec.shape[1:])], spec.dtype)

    sample = tf.nest.map_structure(zeros, inputs)
    path = model_path(reference)
    outputs = call_user_code(path, lambda: bundle.model(sample, training=False))
    wanted = f"{[None, label.num_outputs]}: "
    wanted += "one logit for each class" if label.task == "classification" else "the predicted number"
    if not keras.ops.is_tensor(outputs):
        raise UsageError(
            f"the model gives a {type(outputs).__name__} for a batch, and not one tensor",
            where=str(path),
            why=f"expected {wanted}",
            next_step="Give keras.Model one output, the one that the label is compared with",
        )
    found = tuple(outputs.shape)
    allowed = [(num_examples, label.num_outputs)] + ([(num_examples,)] if label.task == "regression" else [])
    if found not in allowed:
        without = ", without a softmax at its end" if label.task == "classification" else ""
        raise UsageError(
            f"the model gives shape {[None, *found[1:]]} for a batch",
            where=str(path),
            why=f"expected {wanted}",
            next_step=f"Change the last layer of the model{without}",
        )
    if not bundle.model.trainable_variables:
        raise UsageError(
            "the model has nothing to train",
            where=str(path),
            next_step="Give it a layer with weights, and leave trainable on",
        )
    is_probability = label.num_outputs > 1 and np.allclose(np.sum(outputs, axis=1), 1.0, atol=1e-5)
    return ("the model seems to give probabilities; leave the softmax out, a loss on logits is exact",) * is_probability
