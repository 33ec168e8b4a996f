"""What a task minimises, and what it sums up for its metrics."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from train.batch import Batch
from train.config import LabelSpec


class Objective(Protocol):
    """What a task minimises and reports."""

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, float32 `[n]`."""
        ...

    def sums(self, batch: Batch, outputs: tf.Tensor, losses: tf.Tensor) -> tf.Tensor:
        """Returns the sums that `train.metrics.summarize` reads, float32 `[NUM_SUMS]`."""
        ...


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


def _weighted(weights: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.reduce_sum(weights), *(tf.reduce_sum(weights * v) for v in values)])
