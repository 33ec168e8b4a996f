"""What is minimised and what is measured, against computations by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import draws
from train.models.batch import Batch
from train.optimization.objectives import objective_for
from train.options.config import LabelSpec
from train.reporting.metric_sums import (
    MAX_COUNTED_CLASSES,
    NUM_SCORE_BINS,
    SumsLayout,
    layout_for,
    summarize,
    zero_sums,
)

pytestmark = pytest.mark.full


def classes(num_classes: int) -> LabelSpec:
    names = tuple(f"c{i}" for i in range(num_classes))
    return LabelSpec(name="y", task="classification", classes=names, class_names=names)


PRICE = LabelSpec(name="y", task="regression", mean=5.0, std=2.0)


def measured(label: LabelSpec, labels: np.ndarray, outputs: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Returns the metrics of examples that come in three uneven parts, as from steps or replicas."""
    objective = objective_for(label)
    total = zero_sums(objective.layout)
    for part in np.array_split(np.arange(len(labels)), [len(labels) // 7, len(labels) // 2]):
        dtype = tf.float32 if label.task == "regression" else tf.int32
        batch = Batch(None, tf.constant(labels[part], dtype), tf.constant(weights[part], tf.float32))
        sums = objective.sums(batch, tf.constant(outputs[part], tf.float32))
        assert sums.shape == [objective.layout.num_sums]
        total = total + sums.numpy()
    return summarize(objective.layout, total)


def area_by_pairs(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the share of pairs of a positive and a negative that are in order, ties counting half."""
    positive, negative = scores[labels == 1, None], scores[None, labels == 0]
    return float(np.mean((positive > negative) + 0.5 * (positive == negative)))


def error_bound(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns what the module's docstring promises, from edges of bins in units of the score."""
    edges = np.linspace(-1, 1, NUM_SCORE_BINS + 1)[1:-1]
    bins = np.searchsorted(4 * edges / (1 - np.abs(edges)), scores)
    shares = [np.bincount(bins[labels == i], minlength=NUM_SCORE_BINS) / np.sum(labels == i) for i in (0, 1)]
    return float(shares[0] @ shares[1]) / 2


def f1_of(labels: np.ndarray, predicted: np.ndarray, index: int) -> float:
    right = np.sum((labels == index) & (predicted == index))
    precision, recall = right / max(1, np.sum(predicted == index)), right / max(1, np.sum(labels == index))
    return 2 * precision * recall / (precision + recall) if right else 0.0


@pytest.mark.parametrize("positive_share", [0.5, 0.01])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("has_ties", [False, True])
def test_two_classes_are_measured_as_by_counting_pairs(positive_share: float, spread: float, has_ties: bool) -> None:
    draw = np.random.default_rng(1)
    labels = (draw.random(6000) < positive_share).astype(np.int32)
    scores = spread * (draw.normal(size=6000) + labels) + math.log(0.002 if positive_share < 0.5 else 0.5)
    shift = draw.normal(size=6000)
    if has_ties:
        scores[::5], shift[::5] = scores[0], 0.0
    outputs = np.stack([shift, shift + scores], axis=1).astype(np.float32)
    weights = (draw.random(6000) > 0.2).astype(np.float32)
    found = measured(classes(2), labels, outputs, weights)
    counted = weights > 0
    labels, scores = labels[counted], (outputs[:, 1] - outputs[:, 0])[counted]
    predicted = (scores > 0).astype(np.int32)
    assert found["auc"] == pytest.approx(area_by_pairs(labels, scores), abs=error_bound(labels, scores))
    if spread >= 1 and not has_ties:
        assert found["auc"] == pytest.approx(area_by_pairs(labels, scores), abs=1e-3)
    assert found["f1"] == pytest.approx(f1_of(labels, predicted, 1))
    assert found["accuracy"] == pytest.approx(np.mean(labels == predicted))
    loss = np.logaddexp(0, np.where(labels == 1, -scores, scores)).mean()
    assert found["loss"] == pytest.approx(loss, rel=1e-4)


@settings(max_examples=draws(40), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-12, 12), st.booleans()), min_size=1, max_size=60))
def test_the_area_is_exact_where_bins_hold_equal_scores_only(rows: list[tuple[int, int, bool]]) -> None:
    labels, scores, kept = (np.array(c) for c in zip(*rows, strict=True))
    outputs = np.stack([np.zeros(len(scores)), scores], axis=1)
    found = measured(classes(2), labels, outputs, kept.astype(np.float32))["auc"]
    labels, scores = labels[kept], scores[kept]
    if len(set(labels.tolist())) < 2:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(area_by_pairs(labels, scores), abs=1e-9)


def test_a_score_beyond_all_bounds_stays_in_the_last_bin() -> None:
    outputs = np.array([[0.0, 1e30], [0.0, -1e30], [0.0, np.inf], [0.0, 0.0]])
    found = measured(classes(2), np.array([1, 0, 1, 0]), outputs, np.array([1, 1, 1, 1]))
    assert found["auc"] == 1.0


def test_several_classes_have_a_macro_f1_over_those_that_occur() -> None:
    draw = np.random.default_rng(2)
    labels = draw.integers(0, 5, 3000).astype(np.int32)  # Class 5 is never there, class 6 neither there nor predicted.
    outputs = draw.normal(size=(3000, 7)) + 2 * np.eye(7)[labels]
    outputs[:, 6] = -100
    weights = (draw.random(3000) > 0.3).astype(np.float32)
    found = measured(classes(7), labels, outputs, weights)
    kept = weights > 0
    labels, predicted = labels[kept], np.argmax(outputs.astype(np.float32), axis=1)[kept]
    assert found["f1_macro"] == pytest.approx(np.mean([f1_of(labels, predicted, i) for i in range(6)]))
    assert found["accuracy"] == pytest.approx(np.mean(labels == predicted))
    assert set(found) == {"loss", "accuracy", "f1_macro"}


def test_errors_of_a_regression_are_in_the_unit_of_the_label() -> None:
    draw = np.random.default_rng(3)
    labels, outputs = draw.normal(5, 2, 500), draw.normal(5, 2, (500, 1))
    weights = (draw.random(500) > 0.3).astype(np.float32)
    found = measured(PRICE, labels, outputs, weights)
    errors = (outputs[:, 0] - labels)[weights > 0]
    assert found["mae"] == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)
    assert found["loss"] == pytest.approx(np.mean(errors**2) / 4, rel=1e-5)


@pytest.mark.parametrize("label", [classes(2), classes(3), classes(MAX_COUNTED_CLASSES + 1), PRICE])
def test_no_example_says_nothing_under_the_same_names(label: LabelSpec) -> None:
    layout = layout_for(label)
    assert all(math.isnan(v) for v in summarize(layout, zero_sums(layout)).values())
    one = measured(label, np.zeros(1), np.zeros((1, label.num_outputs)), np.ones(1))
    assert tuple(one) == layout.metric_names


def test_many_classes_keep_the_sums_small() -> None:
    assert SumsLayout(task="classification", num_classes=MAX_COUNTED_CLASSES + 1).num_sums == 3
    assert SumsLayout(task="classification", num_classes=2).num_sums == 3 + 6 + 2 * NUM_SCORE_BINS


def test_smoothing_is_minimised_and_not_measured() -> None:
    draw = np.random.default_rng(4)
    labels, logits = draw.integers(0, 4, 50).astype(np.int32), draw.normal(size=(50, 4)).astype(np.float32)
    smooth = objective_for(classes(4), label_smoothing=0.1)
    log_share = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = 0.9 * np.eye(4)[labels] + 0.1 / 4
    np.testing.assert_allclose(smooth.losses(labels, tf.constant(logits)), -(target * log_share).sum(axis=1), rtol=1e-4)
    batch = Batch(None, tf.constant(labels), tf.ones([50]))
    plain = objective_for(classes(4)).sums(batch, tf.constant(logits))
    np.testing.assert_array_equal(smooth.sums(batch, tf.constant(logits)), plain)


def test_class_weights_multiply_those_of_examples_and_are_not_measured() -> None:
    weighted = objective_for(classes(3), class_weights=(1.0, 5.0, 0.5))
    batch = Batch(None, tf.constant([0, 1, 2, 1]), tf.constant([1.0, 1.0, 1.0, 0.0]))
    assert weighted.weights(batch).numpy().tolist() == [1.0, 5.0, 0.5, 0.0]
    logits = tf.constant(np.eye(3, dtype=np.float32)[[0, 0, 2, 1]])
    np.testing.assert_array_equal(weighted.sums(batch, logits), objective_for(classes(3)).sums(batch, logits))


@pytest.mark.parametrize("label", [classes(2), classes(3), PRICE])
def test_rows_that_fill_up_a_batch_count_for_nothing_whatever_they_hold(label: LabelSpec) -> None:
    draw = np.random.default_rng(0)
    labels, outputs = draw.integers(0, 2, 20), draw.normal(size=(20, label.num_outputs))
    weights = np.array([1.0] * 15 + [0.0] * 5)
    wanted = measured(label, labels[:15], outputs[:15], weights[:15])
    for value in (math.nan, math.inf):
        outputs[15:] = value
        assert measured(label, labels, outputs, weights) == pytest.approx(wanted, rel=1e-6)
