"""What differs between replicas: the random numbers of each, and the state that layers keep of the examples they saw.

Keras keeps the state of a generator on each replica, equal on all, so all would draw the same mask. Each replica
shifts its generators before a forward pass and back after it. So the saved state stays equal on all replicas,
whatever their number is, and the first replica draws the same numbers as a single one.

Batch normalization without `synchronized=True` has state of its own on each replica. A checkpoint holds that of the
first one, so all replicas validate with it. Otherwise the metrics would belong to a model that no checkpoint holds, and
a resumed run, where all replicas begin with the checkpoint's state, would measure other metrics.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from train.models.batch import Batch
from train.optimization.gradients import Backward, ComputeGradients

# Between the seeds of two replicas; Keras takes them modulo 2^31 - 2, which has no factor in common with it.
_DISTANCE = 1_000_003


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the states of the random number generators of a model: a seed, and how often it was used."""
    return [v for v in model.variables if "seed_generator" in v.path]


def with_replica_seeds(model: keras.Model, backward: ComputeGradients, worker_index: int = 0) -> ComputeGradients:
    """Returns a function that computes gradients and in which every replica draws other random numbers."""
    states = seed_states(model)
    if not states:
        return backward

    def with_seeds(batch: Batch, total_weight: tf.Tensor, loss_scale: tf.Tensor) -> Backward:
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1 and not worker_index:
            return backward(batch, total_weight, loss_scale)
        index = context.replica_id_in_sync_group + worker_index
        shift = tf.stack([tf.cast(index, tf.int64) * _DISTANCE, 0])
        _move(states, shift)
        result = backward(batch, total_weight, loss_scale)
        _move(states, -shift)
        return result

    return with_seeds


def _move(states: list[keras.Variable], shift: tf.Tensor) -> None:
    for state in states:
        state.assign(state.value + tf.cast(shift, state.value.dtype))


def sharing_of_first(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[], None]:
    """Returns a function that gives all replicas the state of the first one's layers.

    This state changes no weights, so training is the same with and without the call.

    Args:
        strategy: In whose scope the model was made; all of its workers must call the function together.
        model: Built.
    """
    variables = [v.value for v in model.non_trainable_variables if v.value.dtype.is_floating]
    if strategy.num_replicas_in_sync == 1 or not variables:
        return lambda: None

    def share() -> None:
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        for variable in variables:
            own = tf.convert_to_tensor(variable)
            only_first = tf.where(is_first, own, tf.zeros_like(own))
            variable.assign(context.all_reduce(tf.distribute.ReduceOp.SUM, only_first))

    @tf.function
    def share_all() -> None:
        strategy.run(share)

    return share_all
