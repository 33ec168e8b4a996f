"""Draws dropout masks on one replica and on two, and stores them; a process of its own, for its devices.

python replica_masks.py OUT.npz; the keys of the result are `REPLICAS/REPLICA/mask/STEP` and `REPLICAS/REPLICA/state`.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

from train.models.batch import Batch
from train.optimization.gradients import Backward
from train.optimization.replicas import seed_states, with_replica_seeds

NUM_STEPS = 3


def draw(strategy: tf.distribute.Strategy) -> dict[str, np.ndarray]:
    """Returns the masks and the last states of all replicas of a strategy."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = keras.Input([64])
        model = keras.Model(inputs, keras.layers.Dropout(0.5)(inputs))
    forward = with_replica_seeds(model, lambda batch, weight, scale: Backward([], model(batch.inputs, training=True)))

    @tf.function
    def step() -> tf.Tensor:
        batch = Batch(tf.ones([1, 64]), tf.zeros([1]), tf.ones([1]))
        return strategy.run(lambda: forward(batch, tf.constant(1.0), tf.constant(1.0)).sums)

    found = {}
    count = strategy.num_replicas_in_sync
    for i in range(NUM_STEPS):
        for replica, mask in enumerate(strategy.experimental_local_results(step())):
            found[f"{count}/{replica}/mask/{i}"] = mask.numpy()
    (state,) = seed_states(model)
    for replica, own in enumerate(strategy.experimental_local_results(state.value)):
        found[f"{count}/{replica}/state"] = own.numpy()
    return found


cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategies = (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
np.savez(sys.argv[1], **draw(strategies[0]), **draw(strategies[1]))
