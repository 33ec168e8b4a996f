"""The loss of each task, and the sums for its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from train.models.batch import Batch
from train.options.config import LabelSpec
from train.reporting.metric_sums import NUM_SCORE_BINS, SumsLayout, layout_for

_MAX_SCORE = 1e6
_SCORE_SCALE = 4.0  # Differences of logits that fill half of the bins.


class Objective(Protocol):
    """What a task minimises and reports."""

    layout: SumsLayout

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, float32 `[n]`."""
        ...

    def weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weight of each example in the loss, float32 `[n]`."""
        ...

    def sums(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the sums that `metric_sums.summarize` reads, float32 `[layout.num_sums]`.

        They know neither label smoothing nor class weights, so that runs can be compared.
        """
        ...


class Classification:
    """Softmax cross-entropy over logits.

    Args:
        label_smoothing: Part of the target that is spread evenly over all classes.
        class_weights: How much examples of each class count; None means equally.
    """

    def __init__(
        self, label: LabelSpec, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
    ) -> None:
        self.layout = layout_for(label)
        self.label_smoothing = label_smoothing
        self.class_weights = class_weights

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the cross-entropy of each example with its smoothed target."""
        logits = tf.cast(outputs, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if not self.label_smoothing:
            return losses
        uniform = tf.reduce_logsumexp(logits, axis=1) - tf.reduce_mean(logits, axis=1)
        return (1.0 - self.label_smoothing) * losses + self.label_smoothing * uniform

    def weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of the examples times those of their classes."""
        if self.class_weights is None:
            return batch.weights
        return batch.weights * tf.gather(tf.constant(self.class_weights, tf.float32), batch.labels)

    def sums(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        """Returns weight, loss, correct; counts of each class; counts of scores."""
        logits, labels, weights = tf.cast(outputs, tf.float32), batch.labels, batch.weights
        predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
        right = weights * tf.cast(tf.equal(predicted, labels), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        parts = [_totals(weights, _weighted(losses, weights), right)]
        if self.layout.counts_classes:
            for index, counted in ((labels, right), (predicted, weights), (labels, weights)):
                parts.append(tf.math.unsorted_segment_sum(counted, index, self.layout.num_classes))
        if self.layout.has_scores:
            bins = labels * NUM_SCORE_BINS + _score_bin(logits[:, 1] - logits[:, 0])
            parts.append(tf.math.unsorted_segment_sum(weights, bins, 2 * NUM_SCORE_BINS))
        return tf.concat(parts, axis=0)


class Regression:
    """Squared error in units of the label's variance.

    A model predicts the label itself, so its errors are in the label's own unit.
    """

    def __init__(self, label: LabelSpec) -> None:
        self.layout = layout_for(label)
        self.std = label.std

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the squared error of each example over the variance of the label."""
        return tf.square(self._errors(labels, outputs) / self.std)

    def weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of the examples."""
        return batch.weights

    def sums(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        """Returns weight, loss, absolute error, squared error."""
        errors, weights = self._errors(batch.labels, outputs), batch.weights
        losses = self.losses(batch.labels, outputs)
        return _totals(weights, *(_weighted(v, weights) for v in (losses, tf.abs(errors), tf.square(errors))))

    def _errors(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.cast(outputs, tf.float32), [-1]) - labels


def objective_for(
    label: LabelSpec, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
) -> Objective:
    """Returns the objective of a label; smoothing and class weights are for classifications."""
    if label.task == "regression":
        return Regression(label)
    return Classification(label, label_smoothing, class_weights)


def _weighted(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    # Rows that fill up a batch hold NaN, and 0 times NaN is NaN.
    return tf.math.multiply_no_nan(values, weights)


def _totals(*values: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.reduce_sum(v) for v in values])


def _score_bin(score: tf.Tensor) -> tf.Tensor:
    # Even in the probability, bins would hold all scores of a class that is one in a thousand in a few of them.
    score = tf.clip_by_value(score, -_MAX_SCORE, _MAX_SCORE)
    share = (1.0 + score / (_SCORE_SCALE + tf.abs(score))) / 2.0
    return tf.clip_by_value(tf.cast(share * NUM_SCORE_BINS, tf.int32), 0, NUM_SCORE_BINS - 1)
