"""`--model image`, a small residual network, and names of `keras.applications`: one feature of images."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial

import keras
from keras import layers

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from train.models.builtin.outputs import outputs_layer
from train.models.image_arrays import augment_pixels, num_channels, prepare_pixels
from train.models.images import NUM_CHANNELS
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe
from train.options.config import LabelSpec
from train.options.model_defaults import is_image_array
from train.options.model_table import IMAGE

STAGES = (32, 64, 128)
BATCH_NORM_MOMENTUM = 0.9  # Statistics settle within the few steps that a small dataset has.


def make_bundle(settings: ModelSettings, dataset: Dataset, split: str, features: Features) -> ModelBundle:
    """Returns the model bundle for the only feature of images.

    Raises:
        UsageError: If there is none, or more than one, or the images are too small for the model.
    """
    return _image_bundle(settings, features, dataset.manifest.split(split).statistics)


def restore_bundle(settings: ModelSettings, recipe: ModelRecipe) -> ModelBundle:
    """Returns the model bundle that a recipe describes."""
    return _image_bundle(settings, recipe.features, recipe.statistics)


def _image_bundle(
    settings: ModelSettings, features: Features, statistics: Mapping[str, FeatureStatistics]
) -> ModelBundle:
    found = tuple(f for f in features if f.is_image) or tuple(filter(is_image_array, features))
    feature = _only_image(features, found, settings.name)
    channels = NUM_CHANNELS if feature.is_image else num_channels(feature)
    image_size, strategy = settings.image_size, settings.strategy
    make_network = image_model if settings.name == IMAGE else partial(application_model, settings.name)
    with strategy.scope():
        model = make_network(image_size, settings.label, strategy.num_replicas_in_sync, channels)
    encoded = ModelBundle(
        features=(feature,),
        model=model,
        prepare=lambda batch: {"image": batch.values[feature.name]},
        images=("image",),
        arrange=dict,
        summary=f"{feature.name} at {image_size} x {image_size} pixels",
    )
    if feature.is_image:
        return encoded
    pixels = prepare_pixels(feature, statistics.get(feature.name), image_size)
    return encoded._replace(
        prepare=lambda batch: {"image": pixels(batch.values[feature.name])},
        images=(),
        augment=lambda inputs, seeds: {"image": augment_pixels(inputs["image"], seeds)},
    )


def _only_image(features: Features, found: Features, model: str) -> Feature:
    if len(found) != 1:
        raise UsageError(
            f"the {model} model reads one feature of encoded images, or of arrays such as uint8[28][28]",
            why=f"found: {', '.join(f.name for f in found) or 'none'} among {', '.join(f.name for f in features)}",
            next_step="Name it with --features, or use another --model",
        )
    return found[0]


def image_model(image_size: int, label: LabelSpec, num_replicas: int, num_channels: int = NUM_CHANNELS) -> keras.Model:
    """Returns a small residual network over float32 images `[image_size, image_size, num_channels]` from 0 to 255.

    Batch normalization is over the global batch, so that the number of replicas changes nothing. On 400 photos it
    reached 0.69 where normalization by groups of channels reached 0.63 (mean of three splits, 25 epochs).
    """

    def normalized(x: keras.KerasTensor) -> keras.KerasTensor:
        norm = layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM, synchronized=num_replicas > 1)
        return layers.Activation("relu")(norm(x))

    def residual_block(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
        shortcut = layers.Conv2D(width, 1, use_bias=False)(layers.AveragePooling2D(2, padding="same")(x))
        hidden = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        hidden = layers.Conv2D(width, 3, padding="same", use_bias=False)(normalized(hidden))
        return normalized(layers.Add()([hidden, shortcut]))

    images = keras.Input([image_size, image_size, num_channels], name="image")
    hidden = layers.Rescaling(1 / 64.0, offset=-2.0)(images)
    hidden = layers.Conv2D(STAGES[0] // 2, 3, strides=2, padding="same", use_bias=False)(hidden)
    hidden = normalized(hidden)
    for width in STAGES:
        hidden = residual_block(hidden, width)
    hidden = layers.GlobalAveragePooling2D()(hidden)
    return keras.Model({"image": images}, outputs_layer(hidden, label), name="image")


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
