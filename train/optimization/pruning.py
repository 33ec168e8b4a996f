"""Pruning by magnitude: the smallest weights of each kernel become zero, more of them as the run goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import keras
import msgspec
import tensorflow as tf

from shardkit.errors import UsageError

FIRST_SHARE = 0.1
LAST_SHARE = 0.75
NUM_ROUNDS = 100

_EXCLUDED = re.compile("bias|gamma|beta|embeddings")


class PruningPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When how much is pruned.

    Attributes:
        sparsity: Share of zeros in each kernel at the end.
        first_step: Updates before the first round.
        last_step: Updates before the last round; the weights that are left recover in the rest of the run.
        every: Updates from one round to the next.
    """

    sparsity: float
    first_step: int
    last_step: int
    every: int


def plan_pruning(sparsity: float, num_steps: int) -> PruningPlan:
    """Returns the plan for a run."""
    first, last = int(FIRST_SHARE * num_steps), int(LAST_SHARE * num_steps)
    return PruningPlan(sparsity=sparsity, first_step=first, last_step=last, every=max(1, (last - first) // NUM_ROUNDS))


class Pruning(tf.Module):
    """The masks of the kernels. Must be made in the scope of the strategy.

    Args:
        variables: The model's trainable ones; of them kernels are pruned, not embeddings, biases or normalizations.

    Raises:
        UsageError: If the model has no kernel.
    """

    def __init__(self, variables: Sequence[keras.Variable], plan: PruningPlan) -> None:
        super().__init__()
        self.plan = plan
        kernels = {i: v for i, v in enumerate(variables) if len(v.shape) >= 2 and not _EXCLUDED.search(v.name)}
        if not kernels:
            raise UsageError("the model has no kernels that could be pruned", next_step="Leave out --prune")
        self.masks = {
            str(i): tf.Variable(tf.ones(v.shape), trainable=False, name=f"mask_{v.name}") for i, v in kernels.items()
        }

    def update(self, mask: tf.Variable, weights: tf.Variable, num_updates: tf.Tensor) -> None:
        """Sets a mask anew if a round is due."""
        plan = self.plan
        step = tf.cast(num_updates, tf.int64)
        is_round = tf.equal((step - plan.first_step) % plan.every, 0) | tf.equal(step, plan.last_step)
        is_due = is_round & (step >= plan.first_step) & (step <= plan.last_step)
        mask.assign(tf.cond(is_due, lambda: magnitude_mask(weights, self._sparsity(step)), lambda: tf.identity(mask)))

    def _sparsity(self, step: tf.Tensor) -> tf.Tensor:
        plan = self.plan
        length = max(1, plan.last_step - plan.first_step)
        done = tf.cast(step - plan.first_step, tf.float64) / length if plan.last_step > plan.first_step else 1.0
        return plan.sparsity * (1 - (1 - done) ** 3)


def magnitude_mask(weights: tf.Tensor, sparsity: tf.Tensor) -> tf.Tensor:
    """Returns 0 for the smallest weights, 1 for the others; of equal ones the first are 0, so the share is exact."""
    flat = tf.reshape(tf.abs(weights), [-1])
    size = tf.size(flat)
    num_zeros = tf.cast(tf.round(sparsity * tf.cast(size, tf.float64)), tf.int32)
    smallest = tf.argsort(flat, stable=True)[:num_zeros]
    mask = tf.tensor_scatter_nd_update(tf.ones_like(flat), smallest[:, tf.newaxis], tf.zeros([num_zeros], flat.dtype))
    return tf.reshape(mask, tf.shape(weights))
