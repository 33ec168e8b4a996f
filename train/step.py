"""One step of training and one of evaluation, on one replica. Everything else stands around these two functions."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from train.config import LabelSpec


class Batch(NamedTuple):
    """Examples as a model takes them; n of them on every replica in every step.

    Attributes:
        inputs: Tensors `[n, ...]` in the structure that the model takes.
        labels: int32 `[n]` class indices, or float32 `[n]` numbers.
        weights: float32 `[n]`; 0 for padding and for examples without a label.
    """

    inputs: Any
    labels: tf.Tensor
    weights: tf.Tensor


class Objective(Protocol):
    """What a task minimises and reports."""

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, float32 `[n]`."""
        ...

    def sums(self, batch: Batch, outputs: tf.Tensor, losses: tf.Tensor) -> tf.Tensor:
        """Returns the sums that `train.metrics.summarize` reads, float32 `[NUM_SUMS]`."""
        ...


def train_step(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, objective: Objective, batch: Batch
) -> tf.Tensor:
    """Updates the model once and returns the batch's sums, as they were before the update."""
    with tf.GradientTape() as tape:
        outputs = model(batch.inputs, training=True)
        losses = objective.losses(batch.labels, outputs)
        total_weight = tf.maximum(all_replicas_sum(tf.reduce_sum(batch.weights)), 1.0)
        loss = tf.reduce_sum(batch.weights * losses) / total_weight
        loss += penalty(model) / num_replicas()
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)  # Keras adds the gradients of all replicas up.
    return objective.sums(batch, outputs, losses)


def evaluate_step(model: keras.Model, objective: Objective, batch: Batch) -> tf.Tensor:
    """Returns the batch's sums."""
    outputs = model(batch.inputs, training=False)
    return objective.sums(batch, outputs, objective.losses(batch.labels, outputs))


class Classification:
    """Softmax cross-entropy over logits; the sums are weight, loss, correct, 0."""

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the cross-entropy of each example."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(outputs, tf.float32))

    def sums(self, batch: Batch, outputs: tf.Tensor, losses: tf.Tensor) -> tf.Tensor:
        """Returns weight, loss, correctly classified, 0."""
        is_correct = tf.equal(tf.argmax(outputs, axis=1, output_type=tf.int32), batch.labels)
        return _weighted(batch.weights, losses, tf.cast(is_correct, tf.float32), tf.zeros_like(losses))


class Regression:
    """Squared error in units of the label's variance; the sums are weight, loss, absolute and squared error.

    A model predicts the label itself, so its errors are in the label's own unit.
    """

    def __init__(self, label: LabelSpec) -> None:
        self.std = label.std

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the squared error of each example over the variance of the label."""
        return tf.square(self._errors(labels, outputs) / self.std)

    def sums(self, batch: Batch, outputs: tf.Tensor, losses: tf.Tensor) -> tf.Tensor:
        """Returns weight, loss, absolute error, squared error."""
        errors = self._errors(batch.labels, outputs)
        return _weighted(batch.weights, losses, tf.abs(errors), tf.square(errors))

    def _errors(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.cast(outputs, tf.float32), [-1]) - labels


def objective_for(label: LabelSpec) -> Objective:
    """Returns the objective of a label."""
    return Classification() if label.task == "classification" else Regression(label)


def all_replicas_sum(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a value over all replicas."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value) if context.num_replicas_in_sync > 1 else value


def num_replicas() -> int:
    """Returns the number of replicas that step together."""
    return int(tf.distribute.get_replica_context().num_replicas_in_sync)


def penalty(model: keras.Model) -> tf.Tensor:
    """Returns the sum of the losses that layers add by themselves, such as weight regularization."""
    return tf.add_n([tf.cast(loss, tf.float32) for loss in model.losses]) if model.losses else tf.constant(0.0)


def _weighted(weights: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.reduce_sum(weights), *(tf.reduce_sum(weights * v) for v in values)])
