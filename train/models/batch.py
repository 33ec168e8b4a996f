"""Examples as a model takes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf


class Batch(NamedTuple):
    """Examples as a model takes them; n of them on every replica in every step.

    Attributes:
        inputs: Tensors `[n, ...]` in the structure that the model takes.
        labels: int32 `[n]` class indices, or float32 `[n]` numbers.
        weights: float32 `[n]`; 0 for padding and for examples without a label.
    """

    inputs: Any
    labels: tf.Tensor
    weights: tf.Tensor
