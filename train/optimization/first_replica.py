"""State that layers keep of the examples they saw. Each replica has its own state; a run keeps that of the first one.

Batch normalization without `synchronized=True` is such a layer. A checkpoint holds the state of the first replica, so
all replicas validate with that state. Otherwise the metrics would belong to a model that no checkpoint holds, and a
resumed run, where all replicas begin with the checkpoint's state, would measure other metrics.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf


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
