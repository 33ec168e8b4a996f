"""Makes the model bundle that `--model` names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import keras
import tensorflow as tf

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from train.models.applications import application_model
from train.models.builtin_models import image_model, tabular_model
from train.models.image_arrays import augment_pixels, num_channels, prepare_pixels
from train.models.images import NUM_CHANNELS
from train.models.model_inputs import ModelBundle
from train.models.model_recipe import ModelRecipe
from train.models.sequence_factory import sequence_bundle, signal_bundle, text_bundle, token_bundle
from train.models.tabular_inputs import prepare_columns
from train.models.user_model import arrange_inputs, choose_inputs, image_keys, load_build_function, prepare_user_inputs
from train.models.vocabulary import scan_values
from train.options.choices import IMAGE, TABULAR
from train.options.config import LabelSpec
from train.options.labels import listed_values
from train.options.model_defaults import APPLICATIONS, SEQUENCE, TEXT, is_image_array, is_of_any_length
from train.options.tabular_columns import TabularColumns, choose_columns, wants_vocabulary


def make_bundle(
    name: str,
    dataset: Dataset,
    split: str,
    features: Features,
    label: LabelSpec,
    image_size: int,
    strategy: tf.distribute.Strategy,
) -> ModelBundle:
    """Returns the model bundle of that name.

    Args:
        name: From `choose_model`.
        dataset: An open dataset.
        split: The train split; its statistics become the model's constants.
        features: Candidates.
        label: What is predicted.
        image_size: Height and width of images in pixels.
        strategy: In whose scope the model is made.

    Raises:
        UsageError: If the features do not suit the model, or the user's file fails.
    """
    statistics = dataset.manifest.split(split).statistics
    if name == TABULAR:
        return _tabular_bundle(dataset, split, features, statistics, label, strategy)
    if name == IMAGE or name in APPLICATIONS:
        return _image_bundle(name, features, statistics, label, image_size, strategy)
    if name == TEXT:
        return text_bundle(dataset, split, features, label, strategy)
    if name == SEQUENCE:
        return sequence_bundle(dataset, split, features, label, strategy)
    return _user_bundle(name, features, statistics, label, strategy)


def restore_bundle(
    name: str, recipe: ModelRecipe, label: LabelSpec, image_size: int, strategy: tf.distribute.Strategy
) -> ModelBundle:
    """Returns the model bundle that a recipe describes, with fresh weights.

    Args:
        name: As for `make_bundle`.
        recipe: From the record of the run.
        label: What is predicted.
        image_size: Height and width of images in pixels.
        strategy: In whose scope the model is made.

    Raises:
        UsageError: If the user's file fails.
    """
    features, statistics = recipe.features, recipe.statistics
    if recipe.columns is not None:
        return _column_bundle(recipe.columns, features, label, strategy)
    if recipe.vocabulary is not None:
        return token_bundle(features[0], recipe.vocabulary, label, strategy)
    if name == IMAGE or name in APPLICATIONS:
        return _image_bundle(name, features, statistics, label, image_size, strategy)
    if name == SEQUENCE:
        return signal_bundle(features[0], statistics, label, strategy)
    return _user_bundle(name, features, statistics, label, strategy)


def _tabular_bundle(
    dataset: Dataset,
    split: str,
    features: Features,
    statistics: Mapping[str, FeatureStatistics],
    label: LabelSpec,
    strategy: tf.distribute.Strategy,
) -> ModelBundle:
    wanted = [f for f in features if wants_vocabulary(f, statistics.get(f.name))]
    known = {f.name: values for f in wanted if (values := listed_values(statistics[f.name])) is not None}
    scanned = scan_values(dataset, split, tuple(f for f in wanted if f.name not in known))
    columns = choose_columns(features, statistics, {**known, **scanned})
    if not columns.names:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in columns.left_out.items())
        hint = "--model sequence and name one of them with --features" if any(map(is_of_any_length, features)) else None
        raise UsageError(
            "no feature suits the tabular model", why=reasons, next_step=f"Try {hint or '--model FILE.py:function'}"
        )
    return _column_bundle(columns, features, label, strategy)


def _column_bundle(
    columns: TabularColumns, features: Features, label: LabelSpec, strategy: tf.distribute.Strategy
) -> ModelBundle:
    used = tuple(f for f in features if f.name in columns.names)
    with strategy.scope():
        model = tabular_model(columns, label)
    return ModelBundle(
        features=used,
        model=model,
        prepare=prepare_columns(columns, used),
        images=(),
        arrange=dict,
        summary=f"{len(columns.numeric)} numeric and {len(columns.categories)} category columns",
        notes=tuple(f"feature {name!r} is left out: {reason}" for name, reason in columns.left_out.items()),
        columns=columns,
    )


def _image_bundle(
    name: str,
    features: Features,
    statistics: Mapping[str, FeatureStatistics],
    label: LabelSpec,
    image_size: int,
    strategy: tf.distribute.Strategy,
) -> ModelBundle:
    found = tuple(f for f in features if f.is_image) or tuple(filter(is_image_array, features))
    feature = _only_image(features, found, name)
    is_encoded = feature.is_image
    channels = NUM_CHANNELS if is_encoded else num_channels(feature)
    make = image_model if name == IMAGE else partial(application_model, name)
    with strategy.scope():
        model = make(image_size, label, strategy.num_replicas_in_sync, channels)
    if is_encoded:
        return _encoded_image_bundle(feature, model, image_size)
    pixels = prepare_pixels(feature, statistics.get(feature.name), image_size)
    return ModelBundle(
        features=(feature,),
        model=model,
        prepare=lambda batch: {"image": pixels(batch.values[feature.name])},
        images=(),
        arrange=dict,
        augment=lambda inputs, seeds: {"image": augment_pixels(inputs["image"], seeds)},
        summary=f"{feature.name} at {image_size} x {image_size} pixels",
    )


def _encoded_image_bundle(feature: Feature, model: keras.Model, image_size: int) -> ModelBundle:
    return ModelBundle(
        features=(feature,),
        model=model,
        prepare=lambda batch: {"image": batch.values[feature.name]},
        images=("image",),
        arrange=dict,
        summary=f"{feature.name} at {image_size} x {image_size} pixels",
    )


def _only_image(features: Features, found: Features, model: str) -> Feature:
    if len(found) != 1:
        raise UsageError(
            f"the {model} model reads one feature of encoded images, or of arrays such as uint8[28][28]",
            why=f"found: {', '.join(f.name for f in found) or 'none'} among {', '.join(f.name for f in features)}",
            next_step="Name it with --features, or use another --model",
        )
    return found[0]


def _user_bundle(
    reference: str,
    features: Features,
    statistics: Mapping[str, FeatureStatistics],
    label: LabelSpec,
    strategy: tf.distribute.Strategy,
) -> ModelBundle:
    build = load_build_function(reference)
    with strategy.scope():
        model = build(features, statistics, label)
    used, keys = choose_inputs(model, features)
    return ModelBundle(
        features=used,
        model=model,
        prepare=prepare_user_inputs(keys),
        images=image_keys(used, keys),
        arrange=partial(arrange_inputs, model),
        summary=", ".join(keys),
    )
