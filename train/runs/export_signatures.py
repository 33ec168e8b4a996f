"""The two ways to ask an exported model: by serialized examples, and by the values of features."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from shardkit.adapters.tensorflow import tensor_dtype
from shardkit.adapters.tfdata import ParsedBatch, parse_examples
from shardkit.features import Feature, Features
from train.runs.restore_model import RestoredModel, model_outputs, readable_outputs

PRESENT_SUFFIX = "_present"
LENGTH_SUFFIX = "_length"
# Names that TensorFlow's own functions have for arguments beside those of a signature.
_RESERVED = ("self",)

Answer = dict[str, tf.Tensor]


def answer_examples(restored: RestoredModel) -> Callable[[tf.Tensor], Answer]:
    """Returns the function of serialized `tf.train.Example`s, string `[n]`."""

    def answer(examples: tf.Tensor) -> Answer:
        return _answer(restored, parse_examples(examples, restored.bundle.features))

    return answer


def answer_features(restored: RestoredModel) -> Callable[[Mapping[str, tf.Tensor]], Answer]:
    """Returns the function of tensors by argument, as `argument_specs` names them."""
    features = restored.bundle.features
    names = argument_names(features)

    def answer(arguments: Mapping[str, tf.Tensor]) -> Answer:
        values, present = {}, {}
        for feature in features:
            name = names[feature.name]
            value = arguments[name]
            if feature.num_values is None:
                value = tf.RaggedTensor.from_tensor(value, lengths=arguments[name + LENGTH_SUFFIX])
            values[feature.name] = value
            if feature.nullable:
                present[feature.name] = arguments[name + PRESENT_SUFFIX]
        return _answer(restored, ParsedBatch(values, present))

    return answer


def argument_names(features: Features) -> dict[str, str]:
    """Returns the argument for each feature: its name, where that is one; other characters become underscores."""
    taken: set[str] = set()
    names: dict[str, str] = {}
    for feature in features:
        base = re.sub(r"\W", "_", feature.name, flags=re.ASCII)
        is_usable = base.isidentifier() and not keyword.iskeyword(base) and base not in _RESERVED
        base = base if is_usable and not base.startswith("_") else f"f_{base}"
        name, number = base, 2
        while taken & _all_arguments(feature, name):
            name, number = f"{base}_{number}", number + 1
        taken |= _all_arguments(feature, name)
        names[feature.name] = name
    return names


def argument_specs(features: Features) -> dict[str, tf.TensorSpec]:
    """Returns the tensors that `answer_features` takes.

    Besides the values, lists of any length have theirs, and features that may be absent a bool.
    """
    names = argument_names(features)
    specs: dict[str, tf.TensorSpec] = {}
    for feature in features:
        name = names[feature.name]
        specs[name] = tf.TensorSpec([None, *feature.shape], tensor_dtype(feature), name)
        if feature.num_values is None:
            specs[name + LENGTH_SUFFIX] = tf.TensorSpec([None], tf.int64, name + LENGTH_SUFFIX)
        if feature.nullable:
            specs[name + PRESENT_SUFFIX] = tf.TensorSpec([None], tf.bool, name + PRESENT_SUFFIX)
    return specs


def arguments_of(batch: ParsedBatch, features: Features) -> dict[str, tf.Tensor]:
    """Returns parsed columns as the arguments of `answer_features`."""
    names = argument_names(features)
    arguments: dict[str, Any] = {}
    for feature in features:
        name, value = names[feature.name], batch.values[feature.name]
        if isinstance(value, tf.RaggedTensor):
            arguments[name + LENGTH_SUFFIX] = tf.cast(value.row_lengths(), tf.int64)
            value = value.to_tensor()
        arguments[name] = value
        if feature.nullable:
            arguments[name + PRESENT_SUFFIX] = batch.present[feature.name]
    return arguments


def _all_arguments(feature: Feature, name: str) -> set[str]:
    found = {name}
    if feature.num_values is None:
        found.add(name + LENGTH_SUFFIX)
    if feature.nullable:
        found.add(name + PRESENT_SUFFIX)
    return found


def _answer(restored: RestoredModel, batch: ParsedBatch) -> Answer:
    return readable_outputs(restored.label, model_outputs(restored.bundle, restored.record.image_size, batch))
