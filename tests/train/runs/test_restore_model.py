"""The folder of a run is enough to have its model again: from a checkpoint that is whole, in the run's precision."""

from __future__ import annotations

import shutil

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from shardkit.errors import DamageError, UsageError
from shardkit.reading.splits import open_splits
from tests.support.training.trained import train
from train.optimization.precision import set_precision
from train.runs import restore_model as restoring
from train.runs.evaluate import evaluate
from train.runs.restore_model import restore_model
from train.runs.run_folder import RunFolder, list_checkpoints

pytestmark = pytest.mark.full


def copy_of(folder: RunFolder, target) -> RunFolder:
    shutil.copytree(folder.path, target)
    return RunFolder(str(target))


def test_a_damaged_checkpoint_is_passed_over_and_any_other_can_be_named(classified, tmp_path) -> None:
    folder = copy_of(classified, tmp_path / "run")
    shutil.rmtree(folder.best)
    *_, before, newest = list_checkpoints(folder.checkpoints)
    data = folder.checkpoints / f"step-{newest}.data-00000-of-00001"
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 1
    data.write_bytes(raw)
    restored = restore_model(folder)
    assert restored.step == before
    assert "damaged and is passed over" in restored.notes[0]
    assert restore_model(folder, str(before)).step == before
    with pytest.raises(DamageError, match="cannot be read"):
        restore_model(folder, str(newest))
    with pytest.raises(UsageError, match="no checkpoint '1'"):
        restore_model(folder, "1")


def remove_when_called(monkeypatch, name, folder) -> None:
    """Has a function of `restore_model` called after the run has removed its newest checkpoint, as if it was old."""
    called = getattr(restoring, name)
    (folder.checkpoints / "checkpoint").unlink()

    def removed_first(*arguments):
        for path in folder.checkpoints.glob(f"step-{max(list_checkpoints(folder.checkpoints), default=0)}.*"):
            path.unlink()
        return called(*arguments)

    monkeypatch.setattr(restoring, name, removed_first)


@pytest.mark.parametrize("name", ["load_builder", "find_damage"])
def test_a_checkpoint_that_a_living_run_removes_is_chosen_again(classified, tmp_path, monkeypatch, name) -> None:
    folder = copy_of(classified, tmp_path / "run")
    (newest,) = list_checkpoints(folder.best)
    remove_when_called(monkeypatch, name, folder)
    restored = restore_model(folder)
    assert restored.checkpoint == str(folder.best / f"step-{newest}")
    assert not any("damaged" in note for note in restored.notes)


def test_a_named_checkpoint_that_a_living_run_removes_is_reported(classified, tmp_path, monkeypatch) -> None:
    folder = copy_of(classified, tmp_path / "run")
    shutil.rmtree(folder.best)
    newest = list_checkpoints(folder.checkpoints)[-1]
    remove_when_called(monkeypatch, "load_builder", folder)
    with pytest.raises(UsageError, match=f"there is no checkpoint '{newest}'"):
        restore_model(folder, str(newest))


def test_the_best_checkpoint_stands_in_for_lost_ones_and_is_named(classified, tmp_path) -> None:
    folder = copy_of(classified, tmp_path / "run")
    (kept,) = list_checkpoints(folder.best)
    shutil.rmtree(folder.checkpoints)
    restored = restore_model(folder)
    assert restored.step == kept
    assert restored.notes == (
        f"{folder.checkpoints} holds no checkpoint; this is the one of the best epoch, from {folder.best}",
    )


def test_the_best_checkpoint_is_that_of_the_best_epoch(measured, tmp_path) -> None:
    folder = copy_of(measured, tmp_path / "run")
    shutil.rmtree(folder.best)
    lines = folder.read_metrics()
    folder.write_metrics([msgspec.structs.replace(e, validation={"loss": [3.0, 1.0, 2.0][e.epoch]}) for e in lines])
    assert restore_model(folder, "best").step == lines[1].step
    assert restore_model(folder, "best").notes == ()
    for file in folder.checkpoints.glob(f"step-{lines[1].step}.*"):
        file.unlink()
    next_best = restore_model(folder, "best")
    assert next_best.step == lines[2].step
    assert "its checkpoint is not kept" in next_best.notes[0]


def test_a_models_file_that_changed_or_is_gone(own, place, tmp_path) -> None:
    folder = copy_of(own, tmp_path / "run")
    moved = tmp_path / "moved.py"
    shutil.copy(place / "own.py", moved)
    assert restore_model(folder, model=f"{moved}:build").notes == ()
    moved.write_text(moved.read_text() + "\n# changed\n")
    assert "not the file that the run began with" in restore_model(folder, model=f"{moved}:build").notes[0]
    moved.write_text(moved.read_text().replace("Dense(8", "Dense(9"))
    with pytest.raises(UsageError, match="of another model"):
        restore_model(folder, model=f"{moved}:build")
    with pytest.raises(UsageError, match="file of the model cannot be read"):
        restore_model(folder, model=f"{tmp_path}/gone.py:build")


def test_a_folder_without_a_run(tmp_path) -> None:
    with pytest.raises(UsageError, match="there is no run"):
        restore_model(RunFolder(str(tmp_path)))


def test_a_record_of_before_is_still_read(classified, tmp_path) -> None:
    folder = copy_of(classified, tmp_path / "run")
    document = msgspec.json.decode(folder.record_path.read_bytes())
    assert document.pop("recipe")["columns"]["categories"]
    assert document.pop("options")["label"] == "sides"
    folder.record_path.write_bytes(msgspec.json.encode(document))
    assert folder.read_record().label.name == "sides"
    with pytest.raises(UsageError, match="--resume"):
        restore_model(folder)


def test_averaged_weights_are_those_that_are_evaluated(classified, tmp_path) -> None:
    folder = copy_of(classified, tmp_path / "run")
    model = restore_model(folder).bundle.model
    state, averages = tf.train.Checkpoint(), tf.Module()
    averages.values = [tf.Variable(v.value + 1.0) for v in model.trainable_variables]
    state.averages = averages
    tf.train.Checkpoint(model=model, optimizer=state).write(str(folder.checkpoints / "step-1000"))
    averaged = restore_model(folder)
    assert averaged.step == 1000
    for before, after in zip(model.trainable_variables, averaged.bundle.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(after.numpy(), before.numpy() + 1.0)


@pytest.mark.usefixtures("float32_again")
def test_metrics_of_a_bfloat16_run_are_found_again(place, tmp_path) -> None:
    settings = {"label": "size", "ignore": ("id", "sides"), "precision": "bfloat16"}
    folder = train(place / "data", tmp_path / "run", **settings)
    set_precision("float32")  # As in a fresh process.
    restored = restore_model(folder)
    assert {layer.compute_dtype for layer in restored.bundle.model.layers} >= {"bfloat16"}
    found = evaluate(restored, open_splits(place / "data"), "test", 20)
    assert found.metrics == pytest.approx(folder.read_metrics()[-1].validation, rel=1e-6)


@pytest.mark.usefixtures("float32_again")
def test_a_float32_run_is_not_rounded_by_what_was_there_before(measured, place) -> None:
    set_precision("bfloat16")
    restored = restore_model(measured)
    assert {layer.compute_dtype for layer in restored.bundle.model.layers} == {"float32"}
    found = evaluate(restored, open_splits(place / "data"), "test", 20)
    assert found.metrics == pytest.approx(measured.read_metrics()[-1].validation, rel=1e-6)
