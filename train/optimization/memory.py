"""How much of a GPU's memory TensorFlow takes."""

from __future__ import annotations

import tensorflow as tf

from shardkit.errors import UsageError


def configure_memory(limit_mib: int | None) -> None:
    """Sets how much memory TensorFlow takes of each GPU; must be called before it computes anything.

    Args:
        limit_mib: Of each GPU; None takes memory as it is needed, so that others can use the GPU, too.

    Raises:
        UsageError: If there is no GPU to limit, or TensorFlow has begun.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if limit_mib is not None and not gpus:
        raise UsageError(
            "--memory-limit is for GPUs, and there is none",
            next_step="Leave it out; a smaller --global-batch-size or --accumulate needs less memory",
        )
    try:
        # All alike, because TensorFlow refuses growth on some of them only.
        for gpu in gpus:
            if limit_mib is None:
                tf.config.experimental.set_memory_growth(gpu, True)
            else:
                configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit_mib)
                tf.config.set_logical_device_configuration(gpu, [configuration])
    except RuntimeError as error:
        raise UsageError(
            "the memory of the GPUs cannot be set any more",
            why="TensorFlow has already computed in this process",
            next_step="Set it in a separate process, before anything else uses TensorFlow",
        ) from error
