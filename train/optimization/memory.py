"""How much of a GPU's memory TensorFlow takes."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from shardkit.errors import UsageError


class MemoryPlan(NamedTuple):
    """The memory setting of one GPU. `limit_mib` is None where memory is taken as it is needed."""

    gpu: int
    limit_mib: int | None


def plan_memory(num_gpus: int, limit_mib: int | None) -> tuple[MemoryPlan, ...]:
    """Returns the setting of each GPU. All are equal, because TensorFlow refuses growth on some of them only.

    Raises:
        UsageError: If a limit is asked for and there is no GPU.
    """
    if limit_mib is not None and not num_gpus:
        raise UsageError(
            "--memory-limit is for GPUs, and there is none",
            next_step="Leave it out; a smaller --global-batch-size or --accumulate needs less memory",
        )
    return tuple(MemoryPlan(i, limit_mib) for i in range(num_gpus))


def configure_memory(limit_mib: int | None) -> None:
    """Sets how much memory TensorFlow takes of each GPU; must be called before it computes anything.

    Args:
        limit_mib: Of each GPU; None takes memory as it is needed, so that others can use the GPU, too.

    Raises:
        UsageError: If there is no GPU to limit, or TensorFlow has begun.
    """
    gpus = tf.config.list_physical_devices("GPU")
    try:
        for gpu, limit in plan_memory(len(gpus), limit_mib):
            if limit is None:
                tf.config.experimental.set_memory_growth(gpus[gpu], True)
            else:
                configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
                tf.config.set_logical_device_configuration(gpus[gpu], [configuration])
    except RuntimeError as error:
        raise UsageError(
            "the memory of the GPUs cannot be set any more",
            why="TensorFlow has already computed in this process",
            next_step="Set it in a separate process, before anything else uses TensorFlow",
        ) from error
