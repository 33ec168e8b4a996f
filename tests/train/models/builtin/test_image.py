"""Models of keras.applications take images as each expects them."""

from __future__ import annotations

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.features import make_feature
from tests.support.campaign import in_campaign
from train.models.builtin.image import application_model, restore_bundle
from train.models.image_arrays import prepare_pixels
from train.models.model_inputs import ModelSettings
from train.models.model_recipe import ModelRecipe
from train.options.config import LabelSpec

pytestmark = pytest.mark.full

TWO = LabelSpec(name="y", task="classification", classes=("a", "b"), class_names=("a", "b"))


@pytest.mark.parametrize("name", ["MobileNetV3Small", *in_campaign("VGG16", "ResNet50")])
def test_models_of_keras_take_images_from_0_to_255(name) -> None:
    body = getattr(keras.applications, name)(include_top=False, weights=None, input_shape=(64, 64, 3), pooling="avg")
    model = application_model(name, 64, TWO, 1)
    inner = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    body.set_weights(inner.get_weights())
    images = np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)).astype(np.float32)
    module = importlib.import_module(f"keras.applications.{body_module(name)}")
    outputs = model.get_layer("outputs")(body(module.preprocess_input(images.copy())))
    np.testing.assert_allclose(model({"image": images}), outputs, rtol=1e-3, atol=1e-4)


def test_a_named_model_takes_grey_arrays() -> None:
    """As colours whose parts are the same."""
    pixels = make_feature("pixels", "uint8", (28, 28))
    settings = ModelSettings("MobileNetV2", TWO, 32, tf.distribute.get_strategy())
    bundle = restore_bundle(settings, ModelRecipe(features=(pixels,), label_feature=pixels))
    values = np.random.default_rng(0).integers(0, 256, (2, 28, 28), np.uint8)
    colors = np.repeat(prepare_pixels(pixels, None, 32)(values), 3, axis=3)
    body = next(layer for layer in bundle.model.layers if isinstance(layer, keras.Model))
    scaled = keras.applications.mobilenet_v2.preprocess_input(colors.copy())
    inputs = {"image": prepare_pixels(pixels, None, 32)(values)}
    wanted = bundle.model.get_layer("outputs")(body(scaled))
    np.testing.assert_allclose(bundle.model(inputs), wanted, rtol=1e-4, atol=1e-5)


def body_module(name: str) -> str:
    return {"MobileNetV3Small": "mobilenet_v3", "VGG16": "vgg16", "ResNet50": "resnet50"}[name]


def test_batch_normalization_of_named_models_is_over_all_replicas() -> None:
    def kept(num_replicas: int) -> set[bool]:
        model = application_model("MobileNetV2", 32, TWO, num_replicas)
        inner = next(layer for layer in model.layers if isinstance(layer, keras.Model))
        return {x.synchronized for x in inner.layers if isinstance(x, keras.layers.BatchNormalization)}

    assert (kept(2), kept(1)) == ({True}, {False})
    with pytest.raises(UsageError, match=r"Xception cannot take images of 32 x 32.*at least 71"):
        application_model("Xception", 32, TWO, 1)
