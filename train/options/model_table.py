"""The models of `--model`: the module that builds each, and what suits it. Light, as the help reads it."""

from __future__ import annotations

from typing import Final, NamedTuple

TABULAR: Final = "tabular"
IMAGE: Final = "image"
TEXT: Final = "text"
SEQUENCE: Final = "sequence"


class Defaults(NamedTuple):
    """What suits a kind of model where the user does not say.

    Attributes:
        epochs: Passes over the train split.
        global_batch_size: Examples a step.
        learning_rate: Peak of the schedule.
        weight_decay: Of AdamW, per step and learning rate.
    """

    epochs: int
    global_batch_size: int
    learning_rate: float
    weight_decay: float


class ModelKind(NamedTuple):
    """A built-in model, those of `keras.applications`, or those of users.

    Attributes:
        module: A `train.models.factory.Builder`, loaded when the model is built: it needs TensorFlow.
        array_defaults: The same where arrays take the place of encoded images; None where that changes nothing.
        reads_images: Whether it reads images in any size, so that `--image-size` decides.
        has_lengths: Whether its examples differ in length, so that `--length-buckets` is for it.
        also: What it is for besides what its name says.
    """

    module: str
    defaults: Defaults
    array_defaults: Defaults | None = None
    reads_images: bool = False
    has_lengths: bool = False
    also: str = ""


_ARRAY_DEFAULTS = Defaults(epochs=10, global_batch_size=128, learning_rate=2e-3, weight_decay=5e-2)

BUILTIN_MODELS = {
    TABULAR: ModelKind(
        "train.models.builtin.tabular",
        Defaults(epochs=5, global_batch_size=256, learning_rate=2e-3, weight_decay=1e-3),
    ),
    IMAGE: ModelKind(
        "train.models.builtin.image",
        Defaults(epochs=40, global_batch_size=32, learning_rate=2e-3, weight_decay=5e-2),
        _ARRAY_DEFAULTS,
        reads_images=True,
    ),
    TEXT: ModelKind(
        "train.models.builtin.text",
        Defaults(epochs=3, global_batch_size=128, learning_rate=2e-3, weight_decay=1e-2),
        has_lengths=True,
    ),
    SEQUENCE: ModelKind(
        "train.models.builtin.sequence",
        Defaults(epochs=30, global_batch_size=32, learning_rate=2e-3, weight_decay=5e-2),
        has_lengths=True,
        also="audio",
    ),
}
APPLICATION = ModelKind(
    "train.models.builtin.image",
    Defaults(epochs=40, global_batch_size=32, learning_rate=1e-3, weight_decay=5e-2),
    _ARRAY_DEFAULTS._replace(learning_rate=1e-3),
    reads_images=True,
)
USER_MODEL = ModelKind(
    "train.models.user_model",
    Defaults(epochs=5, global_batch_size=64, learning_rate=1e-3, weight_decay=0.0),
)

NAMED_IN_HELP = ", ".join(f"{name} (also {kind.also})" if kind.also else name for name, kind in BUILTIN_MODELS.items())
