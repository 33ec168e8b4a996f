"""What layers compute in, the loss scale that keeps small gradients of float16 from vanishing, and a check for NaN."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from shardkit.errors import UsageError
from train.options.config import Precision

INITIAL_SCALE = 2.0**15
STEPS_TO_GROW = 2000
SMALLEST_SCALE = 2.0**-14  # With less, gradients of float16 would not be numbers for any loss.

_POLICIES: dict[Precision, str] = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def set_precision(precision: Precision) -> None:
    """Makes layers that are built from now on compute in a type; their weights are float32 in any case."""
    keras.config.set_dtype_policy(_POLICIES[precision])


def note_on_outputs(model: keras.Model, precision: Precision) -> str | None:
    """Returns a sentence if the last layer of a model computes in less than float32, None if not."""
    outputs = getattr(model, "outputs", None)
    if precision == "float32" or not outputs or all(o.dtype == "float32" for o in outputs):
        return None
    return f"the model's last layer computes in {precision}; with dtype='float32' its loss is more exact"


def find_not_finite(variables: Sequence[keras.Variable]) -> str | None:
    """Returns the path of the first variable that holds NaN or infinity, None if there is none."""
    floats = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
    if not floats:
        return None
    # One answer for all of them: each costs a wait for the device.
    are_finite = tf.stack([tf.reduce_all(tf.math.is_finite(v.value)) for v in floats]).numpy()
    return next((v.path for v, is_finite in zip(floats, are_finite, strict=True) if not is_finite), None)


class LossScale(tf.Module):
    """A factor of the loss: halved when gradients overflow, doubled after many steps without.

    Keras's loss scale checks each replica's gradients before they are added up, and takes the first replica's answer.
    When another one overflows, weights become infinite, or workers wait for each other for ever. This class checks the
    sum of all replicas' gradients, which is the same on all of them.

    Must be made in the scope of the strategy, and updated in its cross-replica context.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(INITIAL_SCALE, trainable=False, name="loss_scale")
        self.num_good_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_good_steps")

    def grow(self) -> None:
        """Counts a step whose gradients were finite."""
        is_due = tf.equal(self.num_good_steps + 1, STEPS_TO_GROW)
        self.scale.assign(tf.where(is_due, self.scale * 2.0, self.scale))
        self.num_good_steps.assign(tf.where(is_due, tf.zeros([], tf.int64), self.num_good_steps + 1))

    def shrink(self) -> None:
        """Counts a step whose gradients overflowed."""
        self.scale.assign(self.scale * 0.5)
        self.num_good_steps.assign(0)

    def check(self) -> None:
        """Checks that training goes on. Raises UsageError if gradients overflowed whatever the scale."""
        scale = float(self.scale.numpy())
        if scale < SMALLEST_SCALE:
            raise UsageError(
                "the gradients are no numbers",
                why=f"they overflowed in step after step, until the loss scale was {scale:g}",
                state="The last checkpoint is from before",
                next_step="Use --precision bfloat16 or a smaller --learning-rate",
            )
