"""The model for a dataset, and the defaults of the model. Pure, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.media.audio_headers import AUDIO_NUMBERS
from train.options.model_table import (
    APPLICATION,
    BUILTIN_MODELS,
    IMAGE,
    SEQUENCE,
    TABULAR,
    TEXT,
    USER_MODEL,
    Defaults,
    ModelKind,
)
from train.options.tabular_columns import reason_to_leave_out

DEFAULT_IMAGE_SIZE = 96
MIN_ARRAY_SIZE = 8

# Models of `keras.applications`, and the image size that each was made for where it is not 224.
APPLICATIONS = (
    "ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtSmall", "ConvNeXtTiny", "ConvNeXtXLarge", "DenseNet121", "DenseNet169",
    "DenseNet201", "EfficientNetB0", "EfficientNetB1", "EfficientNetB2", "EfficientNetB3", "EfficientNetB4",
    "EfficientNetB5", "EfficientNetB6", "EfficientNetB7", "EfficientNetV2B0", "EfficientNetV2B1", "EfficientNetV2B2",
    "EfficientNetV2B3", "EfficientNetV2L", "EfficientNetV2M", "EfficientNetV2S", "InceptionResNetV2", "InceptionV3",
    "MobileNet", "MobileNetV2", "MobileNetV3Large", "MobileNetV3Small", "NASNetLarge", "NASNetMobile", "ResNet101",
    "ResNet101V2", "ResNet152", "ResNet152V2", "ResNet50", "ResNet50V2", "VGG16", "VGG19", "Xception",
)  # fmt: skip
_APPLICATION_SIZES = {
    "EfficientNetB1": 240, "EfficientNetB2": 260, "EfficientNetB3": 300, "EfficientNetB4": 380, "EfficientNetB5": 456,
    "EfficientNetB6": 528, "EfficientNetB7": 600, "EfficientNetV2B1": 240, "EfficientNetV2B2": 260,
    "EfficientNetV2B3": 300, "EfficientNetV2L": 480, "EfficientNetV2M": 480, "EfficientNetV2S": 384,
    "InceptionResNetV2": 299, "InceptionV3": 299, "NASNetLarge": 331, "Xception": 299,
}  # fmt: skip
# The least that they take where it is not 32: each halves its images until nothing would be left.
_APPLICATION_MIN_SIZES = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71}


def is_user_model(model: str) -> bool:
    """Whether a model is `FILE.py:function`."""
    return ":" in model


def is_image_array(feature: Feature) -> bool:
    """Whether a feature can be taken for an image: numbers `[height, width]` or with 1 or 3 channels."""
    has_channels = len(feature.shape) == 2 or (len(feature.shape) == 3 and feature.shape[2] in (1, 3))
    is_number = feature.dtype.startswith(("uint", "int", "float"))
    return is_number and has_channels and all((size or 0) >= MIN_ARRAY_SIZE for size in feature.shape[:2])


def is_audio(feature: Feature) -> bool:
    """Whether a feature holds one audio file an example."""
    return feature.is_scalar and feature.dtype == "bytes" and (feature.media_type or "").startswith("audio/")


def is_series(feature: Feature) -> bool:
    """Whether a feature is a row of numbers, or several numbers at each of its steps."""
    is_number = feature.dtype.startswith(("float", "int", "uint"))
    return is_number and len(feature.shape) in (1, 2)


def is_tokens(feature: Feature) -> bool:
    """Whether a feature is text, or a row of strings or integers."""
    if feature.is_scalar:
        return feature.dtype == "string" and not feature.is_json
    is_token = feature.dtype == "string" or feature.dtype.startswith(("int", "uint"))
    return len(feature.shape) == 1 and is_token


def is_of_any_length(feature: Feature) -> bool:
    """Whether a feature is a list that the sequence model can take and no table can."""
    return bool(feature.shape) and feature.num_values is None and (is_series(feature) or is_tokens(feature))


def model_kind(model: str) -> ModelKind:
    """Returns the entry of the table of models that a model belongs to. Raises UsageError if there is no such model."""
    if is_user_model(model):
        return USER_MODEL
    if model in APPLICATIONS:
        return APPLICATION
    if model in BUILTIN_MODELS:
        return BUILTIN_MODELS[model]
    lowered = {name.lower(): name for name in (*BUILTIN_MODELS, *APPLICATIONS)}
    near = [lowered[n] for n in get_close_matches(model.lower(), lowered, n=3)]
    raise UsageError(
        f"there is no model {model!r}",
        why=f"near ones are {', '.join(near)}" if near else None,
        next_step=f"Use {', '.join(BUILTIN_MODELS)}, a name from keras.applications or FILE.py:function",
    )


def choose_model(wanted: str | None, features: Features, statistics: Mapping[str, FeatureStatistics]) -> str:
    """Returns the name of the model.

    Images and audio have their own; a single text or list that no table can take is read as text or as a sequence;
    everything else is a table.

    Raises:
        UsageError: If there is no such model.
    """
    if wanted is None:
        return _default_model(features, statistics)
    model_kind(wanted)
    return wanted


def choose_defaults(model: str, features: Features) -> Defaults:
    """Returns the defaults of a model on these features."""
    kind = model_kind(model)
    if kind.array_defaults is not None and not any(f.is_image for f in features):
        return kind.array_defaults
    return kind.defaults


def choose_image_size(wanted: int | None, model: str, features: Features) -> int:
    """Returns the height and width of images: those that arrays have, those that a named model was made for.

    A named model takes small arrays as small as it can: a larger size adds work, but no information.

    Raises:
        UsageError: If a size is wanted for a model that reads no images.
    """
    kind = model_kind(model)
    if wanted is not None:
        check_image_size(wanted, model, reads_images=kind.reads_images or kind is USER_MODEL)
        return wanted
    arrays = [] if any(f.is_image for f in features) else [f for f in features if is_image_array(f)]
    if kind is APPLICATION:
        made_for = _APPLICATION_SIZES.get(model, 224)
        if not arrays:
            return made_for
        return min(made_for, max(_largest_side(arrays[0]), _APPLICATION_MIN_SIZES.get(model, 32)))
    if kind.reads_images and arrays:
        return _largest_side(arrays[0])
    return DEFAULT_IMAGE_SIZE


def check_image_size(wanted: int | None, model: str, *, reads_images: bool) -> None:
    """Checks that a size of images is wanted only where there are some that it decides on.

    Raises:
        UsageError: If a model that reads no images should have them in a size.
    """
    if wanted is not None and not reads_images:
        raise UsageError(
            f"--image-size is for images, and the model {model} reads none of another size than its own",
            next_step="Leave it out, or choose another --model",
        )


def _largest_side(feature: Feature) -> int:
    return max(int(size or 0) for size in feature.shape[:2])


def _default_model(features: Features, statistics: Mapping[str, FeatureStatistics]) -> str:
    if any(f.is_image or (is_image_array(f) and f.dtype == "uint8") for f in features):
        return IMAGE
    lists = [f for f in features if is_of_any_length(f)]
    is_decoded = len(lists) == 1 and {f.name for f in features}.issuperset(AUDIO_NUMBERS)
    if is_decoded or any(map(is_audio, features)):
        return SEQUENCE
    if not statistics or any(reason_to_leave_out(f, statistics.get(f.name)) is None for f in features):
        return TABULAR
    texts = [f for f in features if f.is_scalar and is_tokens(f)]
    if len(lists) + len(texts) != 1:
        return TABULAR
    return TEXT if texts else SEQUENCE
