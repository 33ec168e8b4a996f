"""What the workers of a run agree on, through collectives that all of them call at the same point."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shardkit.errors import UsageError
from train.distribution.devices import Devices


class Agreement:
    """Lets all workers wait for each other.

    Args:
        devices: Of the run.
        folder: Of the run, for messages.
    """

    def __init__(self, devices: Devices, folder: str) -> None:
        self._folder = folder
        self._gather = (lambda own: own[tf.newaxis]) if devices.num_workers == 1 else _gather(devices)

    def __call__(self, step: int) -> None:
        """Waits for all workers, which stand after the same step.

        Raises:
            UsageError: If they do not, as they see different folders.
        """
        steps = np.unique(self._all(step)).tolist()
        if len(steps) > 1:
            raise UsageError(
                "the workers find different checkpoints",
                where=self._folder,
                why="they stand after the steps " + ", ".join(f"{found:,}" for found in steps),
                next_step="Give all hosts the same --output, on a file system that they share",
            )

    def any(self, is_so: bool) -> bool:
        """Returns whether something is so on one of the workers, which all ask."""
        return bool(self._all(int(is_so)).any())

    def _all(self, own: int) -> npt.NDArray[np.int32]:
        values: npt.NDArray[np.int32] = self._gather(tf.constant(own, tf.int32)).numpy()
        return values


def _gather(devices: Devices) -> Any:
    def all_values(value: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(value[tf.newaxis], axis=0)

    @tf.function
    def gather(own: tf.Tensor) -> tf.Tensor:
        return devices.strategy.experimental_local_results(devices.strategy.run(all_values, args=(own,)))[0]

    return gather
