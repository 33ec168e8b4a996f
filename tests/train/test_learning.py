"""Each kind of model learns what only it can, goes on exactly, and can be saved."""

from __future__ import annotations

import importlib
import random
import struct
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from tests.support.campaign import in_campaign
from train.models.applications import application_model
from train.models.factory import restore_bundle
from train.models.image_arrays import prepare_pixels
from train.models.model_recipe import ModelRecipe
from train.models.sequence_models import signal_model, token_model
from train.models.tokens import MAX_TOKENS, prepare_tokens, tokenize_words
from train.options.config import LabelSpec, TrainOptions
from train.reporting.metrics import EpochMetrics
from train.reporting.report import Reporter
from train.run import run
from train.runs.request import resolve
from train.runs.run_folder import RunFolder

pytestmark = pytest.mark.full

SAMPLES = make_feature("sound", "float32", (None,))
KIND = make_feature("kind", "string")
TWO = LabelSpec(name="y", task="classification", classes=("a", "b"), class_names=("a", "b"))


class StopAfter(Reporter):
    """Ends a run after some steps, as Ctrl-C would."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.num_left = num_steps

    def step(self, *args: Any) -> None:
        self.num_left -= 1
        if not self.num_left:
            raise KeyboardInterrupt


def train(dataset: Path, output: Path, reporter: Reporter | None = None, **settings: Any) -> list[EpochMetrics]:
    options = TrainOptions(dataset=str(dataset), output=str(output), label="kind", **settings)
    folder, request = RunFolder(options.output), resolve(options)
    folder.open(resume=options.resume)
    run(request, folder, reporter or Reporter())
    return folder.read_metrics()


def accuracy(lines: list[EpochMetrics]) -> float:
    assert lines[-1].validation is not None
    return lines[-1].validation["accuracy"]


@pytest.mark.slow
def test_arrays_are_learned_as_images_and_go_on_exactly(write, tmp_path) -> None:
    draw = np.random.default_rng(0)

    def row(i: int) -> dict[str, Any]:
        pixels = draw.integers(0, 90, (12, 12))
        middle = draw.integers(3, 9)
        pixels[middle if i % 2 else slice(None), slice(None) if i % 2 else middle] += 120
        return {"pixels": pixels.reshape(-1).tolist(), "kind": "across" if i % 2 else "down"}

    features = (make_feature("pixels", "uint8", (12, 12)), KIND)
    rows = [row(i) for i in range(260)]
    data = write(features, {"train": rows[:200], "test": rows[200:]})
    settings = {"global_batch_size": 20, "learning_rate": 5e-3}
    whole = train(data, tmp_path / "whole", epochs=4, **settings)
    assert accuracy(whole) > 0.9
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "cut", StopAfter(17), epochs=4, checkpoint_every=3, **settings)
    resumed = train(data, tmp_path / "cut", epochs=4, checkpoint_every=3, resume=True, **settings)
    assert [(line.train, line.validation) for line in resumed] == [(line.train, line.validation) for line in whole]


def sentences(num: int, seed: int) -> list[dict[str, Any]]:
    """Returns sentences whose kind is the order of two words."""
    draw = random.Random(seed)
    rows = []
    for i in range(num):
        words = draw.choices(["the", "a", "sea,", "sky", "wind", "and", "sand", "of", "stone"], k=draw.randint(2, 20))
        pair = ["Not", "Good"] if i % 2 else ["good", "not"]
        at = draw.randrange(len(words))
        rows.append({"text": " ".join([*words[:at], *pair, *words[at:], f"n{i}"]), "kind": "bad" if i % 2 else "good"})
    return rows


def test_text_is_learned_by_the_order_of_its_words(write, tmp_path) -> None:
    data = write((make_feature("text", "string"), KIND), {"train": sentences(600, 0), "test": sentences(100, 1)})
    assert accuracy(train(data, tmp_path / "run", epochs=5, global_batch_size=20)) > 0.9


@pytest.mark.parametrize("dtype", ["string", "int64"])
def test_lists_of_tokens_are_learned(write, tmp_path, dtype) -> None:
    draw = random.Random(0)

    def row(i: int) -> dict[str, Any]:
        tokens = [draw.randrange(50) for _ in range(draw.randint(0, 9))] + [60 + i % 2]
        draw.shuffle(tokens)
        return {"tokens": [f"t{t}" if dtype == "string" else t for t in tokens], "kind": "ab"[i % 2]}

    rows = [row(i) for i in range(400)]
    data = write((make_feature("tokens", dtype, (None,)), KIND), {"train": rows[:320], "test": rows[320:]})
    assert accuracy(train(data, tmp_path / "run", model="text", epochs=6, global_batch_size=16)) > 0.95


def test_words_are_split_in_any_script() -> None:
    found = tokenize_words(tf.constant(["Don't STOP, Émile!", "我爱 cats", "", " \t"])).to_list()
    words = [[w.decode() for w in row] for row in found]
    assert words == [["don", "'", "t", "stop", ",", "émile", "!"], ["我", "爱", "cats"], [], []]


def test_unknown_tokens_padding_and_overlong_texts() -> None:
    from shardkit.adapters.tfdata import ParsedBatch

    prepare = prepare_tokens(make_feature("t", "string"), ("a", "b"))
    found = prepare(ParsedBatch({"t": tf.constant(["b x a", ""])}, {}))["tokens"].numpy()
    assert found.shape == (2, 16)
    assert found[0].tolist() == [3, 1, 2] + [0] * 13
    assert not found[1].any()
    long = prepare(ParsedBatch({"t": tf.constant(["a " * (MAX_TOKENS + 5)])}, {}))["tokens"]
    assert long.shape == (1, MAX_TOKENS)


def test_padding_changes_nothing_and_an_empty_text_is_a_text() -> None:
    model = token_model(9, TWO)
    tokens = np.array([[2, 3, 4], [5, 0, 0], [0, 0, 0]])
    padded = np.pad(tokens, [(0, 0), (0, 13)])
    np.testing.assert_allclose(model(tokens), model(padded), atol=1e-6)
    assert np.isfinite(model(padded)).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_long_sequences_have_finite_outputs_in_half_precision(policy) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        tokens, signal = token_model(9, TWO), signal_model(2, TWO)
    finally:
        keras.config.set_dtype_policy("float32")
    found = tokens(np.ones((2, 3000), np.int32))
    assert found.dtype == tf.float32
    assert np.isfinite(found).all()
    values, mask = np.full((2, 3000, 2), 8.0), np.repeat([[1.0], [0.0]], 3000, axis=1)
    assert np.isfinite(signal({"values": values, "mask": mask})).all()


def test_models_of_sequences_can_be_saved_and_loaded(tmp_path) -> None:
    tokens = np.array([[2, 3, 0]])
    signal = {"values": np.ones((1, 4, 2)), "mask": np.array([[1.0, 1.0, 1.0, 0.0]])}
    for model, inputs in ((token_model(9, TWO), tokens), (signal_model(2, TWO), signal)):
        model.save(tmp_path / "m.keras")
        np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "m.keras")(inputs), model(inputs))


def test_a_model_without_its_feature_is_refused(write, tmp_path) -> None:
    data = write((make_feature("x", "float32"), KIND), {"train": [{"x": 1.0, "kind": k} for k in "abab"]})
    with pytest.raises(UsageError, match=r"text model reads one feature of text.*found: none"):
        train(data, tmp_path / "text", model="text")
    with pytest.raises(UsageError, match=r"image model reads one feature.*found: none"):
        train(data, tmp_path / "image", model="image")


def tone(pitch: float, num_samples: int) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * pitch * np.arange(num_samples) / 8000)


def wav(samples: np.ndarray) -> bytes:
    raw = (samples * 32767).astype("<i2").tobytes()
    head = (
        b"RIFF" + struct.pack("<I", 36 + len(raw)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    )
    return head + b"data" + struct.pack("<I", len(raw)) + raw


@pytest.mark.slow
@pytest.mark.parametrize("form", ["file", *in_campaign("samples")])
def test_sounds_are_learned_by_their_pitch_at_any_length(write, tmp_path, form) -> None:
    draw = random.Random(0)

    def row(i: int) -> dict[str, Any]:
        samples = tone((440 if i % 2 else 1200) * draw.uniform(0.8, 1.2), draw.randint(1000, 3000))
        return {"sound": wav(samples) if form == "file" else samples.tolist(), "kind": "ab"[i % 2]}

    feature = make_feature("sound", "bytes", media_type="audio/wav") if form == "file" else SAMPLES
    rows = [row(i) for i in range(100)]
    data = write((feature, KIND), {"train": rows[:80], "test": rows[80:]})
    assert accuracy(train(data, tmp_path / "run", model="sequence", epochs=6, global_batch_size=8)) > 0.9


def test_a_sound_that_cannot_be_decoded_is_named(write, tmp_path) -> None:
    rows = [{"sound": wav(tone(440, 900)), "kind": "ab"[i % 2]} for i in range(20)]
    rows[11]["sound"] = b"no sound at all" * 9
    features = (make_feature("sound", "bytes", media_type="audio/wav"), KIND)
    data = write(features, {"train": rows}, num_shards=1)
    with pytest.raises(BadInputError, match=r"audio in 'sound' cannot be decoded.*record 12.*--audio samples"):
        train(data, tmp_path / "run", model="sequence", epochs=1, global_batch_size=4)


def test_short_series_are_learned_by_their_shape(write, tmp_path) -> None:
    draw = random.Random(0)

    def row(i: int) -> dict[str, Any]:
        values = sorted((draw.gauss(-2, 1) for _ in range(draw.randint(8, 30))), reverse=bool(i % 2))
        return {"values": values, "kind": "ab"[i % 2]}

    rows = [row(i) for i in range(200)]
    data = write((make_feature("values", "float32", (None,)), KIND), {"train": rows[:160], "test": rows[160:]})
    assert accuracy(train(data, tmp_path / "run", model="sequence", epochs=6, global_batch_size=16)) > 0.9


def test_padding_of_a_series_changes_nothing() -> None:
    model = signal_model(3, TWO)
    values, mask = np.random.default_rng(0).normal(size=(2, 8, 3)), np.ones((2, 8))
    more = {"values": np.pad(values, [(0, 0), (0, 24), (0, 0)]), "mask": np.pad(mask, [(0, 0), (0, 24)])}
    np.testing.assert_allclose(model({"values": values, "mask": mask}), model(more), atol=1e-5)


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
    bundle = restore_bundle(
        "MobileNetV2", ModelRecipe(features=(pixels,), label_feature=pixels), TWO, 32, tf.distribute.get_strategy()
    )
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
