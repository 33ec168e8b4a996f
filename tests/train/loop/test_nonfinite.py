"""A loss or weights that are no number: the error says which batch it was, and what to do works; none are saved."""

from __future__ import annotations

import math
import re
import textwrap
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.features import make_feature
from tests.support.training.inprocess import Recorder, train
from train.loop.nonfinite import Batches, explain, look_at, not_a_number, weights_not_finite
from train.models.batch import Batch
from train.options.config import TrainOptions
from train.reporting.metric_sums import zero_sums
from train.reporting.metrics import EpochMetrics
from train.runs.checkpoints import Checkpoints, Trained
from train.runs.request import resolve
from train.runs.restore_model import restore_model
from train.runs.run_folder import RunFolder, list_checkpoints
from train.setup import set_up

pytestmark = pytest.mark.full

FEATURES = (make_feature("key", "int64"), make_feature("x", "float32"), make_feature("y", "float32"))

MODEL = """
    import keras

    def build(features, statistics, label):
        x = keras.Input([], name="x")
        return keras.Model({"x": x}, keras.layers.Dense(1)(keras.layers.Reshape([1])(x)))
"""


@pytest.fixture
def dataset(write) -> Path:
    rows = [{"key": i, "x": math.inf if i in (41, 77) else i / 120, "y": i / 60} for i in range(120)]
    return write(FEATURES, {"train": rows})


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    return {"label": "y", "model": f"{tmp_path}/model.py:build", "global_batch_size": 10, "seed": 3, "epochs": 2}


@pytest.fixture
def one_step(write, settings):
    """Returns a run whose epochs are one step long."""
    data = write(FEATURES, {"train": [{"key": i, "x": i, "y": i / 60} for i in range(120)]})
    settings |= {"global_batch_size": 120, "optimizer": "sgd", "schedule": "constant", "warmup_steps": 0}
    settings["learning_rate"] = 1e-5

    def run(output: Path, reporter: Recorder | None = None, **more: object) -> list[EpochMetrics]:
        return train(data, output, reporter, **{**settings, **more})

    return run


def advice_of(error: UsageError) -> dict[str, object]:
    """Returns what a user would do who reads an error."""
    assert error.next_step is not None
    assert error.next_step.startswith("Add --resume and a smaller --learning-rate, or begin again")
    return {"resume": True, "learning_rate": 1e-5}


def test_weights_that_the_last_update_made_infinite_are_not_saved(one_step, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"no longer numbers after step 1: .* There is no checkpoint yet\.") as first:
        one_step(tmp_path / "run", epochs=1, learning_rate=1e38)
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []
    one_step(tmp_path / "run", epochs=1, **advice_of(first.value))
    with pytest.raises(UsageError, match=r"after step 2: .* the checkpoint after step 1 is kept") as second:
        one_step(tmp_path / "run", epochs=2, learning_rate=1e38, resume=True)
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == [1]
    reporter = Recorder()
    lines = one_step(tmp_path / "run", reporter, epochs=2, **advice_of(second.value))
    assert [line.step for line in lines] == [1, 2]
    assert lines[1].train["loss"] < lines[0].train["loss"]
    assert "note: the run began with the learning rate 1e+38; it goes on with 1e-05" in reporter.texts


def test_a_model_that_gives_no_number_before_it_learned_anything_is_to_blame(dataset, tmp_path, settings) -> None:
    (tmp_path / "log.py").write_text(
        "import keras\n\ndef build(features, statistics, label):\n    x = keras.Input([], name='x')\n"
        "    below = keras.ops.log(-1.0 - keras.ops.square(keras.layers.Reshape([1])(x)))\n"
        "    return keras.Model(x, keras.layers.Dense(1)(below))\n"
    )
    with pytest.raises(UsageError, match=r"no weight was trained yet, so it is the model.*Look in it for a logarithm"):
        train(dataset, tmp_path / "run", **{**settings, "model": f"{tmp_path}/log.py:build"})


def test_weights_of_a_checkpoint_that_are_no_numbers_are_not_used(one_step, tmp_path) -> None:
    one_step(tmp_path / "run", epochs=2)
    folder = RunFolder(str(tmp_path / "run"))
    setup = set_up(resolve(folder.read_record().options))
    model, sums = setup.bundle.model, zero_sums(setup.objective.layout)
    checkpoints = Checkpoints(folder.checkpoints, Trained(model, setup.updater.state, len(sums)), print)
    checkpoints.restore_newest()
    model.trainable_variables[0].assign([[math.nan]])
    checkpoints.save(3, sums)
    with pytest.raises(UsageError, match=r"are not numbers in .*step-3: .*kernel' holds NaN or infinity\. Use --at"):
        restore_model(folder)
    assert restore_model(folder, "2").step == 2
    reporter = Recorder()
    assert [line.step for line in one_step(tmp_path / "run", reporter, epochs=3, resume=True)] == [1, 2, 3]
    assert any("step-3 is passed over: " in text for text in reporter.texts)
    assert "resumed after step 2" in reporter.texts
    assert restore_model(folder).step == 3


def test_the_error_names_the_batch_the_input_and_the_row(dataset, tmp_path, settings) -> None:
    with pytest.raises(UsageError) as caught:
        train(dataset, tmp_path / "run", **settings)
    text = str(caught.value)
    found = re.search(r"at step (\d+) in batch (\d+) of 12 of epoch 1: .* no numbers: 'x' in rows? (\d+)", text)
    assert found is not None, text
    step, batch, row = map(int, found.groups())
    assert step == batch
    code = re.search(r"count from 0: (.*)\.$", text)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1].replace("; ", "\n"), names)  # noqa: S102 - the lines that the user is told to run
    given = names["batch"]
    assert isinstance(given, dict) or hasattr(given, "keys")
    bad = np.flatnonzero(~np.isfinite(given["x"]))  # type: ignore[index]
    assert bad[0] == row
    assert set(given["key"][bad]) <= {41, 77}  # type: ignore[index]


def test_the_tfdata_reader_names_them_too(dataset, tmp_path, settings) -> None:
    with pytest.raises(UsageError, match=r"of 12 of epoch 1: .* no numbers: 'x' in row.*--reader shardkit"):
        train(dataset, tmp_path / "run", reader="tfdata", **settings)


def test_a_batch_of_numbers_is_not_blamed() -> None:
    inputs = {"x": tf.constant([[1.0, -7e30], [2.0, 3.0]]), "n": tf.constant([1, 2])}
    findings = look_at(Batch(inputs, tf.zeros([2]), tf.ones([2])))
    why, advice = explain(findings)
    assert why == "all inputs in its batch are numbers, up to 7e+30 in 'x'"
    assert "--learning-rate" in advice


def test_where_several_batches_may_be_the_reason_all_of_them_are_named(write, settings) -> None:
    data = write(FEATURES, {"train": [{"key": i, "x": 50.0 if i == 30 else 1.0, "y": 1.0} for i in range(100)]})
    setup = set_up(resolve(TrainOptions(dataset=str(data), output="", **settings)))
    batches = islice(setup.input.training(setup.plan.position(0)), 10)
    (largest,) = (i for i, batch in enumerate(batches) if look_at(batch)[0].largest == 50.0)
    own = Batches(setup.request, setup.plan, setup.input, 0)
    error = not_a_number(own, min(largest + 2, 10), 4, bool, None)
    found = re.search(r"one of the batches (\d+) to (\d+) of 10 of epoch 1: all inputs in these batches", str(error))
    assert found is not None, str(error)
    first, last = map(int, found.groups())
    assert first <= largest + 1 <= last <= 10
    code = re.search(r"count from 0: (.*)\.$", str(error))
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1].replace("; ", "\n"), names)  # noqa: S102 - the lines that the user is told to run
    given = names["found"]
    assert isinstance(given, list)
    assert len(given) == last - first + 1
    assert max(float(batch["x"].max()) for batch in given) == 50.0


def test_workers_that_average_look_back_to_where_they_last_met(write, settings) -> None:
    data = write(FEATURES, {"train": [{"key": i, "x": 1.0, "y": 1.0} for i in range(230)]})
    setup = set_up(resolve(TrainOptions(dataset=str(data), output="", **settings)))
    # 23 steps of an epoch have two averages, after 12 and after 23.
    plan = msgspec.structs.replace(setup.plan, sync_every=8)
    for step, batches in ((12, "1 to 12"), (23, "13 to 23"), (35, "1 to 12")):
        assert plan.is_sync_due(step)
        error = not_a_number(Batches(setup.request, plan, setup.input, 0), step, 0, bool, None)
        assert f"one of the batches {batches} of 23" in str(error)


def test_what_another_worker_has_is_not_called_too_large_an_update(write, settings) -> None:
    data = write(FEATURES, {"train": [{"key": i, "x": 1.0, "y": 1.0} for i in range(20)]})
    setup = set_up(resolve(TrainOptions(dataset=str(data), output="", **settings)))
    error = weights_not_finite(
        "kernel", 2, None, Batches(setup.request, setup.plan, setup.input, 0), None, is_elsewhere=True
    )
    assert "inputs in another worker's share are no numbers" in str(error)
    assert "too large" not in str(error)


def test_rows_are_those_of_the_global_batch() -> None:
    values = np.zeros([20, 3], np.float32)
    values[[1, 4, 5, 6, 9, 11, 19], 2] = np.nan
    findings = look_at(Batch(tf.constant(values), tf.zeros([20]), tf.ones([20])), first_row=40)
    assert explain(findings)[0] == "inputs in its batch are no numbers: 'input' in rows 41, 44, 45, 46, 49 and 2 more"
    only = look_at(Batch({"n": tf.constant([1])}, tf.zeros([1]), tf.ones([1])))
    assert "cannot be the reason" in explain(only)[0]
