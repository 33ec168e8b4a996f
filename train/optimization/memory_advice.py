"""Advice for a device without enough memory: a smaller batch, or the same one in more parts. Pure."""

from __future__ import annotations

from shardkit.units import format_size
from train.optimization.memory_estimate import MemoryEstimate


def smaller_batch(
    global_batch_size: int, num_replicas: int, accumulate: int, estimate: MemoryEstimate, limit_bytes: int | None
) -> int | None:
    """Returns a global batch size that needs half of the memory for activations, or less if the limit is known.

    It divides among replicas and micro-batches. None if there is none.

    Args:
        global_batch_size: That did not fit.
        num_replicas: That share it.
        accumulate: Micro-batches a step.
        estimate: Of a micro-batch on one replica.
        limit_bytes: Of memory on each device; None if it is not known.
    """
    unit = num_replicas * accumulate
    largest = global_batch_size // 2
    if limit_bytes is not None and estimate.activations:
        room = limit_bytes - (estimate.total - estimate.activations)
        largest = min(largest, max(0, room * estimate.num_examples // estimate.activations) * unit)
    return largest // unit * unit or None


def more_parts(replica_batch_size: int, accumulate: int) -> int | None:
    """Returns at least twice as many micro-batches as before, a number that divides a replica's share; None if none."""
    return next((n for n in range(2 * accumulate, replica_batch_size + 1) if replica_batch_size % n == 0), None)


def advise(
    global_batch_size: int,
    num_replicas: int,
    accumulate: int,
    estimate: MemoryEstimate,
    limit_bytes: int | None,
    *,
    is_training: bool,
) -> str:
    """Returns the advice, with numbers.

    Args:
        global_batch_size: That did not fit.
        num_replicas: That share it.
        accumulate: Micro-batches a step.
        estimate: Of a micro-batch on one replica.
        limit_bytes: Of memory on each device; None if it is not known.
        is_training: Whether it was a step of training; micro-batches change nothing for validation.
    """
    batch = smaller_batch(global_batch_size, num_replicas, accumulate, estimate, limit_bytes)
    parts = more_parts(global_batch_size // num_replicas, accumulate) if is_training else None
    ways = [f"--global-batch-size {batch}"] * (batch is not None)
    ways += [f"--accumulate {parts}, which keeps the batch and computes it in parts"] * (parts is not None)
    if ways:
        return f"Use {', or '.join(ways)}"
    fixed = format_size(estimate.total - (estimate.activations or 0))
    return f"Use a smaller model: its weights, gradients and optimizer take {fixed} whatever the batch"
