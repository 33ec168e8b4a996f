"""What layers remember of the examples they saw: each replica has its own, and the first one's is what a run keeps.

Batch normalization without `synchronized=True` is such a layer. A checkpoint holds what the first replica remembers, so
that is what has to be validated: otherwise the metrics would be of a model that nobody gets, and a run that goes on,
where all replicas begin with it, would measure others.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf


def sharing_of_first(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[], None]:
    """Returns a function that gives all replicas what the layers of the first one remember.

    What layers remember changes no weights, so training is the same with and without it.

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
