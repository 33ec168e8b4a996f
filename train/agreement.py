"""What the workers of a run agree on, through collectives that all of them call at the same point."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from shardkit.errors import UsageError
from train.devices import Devices


def check_same_step(devices: Devices, step: int, folder: str) -> None:
    """Checks that all workers stand after the same step; every one of them waits here for all others.

    Raises:
        UsageError: If they do not, as they see different folders.
    """
    if devices.num_workers == 1:
        return

    @tf.function
    def gather(own: tf.Tensor) -> tf.Tensor:
        def all_steps(value: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_gather(value[tf.newaxis], axis=0)

        return devices.strategy.experimental_local_results(devices.strategy.run(all_steps, args=(own,)))[0]

    steps = np.unique(gather(tf.constant(step, tf.int32)).numpy()).tolist()
    if len(steps) > 1:
        raise UsageError(
            "the workers find different checkpoints",
            where=folder,
            why="they stand after the steps " + ", ".join(f"{found:,}" for found in steps),
            next_step="Give all hosts the same --output, on a file system that they share",
        )
