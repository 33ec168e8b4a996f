"""A run's folder is enough to have its model again, and its metrics are those that the training saw."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from shardkit.errors import UsageError
from shardkit.features import make_feature
from shardkit.reading.splits import open_splits
from tests.support.training.trained import TABLE, make_rows, save
from train.runs.evaluate import evaluate
from train.runs.restore_model import restore_model

pytestmark = pytest.mark.full


@pytest.mark.parametrize("run", ["classified", "measured", "own"])
def test_the_metrics_are_those_of_the_last_epoch(request, place, run, tmp_path) -> None:
    folder = request.getfixturevalue(run)
    # Moved, so that nothing is taken from the dataset of the training.
    dataset = open_splits(shutil.copytree(place / "data", tmp_path / "elsewhere"))
    restored = restore_model(folder)
    last = folder.read_metrics()[-1]
    assert restored.notes == ()
    assert restored.step == last.step
    for size in (7, 101, 500):
        found = evaluate(restored, dataset, "test", size)
        assert found.num_examples == found.num_labelled == 101
        assert found.metrics == pytest.approx(last.validation, rel=1e-5)


def test_examples_without_a_label_do_not_count(classified, tmp_path) -> None:
    rows = [{**r, "sides": r["sides"] if r["id"] % 3 else None} for r in make_rows(50, seed=2)]
    labelled = [r for r in rows if r["sides"] is not None]
    restored = restore_model(classified)
    dataset = open_splits(save(tmp_path / "dataset", TABLE, {"train": labelled, "test": rows}))
    some, all_ = (evaluate(restored, dataset, split, 16) for split in ("test", "train"))
    assert (some.num_examples, some.num_labelled) == (50, len(labelled))
    assert some.metrics == pytest.approx(all_.metrics, rel=1e-5)


def test_another_dataset_must_have_the_features(classified, tmp_path) -> None:
    restored = restore_model(classified)

    def refusal(features, change=lambda row: row) -> str:
        shutil.rmtree(tmp_path / "dataset", ignore_errors=True)
        rows = [change(r) for r in make_rows(30)]
        with pytest.raises(UsageError) as caught:
            evaluate(restored, open_splits(save(tmp_path / "dataset", features, {"test": rows})), "test", 10)
        return str(caught.value)

    without = tuple(f for f in TABLE if f.name != "color")
    assert "no feature 'color'" in refusal(without)
    other = tuple(make_feature("hour-of-day", "float32") if f.name == "hour-of-day" else f for f in TABLE)
    assert "expected int64, found float32" in refusal(other)
    lacking = tuple(msgspec.structs.replace(f, nullable=f.nullable or f.name == "vector") for f in TABLE)
    assert "lacks values" in refusal(lacking, lambda r: {**r, "vector": None if r["id"] == 4 else r["vector"]})
    new = refusal(TABLE, lambda r: {**r, "sides": "several" if r["id"] == 17 else r["sides"]})
    assert "the class 'several', which training never saw" in new
