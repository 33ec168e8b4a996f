"""One step of training and one of evaluation, on one replica. Everything else stands around these two functions."""

from __future__ import annotations

import keras
import tensorflow as tf

from train.batch import Batch
from train.objectives import Objective


def train_step(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, objective: Objective, batch: Batch
) -> tf.Tensor:
    """Updates the model once and returns the batch's sums, as they were before the update."""
    with tf.GradientTape() as tape:
        outputs = model(batch.inputs, training=True)
        losses = objective.losses(batch.labels, outputs)
        weights = objective.weights(batch)
        total_weight = all_replicas_sum(tf.reduce_sum(weights))
        loss = tf.math.divide_no_nan(tf.reduce_sum(weights * losses), total_weight)
        loss += penalty(model) / num_replicas()
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)  # Keras adds the gradients of all replicas up.
    return objective.sums(batch, outputs)


def evaluate_step(model: keras.Model, objective: Objective, batch: Batch) -> tf.Tensor:
    """Returns the batch's sums."""
    outputs = model(batch.inputs, training=False)
    return objective.sums(batch, outputs)


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
