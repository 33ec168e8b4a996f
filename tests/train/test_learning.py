"""Each kind of model learns what only it can, and goes on exactly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from tests.support.campaign import in_campaign
from tests.support.training import inprocess
from tests.support.training.inprocess import Interrupted, Recorder
from tests.support.training.sounds import tone, wav
from train.reporting.metrics import EpochMetrics

pytestmark = pytest.mark.full

SAMPLES = make_feature("sound", "float32", (None,))
KIND = make_feature("kind", "string")


def train(dataset: Path, output: Path, reporter: Recorder | None = None, **settings: Any) -> list[EpochMetrics]:
    return inprocess.train(dataset, output, reporter, label="kind", **settings)


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
    with pytest.raises(Interrupted):
        train(data, tmp_path / "cut", Recorder(17), epochs=4, checkpoint_every=3, **settings)
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


def test_a_model_without_its_feature_is_refused(write, tmp_path) -> None:
    data = write((make_feature("x", "float32"), KIND), {"train": [{"x": 1.0, "kind": k} for k in "abab"]})
    with pytest.raises(UsageError, match=r"text model reads one feature of text.*found: none"):
        train(data, tmp_path / "text", model="text")
    with pytest.raises(UsageError, match=r"image model reads one feature.*found: none"):
        train(data, tmp_path / "image", model="image")


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
