"""Estimates the memory of a step on one replica from shapes, without the memory of libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from shardkit.units import format_number, format_size
from train.optimization.recompute import held_outputs


class MemoryEstimate(NamedTuple):
    """Bytes on one replica.

    Attributes:
        parameters: All weights.
        gradients: As many values as are trained.
        optimizer: Its slots.
        activations: What layers give for the examples of a step, kept for the backward pass; None where a model does
            not tell the shapes.
        num_layers: Whose outputs are counted.
        num_values: Of those outputs an example.
        num_examples: A step.
        kept: Moving averages and masks of the weights.
        is_recomputed: Whether blocks of the model are computed again, so that not all outputs are kept.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int | None
    num_layers: int
    num_values: int
    num_examples: int
    kept: int = 0
    is_recomputed: bool = False

    @property
    def total(self) -> int:
        """All that is known."""
        return self.parameters + self.gradients + self.optimizer + self.kept + (self.activations or 0)

    def lines(self) -> list[tuple[str, str, str]]:
        """Returns name, size and formula of each part."""
        formula = "the model does not tell the shapes of its layers"
        if self.activations is not None:
            formula = f"{format_number(self.num_examples, 'example')} x {self.num_values:,} values that "
            formula += f"{format_number(self.num_layers, 'layer')} give" + ("s" if self.num_layers == 1 else "")
            formula += ", the others again" if self.is_recomputed else ""
        kept = [("averages, masks", format_size(self.kept), "of the weights, for --ema and --prune")]
        return [
            ("parameters", format_size(self.parameters), "weights x bytes of their dtype"),
            ("gradients", format_size(self.gradients), "one for each weight that is trained"),
            ("optimizer", format_size(self.optimizer), "its slots"),
            *(kept if self.kept else []),
            ("activations", format_size(self.activations) if self.activations is not None else "-", formula),
            ("together", format_size(self.total), "at least; libraries and workspace are not counted"),
        ]


def estimate_memory(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    num_examples: int,
    kept: Iterable[Any] = (),
    *,
    recompute: bool = False,
) -> MemoryEstimate:
    """Returns the memory of a step. Raises UsageError if blocks should be computed again and there are none."""
    outputs = max(held_outputs(model), key=_bytes_of_one) if recompute else list(_outputs(model))
    values = sum(prod(size or 1 for size in t.shape[1:]) for t in outputs)
    per_example = _bytes_of_one(outputs)
    return MemoryEstimate(
        parameters=_num_bytes(model.weights),
        gradients=_num_bytes(model.trainable_weights),
        optimizer=_num_bytes(optimizer.variables),
        activations=num_examples * per_example if outputs else None,
        num_layers=len(outputs),
        num_values=values,
        num_examples=num_examples,
        kept=_num_bytes(kept),
        is_recomputed=recompute,
    )


def _bytes_of_one(outputs: Iterable[Any]) -> int:
    """Returns the bytes of some outputs for one example."""
    return sum(prod(size or 1 for size in t.shape[1:]) * _size_of(t.dtype) for t in outputs)


def _outputs(layer: keras.layers.Layer) -> Iterator[Any]:
    """Yields the symbolic outputs of all layers that a functional model is made of."""
    for inner in getattr(layer, "layers", ()):
        if getattr(inner, "layers", ()):
            yield from _outputs(inner)
        elif not isinstance(inner, keras.layers.InputLayer):
            try:
                found = inner.output
            except (AttributeError, ValueError):
                continue
            yield from keras.tree.flatten(found)


def _num_bytes(variables: Iterable[Any]) -> int:
    return sum(prod(v.shape) * _size_of(v.dtype) for v in variables)


def _size_of(dtype: Any) -> int:
    return tf.as_dtype(keras.backend.standardize_dtype(dtype)).size


def smaller_batch(
    global_batch_size: int, num_replicas: int, accumulate: int, estimate: MemoryEstimate, limit_bytes: int | None
) -> int | None:
    """Returns a global batch size that needs half of the memory for activations, or less if the limit is known.

    It divides among replicas and micro-batches. None if there is none.

    Args:
        global_batch_size: That did not fit.
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
