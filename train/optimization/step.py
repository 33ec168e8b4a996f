"""One step of training and one of evaluation, on one replica. Everything else is around these two functions."""

from __future__ import annotations

import keras
import tensorflow as tf

from train.models.batch import Batch
from train.optimization.gradients import ComputeGradients, all_replicas_sum, reduce_gradients
from train.optimization.objectives import Objective
from train.optimization.updater import Updater


def train_step(backward: ComputeGradients, updater: Updater, objective: Objective, batch: Batch) -> tf.Tensor:
    """Updates the model once and returns the batch's sums, as they were before the update."""
    scale = updater.scale
    total_weight = all_replicas_sum(tf.reduce_sum(objective.weights(batch)))
    gradients, sums = backward(batch, total_weight, scale)
    updater.apply(reduce_gradients(gradients, updater.options.reduce_in), scale)
    return sums


def evaluate_step(model: keras.Model, objective: Objective, batch: Batch) -> tf.Tensor:
    """Returns the batch's sums."""
    outputs = model(batch.inputs, training=False)
    return objective.sums(batch, outputs)
