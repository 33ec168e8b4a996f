"""From gradients to weights: alike on one replica and on two, whatever is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from shardkit.errors import UsageError
from tests.support.paths import ROOT
from train.models.batch import Batch
from train.optimization.gradients import add_gradients, clip_gradients, split_batch
from train.optimization.precision import SMALLEST_SCALE, LossScale, note_on_outputs, set_precision
from train.optimization.updater import WeightAverages
from train.setup import configure_memory

pytestmark = pytest.mark.full

PROGRAM = ROOT / "tests/support/training/replica_steps.py"
EXACT = ("plain", "sparse", "accumulated", "everything", "xla")
IN_CI = (*EXACT, "batch_norm", "batch_norm_accumulated", "recomputed", "overflow", "bfloat16", "reduced_in_bfloat16")
IN_CAMPAIGN = ("plain", "adamw", "sgd", "lion", "clipped", "overflow_accumulated", "reduced_in_float16")

Results = Mapping[str, np.ndarray]


def run_cases(folder: Path, names: tuple[str, ...]) -> Results:
    path = folder / "results.npz"
    command = [sys.executable, str(PROGRAM), str(path), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(path) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_cases(tmp_path_factory.mktemp("replicas"), IN_CI)


def weights(results: Results, case: str, num_replicas: int, replica: int = 0) -> list[np.ndarray]:
    prefix = f"{case}/{num_replicas}/weights{replica}/"
    return [results[k] for k in sorted(k for k in results if k.startswith(prefix))]


def assert_close(one: list[np.ndarray], other: list[np.ndarray], atol: float) -> None:
    assert len(one) == len(other) == 5
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def assert_two_equal_one(results: Results, case: str) -> None:
    assert_close(weights(results, case, 1), weights(results, case, 2), 1e-6)
    np.testing.assert_allclose(results[f"{case}/1/sums"], results[f"{case}/2/sums"], rtol=1e-5)


@pytest.mark.slow
def test_two_replicas_equal_one(results: Results) -> None:
    for case in EXACT:
        assert_two_equal_one(results, case)
    for i in range(5):
        one, two = (results[f"everything/{n}/averages/{i}"] for n in (1, 2))
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
        assert not np.array_equal(one, weights(results, "everything", 1)[i])


@pytest.mark.campaign
def test_they_do_so_with_every_optimizer_and_type(tmp_path: Path) -> None:
    results = run_cases(tmp_path, IN_CAMPAIGN)
    for case in ("adamw", "sgd", "lion", "clipped"):
        assert_two_equal_one(results, case)
    assert_overflow_is_skipped(results, "overflow_accumulated")
    assert_less_precision_is_near(results, "reduced_in_float16")
    assert "float16" in results["reduced_in_float16/2/reduced_in"]


@pytest.mark.slow
def test_micro_batches_and_xla_equal_the_whole_batch(results: Results) -> None:
    for num_replicas in (1, 2):
        for case in ("accumulated", "xla"):
            assert_close(weights(results, "plain", num_replicas), weights(results, case, num_replicas), 1e-6)


@pytest.mark.slow
def test_activations_computed_again_change_nothing(results: Results) -> None:
    for num_replicas in (1, 2):
        plain, again = (weights(results, case, num_replicas) for case in ("batch_norm", "recomputed"))
        for a, b in zip(plain, again, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_micro_batches_go_with_synchronized_normalization(results: Results) -> None:
    first, last = (weights(results, "batch_norm_accumulated", 2, replica) for replica in (0, 1))
    assert all(np.isfinite(w).all() for w in first)
    for a, b in zip(first, last, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_an_overflow_on_the_last_replica_is_skipped_by_all(results: Results) -> None:
    assert_overflow_is_skipped(results, "overflow")


def assert_overflow_is_skipped(results: Results, case: str) -> None:
    for num_replicas in (1, 2):
        scales = results[f"{case}/{num_replicas}/scales"]
        assert scales.tolist() == [2.0**15] * 4 + [2.0**14] * 4
        assert results[f"{case}/{num_replicas}/num_updates"] == 7
    one, first, last = (weights(results, case, n, r) for n, r in ((1, 0), (2, 0), (2, 1)))
    assert all(np.isfinite(w).all() for w in first)
    assert_close(first, last, 0.0)
    assert_close(one, first, 1e-3)


@pytest.mark.slow
def test_less_precision_is_near_the_full_one_but_not_it(results: Results) -> None:
    for case in ("bfloat16", "reduced_in_bfloat16"):
        assert_less_precision_is_near(results, case)


def assert_less_precision_is_near(results: Results, case: str) -> None:
    full = weights(results, "plain", 2)
    first, last = weights(results, case, 2, 0), weights(results, case, 2, 1)
    assert_close(first, last, 0.0)
    assert_close(first, full, 2e-2)
    assert max(np.abs(a - b).max() for a, b in zip(first, full, strict=True)) > 1e-6


@pytest.mark.slow
def test_gradients_travel_in_the_type_that_was_asked_for(results: Results) -> None:
    assert "bfloat16" in results["reduced_in_bfloat16/2/reduced_in"]
    assert results["plain/2/reduced_in"].tolist() == ["float32"]


@pytest.mark.slow
def test_the_gradient_of_a_table_is_never_made_dense_on_the_way(results: Results) -> None:
    for num_replicas in (1, 2):
        assert results[f"sparse/{num_replicas}/num_made_dense"] == 0
        assert results[f"plain/{num_replicas}/num_made_dense"] > 0  # Adam itself changes every row.


@pytest.mark.slow
def test_pruned_weights_and_their_averages_are_zero_on_all_replicas(results: Results) -> None:
    for replica in (0, 1):
        own = weights(results, "everything", 2, replica)
        assert [float((w == 0).mean()) for w in own] == [0.0, 0.5, 0.0, 0.5, 0.0]
    for i in (1, 3):
        assert (results[f"everything/2/averages/{i}"] == 0).mean() == 0.5


def slices(rows: list[int], values: np.ndarray) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(rows), tf.constant([7, values.shape[1]]))


def test_clipping_a_sparse_gradient_is_clipping_the_dense_one() -> None:
    draw = np.random.default_rng(0)
    sparse, dense = slices([1, 5, 1, 1], draw.normal(size=(4, 3))), tf.constant(draw.normal(size=(2, 2)), tf.float32)
    expected, norm = tf.clip_by_global_norm([tf.convert_to_tensor(sparse), dense], 0.5)
    assert float(norm) > 0.5
    clipped = clip_gradients([sparse, None, dense], 0.5)
    assert isinstance(clipped[0], tf.IndexedSlices)
    assert clipped[0].indices.shape == [2]
    assert clipped[1] is None
    np.testing.assert_allclose(tf.convert_to_tensor(clipped[0]), expected[0], rtol=1e-6)
    np.testing.assert_allclose(clipped[2], expected[1], rtol=1e-6)


def test_sparse_gradients_add_up_to_sparse_ones() -> None:
    a, b = slices([1, 2], np.ones((2, 3))), slices([2, 6], np.ones((2, 3)))
    total = add_gradients([a, None, None], [b, tf.ones(2), None])
    assert isinstance(total[0], tf.IndexedSlices)
    np.testing.assert_array_equal(tf.convert_to_tensor(total[0])[:, 0], [0, 1, 2, 0, 0, 0, 1])
    np.testing.assert_array_equal(total[1], [1, 1])
    assert total[2] is None


def test_parts_of_a_batch_keep_its_structure() -> None:
    batch = Batch({"a": tf.range(6), "b": tf.ones([6, 2])}, tf.range(6), tf.ones(6))
    parts = split_batch(batch, 3)
    assert [p.inputs["a"].numpy().tolist() for p in parts] == [[0, 1], [2, 3], [4, 5]]
    assert all(p.inputs["b"].shape == [2, 2] for p in parts)


def test_averages_take_the_place_of_weights_for_a_while() -> None:
    variable = keras.Variable(np.zeros(2, np.float32), name="w")
    averages = WeightAverages([variable], 0.5)
    averages.values[0].assign([3.0, 4.0])
    with averages.in_place_of([variable]):
        assert variable.numpy().tolist() == [3.0, 4.0]
    assert variable.numpy().tolist() == [0.0, 0.0]
    assert averages.values[0].numpy().tolist() == [3.0, 4.0]
    assert [round(float(averages.momentum_at(tf.constant(n))), 6) for n in (0, 1, 100)] == [0.1, round(2 / 11, 6), 0.5]


def test_a_loss_scale_grows_after_many_good_steps_and_gives_up_when_nothing_helps(monkeypatch) -> None:
    monkeypatch.setattr("train.optimization.precision.STEPS_TO_GROW", 3)
    scale = LossScale()
    for _ in range(5):
        scale.grow()
    assert float(scale.scale.numpy()) == 2.0**16
    assert int(scale.num_good_steps.numpy()) == 2
    scale.check()
    while float(scale.scale.numpy()) >= SMALLEST_SCALE:
        scale.shrink()
    with pytest.raises(UsageError, match="--precision bfloat16"):
        scale.check()


def test_a_last_layer_of_low_precision_is_pointed_out() -> None:
    try:
        set_precision("bfloat16")
        inputs = keras.Input([2])
        low = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        high = keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(inputs))
    finally:
        set_precision("float32")
    assert low.layers[-1].kernel.dtype == "float32"
    assert "dtype='float32'" in str(note_on_outputs(low, "bfloat16"))
    assert note_on_outputs(high, "bfloat16") is None


def test_memory_is_set_alike_on_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[str] = []
    limits: list[tuple[str, int]] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["first", "second"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, grows: grown.append(gpu))
    monkeypatch.setattr(
        tf.config,
        "set_logical_device_configuration",
        lambda gpu, parts: limits.extend((gpu, part.memory_limit) for part in parts),
    )
    configure_memory(None)
    assert (grown, limits) == (["first", "second"], [])
    configure_memory(4096)
    assert limits == [("first", 4096), ("second", 4096)]


def test_memory_is_limited_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    configure_memory(None)
    with pytest.raises(UsageError, match="--memory-limit is for GPUs"):
        configure_memory(4096)
