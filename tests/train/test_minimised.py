"""Whole runs with the options that say what is minimised and when a run ends."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from shardkit.errors import UsageError
from shardkit.features import make_feature
from tests.support.training import inprocess
from tests.support.training.inprocess import Recorder
from train.reporting.metrics import EpochMetrics

pytestmark = pytest.mark.full

RARE = (make_feature("x", "float32"), make_feature("kind", "string"))


def train(dataset: Path, output: Path, **settings: Any) -> tuple[list[EpochMetrics], list[str]]:
    reporter = Recorder()
    return inprocess.train(dataset, output, reporter, **settings), reporter.texts


def rare_rows(num_rows: int, seed: int) -> list[dict[str, Any]]:
    """Returns rows of which one in twenty is rare; `x` says little about it."""
    draw = random.Random(seed)
    return [{"x": draw.gauss(i % 20 == 0, 1), "kind": "rare" if i % 20 == 0 else "usual"} for i in range(num_rows)]


def test_balanced_classes_find_the_rare_one(write, tmp_path) -> None:
    data = write(RARE, {"train": rare_rows(2000, 0), "test": [*rare_rows(600, 1), {"x": 0.0, "kind": "odd"}]})
    settings = {"label": "kind", "epochs": 4, "global_batch_size": 50, "learning_rate": 1e-2}
    plain, texts = train(data, tmp_path / "plain", **settings)
    assert any("note: class 'odd' is never seen in the train split" in t for t in texts)
    balanced, _ = train(data, tmp_path / "balanced", class_weights="balanced", label_smoothing=0.05, **settings)
    assert plain[-1].validation is not None
    assert balanced[-1].validation is not None
    # Unweighted metrics: finding rare ones costs accuracy here, and only that.
    assert plain[-1].validation["accuracy"] > 0.9
    assert plain[-1].validation["f1_macro"] < balanced[-1].validation["f1_macro"]
    assert balanced[-1].validation["accuracy"] < 0.85
    with pytest.raises(UsageError, match="other class weights"):
        train(data, tmp_path / "balanced", resume=True, label_smoothing=0.05, **settings)


def test_a_run_ends_when_it_gets_no_better_and_stays_ended(write, tmp_path) -> None:
    draw = random.Random(5)
    noise = [{"x": draw.random(), "kind": draw.choice("ab")} for _ in range(300)]
    data = write(RARE, {"train": noise[:200], "test": noise[200:]})
    settings = {"label": "kind", "epochs": 60, "global_batch_size": 20, "learning_rate": 3e-2, "early_stopping": 2}
    lines, texts = train(data, tmp_path / "run", **settings)
    assert 3 <= len(lines) < 60
    best = min(lines, key=lambda line: line.validation["loss"])  # type: ignore[index]
    assert best.epoch == len(lines) - 3
    assert any(f"epoch {best.epoch + 1} by loss" in t for t in texts)
    assert any("ended early: loss has not improved for 2 epochs" in t for t in texts)
    again, _ = train(data, tmp_path / "run", resume=True, **settings)
    assert again == lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "x", "label_smoothing": 0.1}, "--label-smoothing is for classes"),
        ({"label": "x", "class_weights": "balanced"}, "--class-weights are for classes"),
        ({"label": "kind", "class_weights": "rrae=2"}, "such as rare"),
        ({"label": "kind", "monitor": "rmse"}, "no metric 'rmse'"),
    ],
)
def test_options_that_do_not_fit_the_label_are_refused(write, tmp_path, options, message) -> None:
    data = write(RARE, {"train": rare_rows(60, 0), "test": rare_rows(20, 1)})
    with pytest.raises(UsageError, match=message):
        train(data, tmp_path / "run", epochs=1, **options)
