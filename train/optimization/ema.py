"""The moving average of the weights, which often does better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras
import tensorflow as tf


class WeightAverages(tf.Module):
    """A moving average of every trainable variable. Must be made in the scope of the strategy.

    Args:
        variables: Of the model.
        momentum: Share of the average that a step keeps. Less in the first steps, so that the average of a short run is
            not that of its initial weights.
    """

    def __init__(self, variables: Sequence[keras.Variable], momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.values = [tf.Variable(tf.identity(v.value), trainable=False, name=f"average_{v.name}") for v in variables]

    def momentum_at(self, num_updates: tf.Tensor) -> tf.Tensor:
        """Returns the momentum of the update that follows `num_updates` updates."""
        done = tf.cast(num_updates, tf.float32)
        return tf.minimum(self.momentum, (1.0 + done) / (10.0 + done))

    @contextmanager
    def in_place_of(self, variables: Sequence[keras.Variable]) -> Iterator[None]:
        """Gives a model its averaged weights for the length of the block."""
        self._swap(variables)
        try:
            yield
        finally:
            self._swap(variables)

    def _swap(self, variables: Sequence[keras.Variable]) -> None:
        for variable, average in zip(variables, self.values, strict=True):
            value = tf.identity(variable.value)
            variable.value.assign(average)
            average.assign(value)
