"""`--model EfficientNetB0` and others of `keras.applications`: from new weights, each with its scaling of pixels."""

from __future__ import annotations

import importlib
from functools import partial

import keras

from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Features
from train.models.builtin.image import BATCH_NORM_MOMENTUM, image_bundle
from train.models.builtin.outputs import outputs_layer
from train.models.images import NUM_CHANNELS
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe
from train.options.config import LabelSpec


def make_bundle(settings: ModelSettings, dataset: Dataset, split: str, features: Features) -> ModelBundle:
    """Returns the model bundle for the only feature of images.

    Raises:
        UsageError: If there is none, or more than one, or the images are too small.
    """
    statistics = dataset.manifest.split(split).statistics
    return image_bundle(settings, features, statistics, partial(application_model, settings.name))


def restore_bundle(settings: ModelSettings, recipe: ModelRecipe) -> ModelBundle:
    """Returns the model bundle that a recipe describes."""
    return image_bundle(settings, recipe.features, recipe.statistics, partial(application_model, settings.name))


def application_model(
    name: str, image_size: int, label: LabelSpec, num_replicas: int, num_channels: int = NUM_CHANNELS
) -> keras.Model:
    """Returns a model of `keras.applications` over float32 images `[image_size, image_size, num_channels]`, 0 to 255.

    Grey images stand for colours whose parts are the same.

    Batch normalization is over the global batch, and its statistics settle within the few steps that a small dataset
    has; with the momentum of some of these models they would take thousands.

    Raises:
        UsageError: If images of that size are too small for the model.
    """
    build = getattr(keras.applications, name)
    scaling = importlib.import_module(f"keras.applications.{build.__module__.rpartition('.')[2]}")
    images = keras.Input([image_size, image_size, num_channels], name="image")
    shape = (image_size, image_size, NUM_CHANNELS)
    try:
        body = build(include_top=False, weights=None, input_shape=shape, pooling="avg")
    except ValueError as error:
        raise UsageError(
            f"{name} cannot take images of {image_size} x {image_size} pixels",
            why=str(error).strip().splitlines()[0],
            next_step="Use a larger --image-size, or leave it out",
        ) from error

    def renewed(layer: keras.layers.Layer) -> keras.layers.Layer:
        settings = layer.get_config()
        if isinstance(layer, keras.layers.BatchNormalization):
            momentum = min(layer.momentum, BATCH_NORM_MOMENTUM)
            settings |= {"synchronized": num_replicas > 1, "momentum": momentum}
        return type(layer).from_config(settings)

    body = keras.models.clone_model(body, clone_function=renewed)
    colors = images if num_channels == NUM_CHANNELS else keras.layers.Concatenate()([images] * NUM_CHANNELS)
    hidden = body(scaling.preprocess_input(colors))
    return keras.Model({"image": images}, outputs_layer(hidden, label), name=name.lower())
