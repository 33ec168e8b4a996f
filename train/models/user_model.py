"""A user's model, `FILE.py:function`, loaded by its path; no folder is put on the import path."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch
from shardkit.dataset.manifest import FeatureStatistics
from shardkit.dataset.open import Dataset
from shardkit.errors import ShardkitError, UsageError
from shardkit.features import Features
from shardkit.runtime.user_files import user_module
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe
from train.options.config import LabelSpec

PRESENCE_SUFFIX = ".present"

BuildModel = Callable[[Features, Mapping[str, FeatureStatistics], LabelSpec], keras.Model]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Colours, and texts that TensorFlow and Keras put before the message.
_DECORATION = re.compile(r"\x1b\[\d*m|\{\{function_node [^}]*\}\}|Exception encountered when calling [^\n]*")
_LONGEST_REASON = 400
_ARGUMENTS = "Arguments received by"
# Lines that Keras and TensorFlow put around the message that was raised.
_OF_THE_FRAMEWORK = (
    'File "', "in user code:", "Graph execution error:", "Detected at node", "[[",
    "Stack trace for op definition",
)  # fmt: skip


def make_bundle(settings: ModelSettings, dataset: Dataset, split: str, features: Features) -> ModelBundle:
    """Returns the model bundle that the user's function makes of the features.

    Raises:
        UsageError: If the user's file fails.
    """
    return _user_bundle(settings, features, dataset.manifest.split(split).statistics)


def restore_bundle(settings: ModelSettings, recipe: ModelRecipe) -> ModelBundle:
    """Returns the model bundle that the user's function makes of what a recipe describes.

    Raises:
        UsageError: If the user's file fails.
    """
    return _user_bundle(settings, recipe.features, recipe.statistics)


def _user_bundle(
    settings: ModelSettings, features: Features, statistics: Mapping[str, FeatureStatistics]
) -> ModelBundle:
    build = load_build_function(settings.name)
    with settings.strategy.scope():
        model = build(features, statistics, settings.label)
    used, keys = choose_inputs(model, features)
    return ModelBundle(
        features=used,
        model=model,
        prepare=prepare_user_inputs(keys),
        images=image_keys(used, keys),
        arrange=partial(arrange_inputs, model),
        summary=", ".join(keys),
    )


def load_build_function(reference: str) -> BuildModel:
    """Returns the function that `FILE.py:function` names.

    It is called as `function(features, statistics, label_spec)` and returns a Keras 3 model that takes a dictionary
    of features by name and gives `label_spec.num_outputs` values an example: logits, or the predicted number.

    Raises:
        UsageError: If there is no such file or function, or the file cannot be run.
    """
    path, function_name = model_path(reference), reference.rpartition(":")[2]
    if not path.is_file():
        raise UsageError(f"there is no model file {str(path)!r}", next_step="Write it like my_model.py:build")
    if path.suffix != ".py":
        raise UsageError(
            "the model file is no Python file", where=str(path), next_step="Write it like --model my_model.py:build"
        )
    module, run = user_module(f"_shardkit_model_{path.stem}", str(path), path.read_bytes())
    call_user_code(path, run)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(
            f"the model file has no function {function_name!r}",
            where=str(path),
            next_step="Name one that the file defines, like --model my_model.py:build",
        )

    def build(features: Features, statistics: Mapping[str, FeatureStatistics], label: LabelSpec) -> keras.Model:
        model = call_user_code(path, lambda: function(features, statistics, label))
        if not isinstance(model, keras.Model):
            raise UsageError(
                f"{function_name} returned {type(model).__name__}, not a keras.Model",
                where=str(path),
                next_step=f"Return the keras.Model from {function_name}, not compiled or fitted",
            )
        return model

    return build


def model_path(reference: str) -> Path:
    """Returns the file of `FILE.py:function`."""
    return Path(reference.rpartition(":")[0]).expanduser().absolute()


def call_user_code(path: Path, call: Callable[[], Any], is_foreign: Callable[[Exception], bool] | None = None) -> Any:
    """Calls code of the user and turns its error into one that names its line.

    Args:
        is_foreign: Returns whether the cause of an error is elsewhere, so that it is left as it is; None if it never
            does.
    """
    try:
        return call()
    except ShardkitError:
        raise
    except Exception as error:
        if is_foreign is not None and is_foreign(error):
            raise
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
        if isinstance(error, SyntaxError) and error.lineno:
            lines.append(error.lineno)
        # TensorFlow tells frames of a graph in the text.
        lines = lines or [int(n) for file, n in _FRAME.findall(str(error)) if Path(file) == path]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise UsageError(
            "the model file failed",
            where=where,
            why=in_short(error),
            next_step="Correct the line that is named"
            if lines
            else "Correct what the reason names; --debug shows where it was raised",
        ) from error


def in_short(error: Exception) -> str:
    """Returns kind and message of an error, without the frames and arguments that TensorFlow and Keras put in."""
    kept: list[str] = []
    is_source = False
    for line in _DECORATION.sub("", str(error)).splitlines():
        text = line.strip()
        if text.startswith(_ARGUMENTS):
            break
        if text and not is_source and not text.startswith(_OF_THE_FRAMEWORK):
            kept.append(text)
        is_source = text.startswith('File "')
    message = " ".join(kept)
    kind = f"{type(error).__name__}: "
    message = message if re.match(r"\w+(Error|Exception): ", message) else kind + message
    return message if len(message) <= _LONGEST_REASON else message[:_LONGEST_REASON] + " ..."


def wanted_inputs(model: keras.Model) -> tuple[str, ...] | None:
    """Returns the names of a model's inputs, None if it does not tell (a subclass takes whatever there is)."""
    try:
        declared = model.input
    except (AttributeError, ValueError):
        return None
    if isinstance(declared, Mapping):
        return tuple(declared)
    return tuple(tensor.name for tensor in (declared if isinstance(declared, list | tuple) else [declared]))


def choose_inputs(model: keras.Model, features: Features) -> tuple[Features, tuple[str, ...]]:
    """Returns the features that a model reads, and the keys of the dictionary that it is given.

    Raises:
        UsageError: If an input of the model is no feature.
    """
    known = {f.name: f for f in features}
    known_presence = {f.name + PRESENCE_SUFFIX: f for f in features if f.nullable}
    names = wanted_inputs(model)
    if names is None:
        return features, (*known, *known_presence)
    for name in names:
        if name not in known and name not in known_presence:
            raise UsageError(
                f"the model has an input {name!r}, which is no feature",
                next_step=f"Give its inputs the names of features: {', '.join([*known, *known_presence])}",
            )
    needed = {(known.get(n) or known_presence[n]).name for n in names}
    return tuple(f for f in features if f.name in needed), names


def prepare_user_inputs(keys: tuple[str, ...]) -> Callable[[ParsedBatch], dict[str, tf.Tensor]]:
    """Returns the function that makes the inputs of a user's model.

    Values have the feature's dtype; lists are padded to the longest of the batch with 0 or an empty string. Absent
    values are 0 or empty, never NaN, and `NAME.present` tells them apart. Images are decoded afterwards.
    """

    def prepare(batch: ParsedBatch) -> dict[str, tf.Tensor]:
        inputs = {}
        for key in keys:
            if key in batch.values:
                inputs[key] = _dense(batch.values[key], batch.present.get(key))
            else:
                inputs[key] = batch.present[key.removesuffix(PRESENCE_SUFFIX)]
        return inputs

    return prepare


def arrange_inputs(model: keras.Model, inputs: dict[str, tf.Tensor]) -> Any:
    """Returns the inputs as the model declares them: by name, or the only one itself."""
    if wanted_inputs(model) is not None and isinstance(model.input, keras.KerasTensor):
        return next(iter(inputs.values()))
    return inputs


def image_keys(features: Features, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the inputs that hold encoded images."""
    return tuple(f.name for f in features if f.name in keys and f.is_image)


def _dense(value: tf.Tensor | tf.RaggedTensor, present: tf.Tensor | None) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return value.to_tensor()
    if present is None or not value.dtype.is_floating:
        return value
    return tf.where(tf.reshape(present, [-1] + [1] * (len(value.shape) - 1)), value, tf.zeros([], value.dtype))


def check_model(bundle: ModelBundle, reference: str, inputs: object, label: LabelSpec) -> tuple[str, ...]:
    """Builds a user's model on one batch of zeros, checks its outputs, and returns notes for the user.

    Raises:
        UsageError: If the model cannot take the inputs, or gives something of another shape.
    """
    num_examples = 2

    def zeros(spec: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([num_examples, *(size or 1 for size in spec.shape[1:])], spec.dtype)

    sample = tf.nest.map_structure(zeros, inputs)
    path = model_path(reference)
    outputs = call_user_code(path, lambda: bundle.model(sample, training=False))
    wanted = f"{[None, label.num_outputs]}: "
    wanted += "one logit for each class" if label.task == "classification" else "the predicted number"
    if not keras.ops.is_tensor(outputs):
        raise UsageError(
            f"the model gives a {type(outputs).__name__} for a batch, and not one tensor",
            where=str(path),
            why=f"expected {wanted}",
            next_step="Give keras.Model one output, the one that the label is compared with",
        )
    found = tuple(outputs.shape)
    allowed = [(num_examples, label.num_outputs)] + ([(num_examples,)] if label.task == "regression" else [])
    if found not in allowed:
        without = ", without a softmax at its end" if label.task == "classification" else ""
        raise UsageError(
            f"the model gives shape {[None, *found[1:]]} for a batch",
            where=str(path),
            why=f"expected {wanted}",
            next_step=f"Change the last layer of the model{without}",
        )
    if not bundle.model.trainable_variables:
        raise UsageError(
            "the model has nothing to train",
            where=str(path),
            next_step="Give it a layer with weights, and leave trainable on",
        )
    is_probability = label.num_outputs > 1 and np.allclose(np.sum(outputs, axis=1), 1.0, atol=1e-5)
    return ("the model seems to give probabilities; leave the softmax out, a loss on logits is exact",) * is_probability
