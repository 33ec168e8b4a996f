"""Whole runs in this process: they learn, go on exactly, count every example once, and explain what is wrong."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from shardkit.dataset.open import open_dataset
from shardkit.errors import BadInputError, ConflictError, DamageError, UsageError
from shardkit.features import make_feature
from tests.support.campaign import in_campaign
from tests.support.training.inprocess import TABLE, Interrupted, Recorder, table, train
from tests.support.training.outputs import assert_same, weights
from train.reporting.metrics import EpochMetrics
from train.runs.restore_model import restore_model
from train.runs.run_folder import RunFolder, list_checkpoints

pytestmark = pytest.mark.full

DROPOUT_MODEL = """
    import keras

    def build(features, statistics, label):
        x = keras.Input([], name="x")
        count = keras.Input([], name="count")
        hidden = keras.layers.Concatenate()([keras.layers.Reshape([1])(x), keras.layers.Reshape([1])(count)])
        hidden = keras.layers.BatchNormalization()(hidden / 10.0)
        hidden = keras.layers.Dense(16, activation="relu", kernel_regularizer="l2")(hidden)
        hidden = keras.layers.Dropout(0.5)(hidden)
        return keras.Model([x, count], keras.layers.Dense(label.num_outputs)(hidden))
"""


def what_was_learned(lines: list[EpochMetrics]) -> list[tuple[Any, ...]]:
    return [(line.epoch, line.step, line.train, line.validation) for line in lines]


@pytest.fixture
def dataset(write) -> Path:
    return write(TABLE, {"train": table(500), "test": table(101, seed=1)})


@pytest.fixture
def user_model(tmp_path: Path) -> Callable[[str], str]:
    def save(source: str) -> str:
        (tmp_path / "my_model.py").write_text(textwrap.dedent(source))
        return f"{tmp_path}/my_model.py:build"

    return save


def test_a_table_is_learned_and_everything_is_left_in_the_folder(dataset, tmp_path, capsys) -> None:
    reporter = Recorder()
    lines = train(dataset, tmp_path / "run", reporter, epochs=12, global_batch_size=20, learning_rate=1e-2)
    assert lines[-1].validation is not None
    assert lines[-1].validation["accuracy"] > 0.8
    assert [line.step for line in lines] == [25 * (i + 1) for i in range(12)]
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 3
    boards = list((tmp_path / "run" / "tensorboard").rglob("events.*"))
    assert {b.parent.name for b in boards} == {"train", "validation"}
    tags = {v.tag for b in boards for e in tf.compat.v1.train.summary_iterator(str(b)) for v in e.summary.value}
    metrics = {f"epoch/{name}" for name in ("loss", "accuracy", "auc", "f1")}
    rates = {"input/examples_per_s", "input/waiting_share", "time/step_ms", "time/computing_share"}
    steps = {f"step/{name}" for name in ("loss", "learning_rate", "examples_per_s", "waiting_share")}
    assert tags == {*metrics, *rates, *steps}
    shown = capsys.readouterr().out
    assert f"{lines[-1].validation['accuracy']:.4f}" in shown
    assert "25 steps of 20" in reporter.texts[1]


def test_a_number_is_predicted_in_its_own_unit(dataset, tmp_path) -> None:
    lines = train(
        dataset, tmp_path / "run", label="size", ignore=("sides",), epochs=6, global_batch_size=20, learning_rate=1e-2
    )
    last = lines[-1].validation
    assert last is not None
    deviation = float(np.std([r["size"] for r in table(101, seed=1)]))
    assert deviation > 50
    assert last["mae"] < last["rmse"] < deviation / 2


def test_validation_counts_every_example_once(dataset, tmp_path, user_model) -> None:
    always_first = """
        import keras

        class First(keras.Model):
            def __init__(self, num_outputs):
                super().__init__()
                self.num_outputs = num_outputs
                self.scale = self.add_weight(shape=(), initializer="zeros", name="scale")

            def call(self, inputs, training=False):
                import tensorflow as tf
                zeros = tf.zeros([tf.shape(inputs["count"])[0], self.num_outputs]) * self.scale
                return zeros + tf.constant([[100.0] + [0.0] * (self.num_outputs - 1)])

        def build(features, statistics, label):
            return First(label.num_outputs)
    """
    rows = table(101, seed=1)
    expected = sum(r["sides"] == "few" for r in rows) / 101
    for batch, reader in ((7, "shardkit"), (100, "tfdata"), (100, "shardkit"), (101, "shardkit"), (250, "shardkit")):
        lines = train(
            dataset,
            tmp_path / f"{reader}{batch}",
            model=user_model(always_first),
            epochs=1,
            global_batch_size=batch,
            reader=reader,
        )
        assert lines[0].validation is not None
        assert lines[0].validation["accuracy"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("reader", "stop_after", "last_checkpoint"),
    [("shardkit", 17, 16), *in_campaign(("shardkit", 3, 0), ("tfdata", 17, 16))],
)
def test_a_stopped_run_goes_on_bit_for_bit(dataset, tmp_path, user_model, reader, stop_after, last_checkpoint) -> None:
    sizes = {"epochs": 3, "global_batch_size": 33, "checkpoint_every": 4}
    settings = {"model": user_model(DROPOUT_MODEL), "reader": reader, **sizes}
    whole = train(dataset, tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        train(dataset, tmp_path / "cut", Recorder(stop_after), **settings)
    checkpoints = tmp_path / "cut" / "checkpoints"
    unfinished = checkpoints / "step-20_temp" / "part-00000-of-00001.data-00000-of-00001.tempstate1"
    unfinished.parent.mkdir()
    unfinished.write_bytes(b"as a kill leaves it")
    (checkpoints / "checkpoint").write_text("nonsense")
    reporter = Recorder()
    resumed = train(dataset, tmp_path / "cut", reporter, resume=True, **settings)
    assert not list(checkpoints.glob("*_temp"))
    assert list_checkpoints(checkpoints) == list_checkpoints(tmp_path / "whole" / "checkpoints")
    assert what_was_learned(resumed) == what_was_learned(whole)
    assert any("seeds" in name for name in weights(tmp_path / "whole"))
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert reporter.num_steps == 45 - last_checkpoint


def test_a_damaged_newest_checkpoint_falls_back_loudly(dataset, tmp_path) -> None:
    settings = {"epochs": 3, "global_batch_size": 100}
    whole = train(dataset, tmp_path / "run", **settings)
    before = weights(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    assert list_checkpoints(folder) == [5, 10, 15]
    data = folder / "step-15.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-3000])
    (folder / "checkpoint").write_text("nonsense")
    reporter = Recorder()
    resumed = train(dataset, tmp_path / "run", reporter, resume=True, **settings)
    assert [t for t in reporter.texts if t.startswith("warning: the checkpoint") and "step-15" in t]
    assert "resumed after step 10" in reporter.texts
    assert what_was_learned(resumed) == what_was_learned(whole)
    for name, value in weights(tmp_path / "run").items():
        np.testing.assert_array_equal(value, before[name])
    for step in list_checkpoints(folder):
        (folder / f"step-{step}.index").write_bytes(b"")
    with pytest.raises(DamageError, match="no checkpoint can be read"):
        train(dataset, tmp_path / "run", resume=True, **settings)


def test_a_newest_checkpoint_that_lost_its_index_is_reported_like_any_damage(dataset, tmp_path) -> None:
    settings = {"epochs": 2, "global_batch_size": 100}
    whole = train(dataset, tmp_path / "run", **settings)
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step-10.index").unlink()
    (note,) = restore_model(RunFolder(str(tmp_path / "run"))).notes
    assert note.startswith(f"the checkpoint {folder}/step-10 is damaged and is passed over: ")
    # A kill leaves such data of a checkpoint that it interrupted, of which nobody needs to hear.
    (folder / "step-12.data-00000-of-00001").write_bytes(b"")
    reporter = Recorder()
    resumed = train(dataset, tmp_path / "run", reporter, resume=True, **settings)
    (warning,) = [t for t in reporter.texts if t.startswith("warning: ")]
    assert "step-10 is damaged and is passed over" in warning
    assert "resumed after step 5" in reporter.texts
    assert what_was_learned(resumed) == what_was_learned(whole)
    for step in (5, 10):
        (folder / f"step-{step}.index").unlink()
    with pytest.raises(DamageError, match="no checkpoint can be read"):
        train(dataset, tmp_path / "run", resume=True, **settings)


@pytest.mark.parametrize("steps", [(5,), (2, 4)])
def test_a_run_whose_first_checkpoints_were_cut_off_starts_from_the_beginning(dataset, tmp_path, steps) -> None:
    settings = {"epochs": 1, "global_batch_size": 100}
    whole = train(dataset, tmp_path / "whole", **settings)
    cut = RunFolder(str(tmp_path / "run"))
    shutil.copytree(tmp_path / "whole", cut.path)
    # The epoch was measured before its checkpoint was written.
    for path in (cut.checkpoints, cut.best):
        shutil.rmtree(path)
    cut.checkpoints.mkdir()
    for step in steps:
        (cut.checkpoints / f"step-{step}.index").write_bytes(b"")
    assert cut.describe_stop().startswith("There is no checkpoint yet")
    reporter = Recorder()
    resumed = train(dataset, cut.path, reporter, resume=True, **settings)
    assert "warning: the first checkpoint was never finished; the run starts from the beginning" in reporter.texts
    assert what_was_learned(resumed) == what_was_learned(whole)
    assert list_checkpoints(cut.checkpoints) == [5]


@pytest.mark.parametrize("trace", ["checkpoint", "best", "metrics.jsonl"])
def test_damage_to_all_checkpoints_is_reported_whatever_is_left_of_them(dataset, tmp_path, trace) -> None:
    settings = {"epochs": 2, "global_batch_size": 100}
    train(dataset, tmp_path / "run", **settings)
    folder = RunFolder(str(tmp_path / "run"))
    for step in list_checkpoints(folder.checkpoints):
        (folder.checkpoints / f"step-{step}.index").write_bytes(b"")
    traces = {
        "checkpoint": folder.checkpoints / "checkpoint",
        "best": folder.best,
        "metrics.jsonl": folder.metrics_path,
    }
    for path in (path for name, path in traces.items() if name != trace):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if trace == "checkpoint":
        traces[trace].write_text("nonsense")
    with pytest.raises(DamageError, match="no checkpoint can be read"):
        train(dataset, tmp_path / "run", resume=True, **settings)


def test_a_run_is_neither_overwritten_nor_continued_as_another(dataset, tmp_path) -> None:
    settings = {"epochs": 1, "global_batch_size": 100}
    train(dataset, tmp_path / "run", **settings)
    with pytest.raises(ConflictError, match="--resume"):
        train(dataset, tmp_path / "run", **settings)
    with pytest.raises(UsageError, match=r"another seed.*0 then, 1 now"):
        train(dataset, tmp_path / "run", resume=True, seed=1, **settings)
    with pytest.raises(UsageError, match=r'has another label in .*: "sides" then, "size" now\. Give'):
        train(dataset, tmp_path / "run", resume=True, label="size", **settings)
    reporter = Recorder()
    more = train(dataset, tmp_path / "run", reporter, resume=True, epochs=2, global_batch_size=100)
    assert [line.epoch for line in more] == [0, 1]
    assert any("began with 1 epoch;" in t for t in reporter.texts)
    assert not any("last digits" in t for t in reporter.texts)
    reporter = Recorder()
    train(dataset, tmp_path / "run", reporter, resume=True, epochs=2, global_batch_size=100, recompute=True)
    assert any(t.startswith("note: the run began without --recompute; its weights will differ") for t in reporter.texts)


def test_examples_without_a_label_do_not_count(write, tmp_path) -> None:
    rows = table(300)
    for row in rows[::3]:
        row["sides"] = None
    data = write(TABLE, {"train": rows, "test": rows[:50]})
    reporter = Recorder()
    lines = train(data, tmp_path / "run", reporter, epochs=1, global_batch_size=10)
    assert any("100 examples of train have no label" in t for t in reporter.texts)
    assert lines[0].validation is not None
    num_labelled = sum(r["sides"] is not None for r in rows[:50])
    correct = lines[0].validation["accuracy"] * num_labelled
    assert correct == pytest.approx(round(correct))


def test_a_run_begins_with_all_that_decides_its_loss_and_its_end(dataset, tmp_path) -> None:
    reporter, folder = Recorder(), RunFolder(str(tmp_path / "run"))
    asked = {"class_weights": "many=2.5", "label_smoothing": 0.1, "early_stopping": 3}
    train(dataset, folder.path, reporter, epochs=1, global_batch_size=10, **asked)
    assert "loss  label smoothing 0.1  class weights few 1, many 2.5" in reporter.texts
    assert "ends early after 3 epochs without a better loss" in reporter.texts
    record = folder.read_record()
    assert record is not None
    assert record.schedule is not None
    assert record.schedule.num_warm_up_steps == round(0.05 * record.schedule.num_steps) > 0
    assert any(f"warm-up {record.schedule.num_warm_up_steps} step" in text for text in reporter.texts)


def test_a_size_of_images_that_nothing_would_heed_is_refused(dataset, tmp_path, user_model) -> None:
    with pytest.raises(UsageError, match="--image-size is for images"):
        train(dataset, tmp_path / "run", epochs=1, image_size=32, model=user_model(DROPOUT_MODEL))


def test_a_note_says_that_there_is_no_validation_split(write, tmp_path) -> None:
    reporter = Recorder()
    lines = train(write(TABLE, {"train": table(60)}), tmp_path / "run", reporter, epochs=1)
    assert lines[0].validation is None
    assert any("no split to validate on" in t for t in reporter.texts)


def test_more_classes_than_the_statistics_list_are_counted(write, tmp_path) -> None:
    features = (make_feature("key", "string"), make_feature("name", "string"))
    rows = [{"key": f"k{i % 30}", "name": f"n{i % 30:02}"} for i in range(600)]
    data = write(features, {"train": rows[:500], "test": rows[500:]})
    reporter = Recorder()
    lines = train(data, tmp_path / "run", reporter, label="name", epochs=8, global_batch_size=25, learning_rate=2e-2)
    assert "30 classes: n00, n01" in reporter.texts[0]
    assert lines[-1].validation is not None
    assert lines[-1].validation["accuracy"] == 1.0


@pytest.mark.parametrize("reader", ["shardkit", "tfdata"])
def test_a_shard_that_lost_records_ends_the_run(dataset, tmp_path, reader) -> None:
    opened = open_dataset(str(dataset))
    bad = Path(opened.shard_url(opened.split_shards("train")[1]))
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(bad), "GZIP")]
    with tf.io.TFRecordWriter(str(bad), "GZIP") as writer:
        for record in records[:-1]:
            writer.write(record)
    with pytest.raises(DamageError) as error:
        train(dataset, tmp_path / "run", epochs=1, global_batch_size=100, reader=reader)
    assert error.value.where is not None
    assert error.value.where.startswith(str(bad))
    assert "shardkit verify" in str(error.value)


def photo_rows(folder: Path, num_rows: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    rows = []
    for i in range(num_rows):
        height, width = draw.integers(20, 60, 2)
        pixels = draw.integers(0, 60, (height, width, 3), np.uint8)
        pixels[:, :, i % 2] += 150
        kind = ("PNG", "JPEG", "GIF", "BMP")[i % 4]
        path = folder / f"{i}.{kind.lower()}"
        Image.fromarray(pixels).save(path, kind)
        rows.append({"image": path.read_bytes(), "label": i % 2, "filename": path.name})
    return rows


PHOTOS = (
    make_feature("image", "bytes", media_type="image/*"),
    make_feature("label", "int64", vocabulary=("red", "green")),
    make_feature("filename", "string"),
)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["shardkit", *in_campaign("tfdata")])
def test_images_of_all_kinds_are_learned(write, tmp_path, reader) -> None:
    rows = photo_rows(tmp_path, 80)
    data = write(PHOTOS, {"train": rows[:64], "test": rows[64:]})
    settings = {"label": "label", "image_size": 16, "global_batch_size": 8, "reader": reader}
    lines = train(data, tmp_path / "run", epochs=4, **settings)
    assert lines[-1].validation is not None
    assert lines[-1].validation["accuracy"] == 1.0
    with pytest.raises(Interrupted):
        train(data, tmp_path / "cut", Recorder(21), epochs=4, checkpoint_every=3, **settings)
    resumed = train(data, tmp_path / "cut", epochs=4, checkpoint_every=3, resume=True, **settings)
    assert what_was_learned(resumed) == what_was_learned(lines)


def test_an_image_that_cannot_be_decoded_is_named(write, tmp_path) -> None:
    rows = photo_rows(tmp_path, 20)
    rows[13]["image"] = rows[13]["image"][:40]
    data = write(PHOTOS, {"train": rows}, num_shards=1)
    with pytest.raises(BadInputError, match=r"record 14, filename '13\.jpeg'"):
        train(data, tmp_path / "run", label="label", image_size=16, global_batch_size=4, epochs=1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import keras\n\ndef build(features):\n    pass\n", "line|TypeError"),
        ("def build(*arguments):\n    raise ValueError('odd')\n", r"line 2: ValueError: odd"),
        ("def build(*arguments):\n    return 3\n", "returned int, not a keras.Model"),
        ("def other():\n    pass\n", "no function 'build'"),
        ("def build(:\n", "line 1: SyntaxError"),
        (
            "import keras\n\ndef build(f, s, label):\n    i = keras.Input([], name='nope')\n"
            "    return keras.Model(i, keras.layers.Reshape([1])(i))\n",
            "input 'nope', which is no feature",
        ),
        (
            "import keras\n\ndef build(f, s, label):\n    i = keras.Input([], name='count')\n"
            "    return keras.Model(i, keras.layers.Dense(5)(keras.layers.Reshape([1])(i)))\n",
            r"gives shape \[None, 5\].*expected \[None, 2\]: one logit for each class",
        ),
        (
            "import keras\n\ndef build(f, s, label):\n    i = keras.Input([], name='count')\n"
            "    x = keras.layers.Dense(2)(keras.layers.Reshape([1])(i))\n    return keras.Model(i, [x, x])\n",
            r"gives a list for a batch, and not one tensor.*expected \[None, 2\]: one logit for each class",
        ),
    ],
)
def test_a_model_file_that_does_not_work_is_explained(dataset, tmp_path, user_model, source, message) -> None:
    with pytest.raises(UsageError, match=message):
        train(dataset, tmp_path / "run", model=user_model(source), epochs=1)


def test_a_loss_that_is_no_number_ends_the_run(dataset, tmp_path) -> None:
    with pytest.raises(UsageError, match="--learning-rate"):
        train(dataset, tmp_path / "run", label="size", ignore=("sides",), epochs=3, learning_rate=1e30)
