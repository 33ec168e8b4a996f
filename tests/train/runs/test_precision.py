"""A restored model computes in the precision of its run, so that its metrics are those of the run."""

from __future__ import annotations

import keras
import pytest

from shardkit.reading.splits import open_splits
from train.optimization.precision import set_precision
from train.reporting.report import Reporter
from train.runs.evaluate import evaluate
from train.runs.export import KERAS_FILE, export_run
from train.runs.restore_model import restore_model

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _float32_again():
    yield
    set_precision("float32")


def test_metrics_of_a_bfloat16_run_are_found_again(place, run_training, tmp_path) -> None:
    settings = {"label": "size", "ignore": ("id", "sides"), "precision": "bfloat16"}
    folder = run_training(place / "data", tmp_path / "run", **settings)
    set_precision("float32")  # As in a fresh process.
    restored = restore_model(folder)
    assert {layer.compute_dtype for layer in restored.bundle.model.layers} >= {"bfloat16"}
    found = evaluate(restored, open_splits(place / "data"), "test", 20)
    assert found.metrics == pytest.approx(folder.read_metrics()[-1].validation, rel=1e-6)


def test_a_bfloat16_run_is_exported_in_float32(place, run_training, tmp_path) -> None:
    folder = run_training(
        place / "data", tmp_path / "run", label="size", ignore=("id", "sides"), precision="bfloat16", epochs=1
    )
    export_run(folder, tmp_path / "model", Reporter())
    model = keras.models.load_model(tmp_path / "model" / KERAS_FILE)
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}


def test_a_float32_run_is_not_rounded_by_what_was_there_before(measured, place) -> None:
    set_precision("bfloat16")
    restored = restore_model(measured)
    assert {layer.compute_dtype for layer in restored.bundle.model.layers} == {"float32"}
    found = evaluate(restored, open_splits(place / "data"), "test", 20)
    assert found.metrics == pytest.approx(measured.read_metrics()[-1].validation, rel=1e-6)
