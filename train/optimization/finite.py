"""Whether what a run learned is still made of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf


def find_not_finite(variables: Sequence[keras.Variable]) -> str | None:
    """Returns the path of the first variable that holds NaN or infinity, None if there is none."""
    floats = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
    if not floats:
        return None
    # One answer for all of them: each costs a wait for the device.
    are_finite = tf.stack([tf.reduce_all(tf.math.is_finite(v.value)) for v in floats]).numpy()
    return next((v.path for v, is_finite in zip(floats, are_finite, strict=True) if not is_finite), None)
