"""Predictions are those that the metrics count, a row an example, in the stored order."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import open_dataset
from shardkit.errors import UsageError
from shardkit.exporting.tables import write_rows
from shardkit.reading.row_files import record_batch
from shardkit.reading.splits import open_splits
from tests.support.training.trained import TABLE, make_rows, save
from train.runs.predict import kept_features, predicted_features, predictions
from train.runs.restore_model import restore_model

pytestmark = pytest.mark.full


def table_of(folder, dataset, keep, path, size=32, split="test"):
    restored = restore_model(folder)
    predicted = predicted_features(restored)
    kept = kept_features(dataset.manifest, keep, predicted)
    features = (*kept, *predicted)
    batches = predictions(restored, dataset, split, kept, size)
    write_rows(path, features, (record_batch(b, features) for b in batches))
    return pq.read_table(path)


def test_classes_beside_what_is_kept(classified, place, tmp_path) -> None:
    dataset = open_splits(place / "data")
    found = table_of(classified, dataset, ("id", "color", "vector", "when"), tmp_path / "a.parquet").to_pydict()
    rows = make_rows(101, seed=1)
    for name in ("id", "color"):
        assert found[name] == [r[name] for r in rows]
    np.testing.assert_allclose(found["vector"], [r["vector"] for r in rows], rtol=1e-6)
    assert [v is None for v in found["when"]] == [r["when"] is None for r in rows]
    accuracy = np.mean([p == r["sides"] for p, r in zip(found["prediction"], rows, strict=True)])
    assert accuracy == pytest.approx(classified.read_metrics()[-1].validation["accuracy"])
    both = np.array([found["probability_few"], found["probability_many"]])
    np.testing.assert_allclose(both.sum(axis=0), 1.0, atol=1e-6)
    np.testing.assert_array_equal(both.max(axis=0), found["probability"])
    again = table_of(classified, dataset, ("id",), tmp_path / "b.parquet", size=7).to_pydict()
    assert again["prediction"] == found["prediction"]


def test_numbers(measured, place, tmp_path) -> None:
    found = table_of(measured, open_splits(place / "data"), (), tmp_path / "a.parquet")
    assert found.column_names == ["prediction"]
    errors = np.abs(np.array(found["prediction"]) - [r["size"] for r in make_rows(101, seed=1)])
    assert errors.mean() == pytest.approx(measured.read_metrics()[-1].validation["mae"], rel=1e-5)


def test_a_dataset_without_the_label_will_do(classified, tmp_path) -> None:
    unlabelled = tuple(f for f in TABLE if f.name not in ("sides", "size", "id"))
    dataset = open_splits(save(tmp_path / "dataset", unlabelled, {"new": make_rows(33, seed=4)}))
    assert table_of(classified, dataset, (), tmp_path / "a.parquet", split="new").num_rows == 33


def test_a_kept_name_must_be_free_and_there(classified, place) -> None:
    manifest = open_dataset(place / "data").manifest
    predicted = predicted_features(restore_model(classified))
    with pytest.raises(UsageError, match="no feature 'colour'"):
        kept_features(manifest, ("colour",), predicted)
    with pytest.raises(UsageError, match="name of a column of predictions"):
        kept_features(manifest, ("prediction",), predicted)


def shardkit(*arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
    return subprocess.run(
        [sys.executable, "-m", "shardkit", *map(str, arguments)],
        capture_output=True, text=True, timeout=280, env=environment,
    )  # fmt: skip


@pytest.mark.slow
def test_the_commands(classified, place, tmp_path) -> None:
    checkpoint = ("--checkpoint", classified.path)
    evaluated = shardkit("evaluate", place / "data", *checkpoint, "--split", "test")
    assert evaluated.returncode == 0, evaluated.stderr
    last = classified.read_metrics()[-1].validation
    assert f"{last['accuracy']:.4f}" in evaluated.stdout
    assert evaluated.stderr == ""
    predicted = shardkit("predict", place / "data", tmp_path / "out", *checkpoint, "--keep", "id,color")
    assert predicted.returncode == 0, predicted.stderr
    assert (predicted.stdout, predicted.stderr) == ("", f"101 predictions of split test in {tmp_path / 'out'}\n")
    examples = list(first_examples(open_dataset(tmp_path / "out"), "test", 200))
    rows = make_rows(101, seed=1)
    assert [(e["id"], e["color"]) for e in examples] == [(r["id"], r["color"]) for r in rows]
    assert {e["prediction"] for e in examples} <= {"few", "many"}
    again = shardkit("predict", place / "data", tmp_path / "out", *checkpoint)
    assert again.returncode == 4
    assert "It is untouched" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("evaluate", "DATA", "--checkpoint", "EMPTY"), 2, "there is no run"),
        (("evaluate", "EMPTY", "--checkpoint", "RUN"), 2, "there is no dataset"),
        (("evaluate", "DATA", "--checkpoint", "RUN", "--split", "dev"), 2, "It has: train, test"),
        (("predict", "DATA", "s3://b/a.csv", "--checkpoint", "RUN"), 2, "must be local"),
        (("export", "RUN", "EMPTY"), 4, "something already"),
    ],
)
def test_wrong_requests_cost_a_second(classified, place, tmp_path, arguments, code, message) -> None:
    (tmp_path / "empty").mkdir()
    named = {"DATA": place / "data", "RUN": classified.path, "EMPTY": tmp_path / "empty"}
    found = shardkit(*(named.get(a, a) for a in arguments))
    assert found.returncode == code
    assert message in found.stderr
    assert "Traceback" not in found.stderr
