"""When a run stops, and which of its epochs was the best."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from train.reporting.early_stopping import best_epoch, best_first, choose_monitor, should_stop
from train.reporting.metric_sums import SumsLayout
from train.reporting.metrics import EpochMetrics, decode_lines, encode_line


def lines(values: list[float], name: str = "loss") -> list[EpochMetrics]:
    return [
        EpochMetrics(
            epoch=i,
            step=10 * (i + 1),
            train={name: -v},
            validation={name: v},
            examples_per_s=None,
            waiting_share=None,
            train_s=1.0,
            validation_s=1.0,
        )
        for i, v in enumerate(values)
    ]


def order(values: list[float], name: str = "loss", monitor: str | None = None) -> list[int]:
    return [line.epoch for line in best_first(lines(values, name), monitor or name)]


def test_the_direction_follows_from_the_metric() -> None:
    assert order([3, 1, 2]) == [1, 2, 0]
    assert order([3, 1, 2], "rmse") == [1, 2, 0]
    assert order([0.3, 0.1, 0.2], "accuracy") == [0, 2, 1]
    assert order([3, 1, 2], monitor="train.loss") == [0, 2, 1]


def test_the_first_of_equal_epochs_is_the_best() -> None:
    found = lines([2, 1, 1, 1])
    assert best_epoch(found) == found[1]
    assert should_stop(found, 2)
    assert not should_stop(found, 3)


def test_an_epoch_without_a_number_is_no_improvement() -> None:
    assert order([math.nan, math.nan]) == []
    assert should_stop(lines([math.nan, math.nan]), 2)
    assert order([math.nan, 2, math.nan]) == [1]
    assert should_stop(lines([math.nan, 2, math.nan]), 1)
    assert not should_stop(lines([math.nan, 2, math.nan]), 2)
    assert not should_stop([], 1)
    assert best_epoch([]) is None


def first_stop(values: list[float], patience: int) -> int | None:
    """Returns after how many epochs a run stops, by looking back over windows."""
    for n in range(patience + 1, len(values) + 1):
        if min(values[n - patience : n]) >= min(values[: n - patience]):
            return n
    return None


@given(st.lists(st.integers(0, 8).map(float), max_size=30), st.integers(1, 6), st.integers(0, 30))
def test_a_resumed_run_stops_where_the_unbroken_one_does(values: list[float], patience: int, cut: int) -> None:
    expected = first_stop(values, patience)
    cut = min(cut, len(values) if expected is None else expected)
    unbroken = next((n for n in range(len(values) + 1) if should_stop(lines(values[:n]), patience)), None)
    assert unbroken == expected
    kept = decode_lines(b"".join(map(encode_line, lines(values[:cut]))))
    both = kept + lines(values)[len(kept) :]
    resumed = next((n for n in range(len(kept), len(values) + 1) if should_stop(both[:n], patience)), None)
    assert resumed == expected


def test_a_metric_that_is_not_measured_is_refused() -> None:
    two = SumsLayout(task="classification", num_classes=2)
    assert choose_monitor("auc", two, has_validation=True) == "auc"
    assert choose_monitor("train.f1", two, has_validation=False) == "train.f1"
    assert choose_monitor(None, two, has_validation=True) == "loss"
    assert choose_monitor(None, two, has_validation=False) == "train.loss"
    with pytest.raises(UsageError, match=r"no metric 'auc'.*loss, accuracy, f1_macro"):
        choose_monitor("auc", SumsLayout(task="classification", num_classes=3), has_validation=True)
    with pytest.raises(UsageError, match=r"--monitor train\.loss"):
        choose_monitor("loss", SumsLayout(task="regression"), has_validation=False)
