"""The checkpoint of the best epoch stays, however many follow it and however often the run is resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training.inprocess import TABLE, Interrupted, Recorder, table, train
from train.reporting.early_stopping import best_epoch
from train.reporting.metrics import EpochMetrics
from train.runs.best_checkpoint import copy_checkpoint, keep_best
from train.runs.checkpoints import find_damage
from train.runs.restore_model import restore_model
from train.runs.run_folder import RunFolder, list_checkpoints

pytestmark = pytest.mark.full


def lines(*losses: float) -> list[EpochMetrics]:
    return [
        EpochMetrics(
            epoch=i,
            step=5 * (i + 1),
            train={"loss": loss},
            validation=None,
            examples_per_s=None,
            waiting_share=None,
            train_s=1.0,
            validation_s=0.0,
        )
        for i, loss in enumerate(losses)
    ]


def save(folder: Path, *steps: int) -> None:
    for step in steps:
        tf.train.Checkpoint(x=tf.Variable(step)).write(str(folder / f"step-{step}"))


def test_only_the_best_one_is_kept_and_it_is_whole(tmp_path) -> None:
    checkpoints, best = tmp_path / "checkpoints", tmp_path / "best"
    epochs = lines(3.0, 1.0, 2.0, 1.0, 0.5)
    for i in range(5):
        save(checkpoints, epochs[i].step)
        assert keep_best(checkpoints, best, epochs[: i + 1], "train.loss", is_new=True)
        step = [5, 10, 10, 10, 25][i]
        assert list_checkpoints(best) == [step]
        assert find_damage(str(best / f"step-{step}")) is None
        assert {p.name for p in best.iterdir()} == {f"step-{step}.index", f"step-{step}.data-00000-of-00001"}


def test_what_a_kill_left_undone_is_done_when_the_run_goes_on(tmp_path) -> None:
    checkpoints, best = tmp_path / "checkpoints", tmp_path / "best"
    save(checkpoints, 5, 10)
    epochs = lines(3.0, 1.0)
    keep_best(checkpoints, best, epochs[:1], "train.loss")
    shutil.copy(checkpoints / "step-10.data-00000-of-00001", best)  # Killed before the index was copied.
    shutil.copy(checkpoints / "step-10.index", best / ".step-7.index.new")
    assert list_checkpoints(best) == [5]
    assert keep_best(checkpoints, best, epochs, "train.loss")
    assert {p.name for p in best.iterdir()} == {"step-10.index", "step-10.data-00000-of-00001"}
    assert list_checkpoints(best) == [10]
    # Another metric decides, and the checkpoint of its best epoch is gone.
    shutil.rmtree(checkpoints)
    assert not keep_best(checkpoints, best, lines(0.5, 1.0), "train.loss")
    assert list_checkpoints(best) == [10]


def test_a_checkpoint_that_is_written_again_replaces_the_kept_one(tmp_path) -> None:
    checkpoints, best = tmp_path / "checkpoints", tmp_path / "best"
    save(checkpoints, 5)
    copy_checkpoint(checkpoints, best, 5)
    tf.train.Checkpoint(x=tf.Variable(77)).write(str(checkpoints / "step-5"))
    keep_best(checkpoints, best, lines(1.0), "train.loss")
    assert tf.train.load_checkpoint(str(best / "step-5")).get_tensor("x/.ATTRIBUTES/VARIABLE_VALUE") == 5
    keep_best(checkpoints, best, lines(1.0), "train.loss", is_new=True)
    assert tf.train.load_checkpoint(str(best / "step-5")).get_tensor("x/.ATTRIBUTES/VARIABLE_VALUE") == 77


def test_a_run_keeps_its_best_epoch_and_a_resumed_one_the_same(write, tmp_path) -> None:
    # What is learned is wrong for the test split, so that later epochs are worse there.
    wrong = [{**row, "sides": "few" if row["sides"] == "many" else "many"} for row in table(60, seed=1)]
    dataset = write(TABLE, {"train": table(300), "test": wrong})
    settings = {"epochs": 7, "global_batch_size": 30, "learning_rate": 3e-2, "monitor": "loss"}
    reporter = Recorder()
    epochs = train(dataset, tmp_path / "whole", reporter, **settings)
    best_line = best_epoch(epochs, "loss")
    assert best_line is not None
    best = best_line.step
    whole = RunFolder(str(tmp_path / "whole"))
    assert best not in list_checkpoints(whole.checkpoints), "the test needs a best epoch before the last three"
    assert list_checkpoints(whole.best) == [best]
    assert [t for t in reporter.texts if t.startswith(f"best        epoch {best // 10} by loss, kept in ")]
    with pytest.raises(Interrupted):
        train(dataset, tmp_path / "cut", Recorder(stop_after=65), **settings)
    train(dataset, tmp_path / "cut", resume=True, **settings)
    cut = RunFolder(str(tmp_path / "cut"))
    assert list_checkpoints(cut.best) == [best]
    found = [restore_model(folder, "best") for folder in (whole, cut)]
    assert [f.step for f in found] == [best, best]
    assert found[0].notes == ()
    for one, other in zip(*(f.bundle.model.get_weights() for f in found), strict=True):
        np.testing.assert_array_equal(one, other)
