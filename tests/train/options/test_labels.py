"""Task and classes follow from the label's type and statistics."""

from __future__ import annotations

import msgspec
import pytest

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import UsageError
from shardkit.features import Feature, make_feature
from tests.support.training.manifests import AGE, CITY, PRICE, statistics
from train.options.labels import (
    choose_task,
    classification_label,
    listed_values,
    note_on_classes,
    notes_on_unlabelled,
    regression_label,
)


@pytest.mark.parametrize(
    ("feature", "own", "expected"),
    [
        (CITY, statistics(2), "classification"),
        (make_feature("b", "bool"), statistics(2), "classification"),
        (AGE, statistics(100), "classification"),
        (AGE, statistics(101), "regression"),
        (AGE, statistics(50, exact=False), "regression"),
        (make_feature("digit", "int64", vocabulary=("a", "b")), statistics(101), "classification"),
        (PRICE, statistics(), "regression"),
        (make_feature("when", "timestamp[us]"), statistics(), "regression"),
        (make_feature("cost", "decimal(9,2)"), statistics(), "regression"),
    ],
)
def test_the_task_follows_from_the_label(feature: Feature, own: FeatureStatistics, expected: str) -> None:
    assert choose_task(feature, own, "auto") == expected


def test_a_task_that_does_not_fit_the_label_is_refused() -> None:
    with pytest.raises(UsageError, match="it is no number"):
        choose_task(CITY, statistics(2), "regression")
    with pytest.raises(UsageError, match="classes are strings"):
        choose_task(PRICE, statistics(), "classification")
    with pytest.raises(UsageError, match="one string, number or truth value"):
        choose_task(make_feature("words", "string", (None,)), statistics(), "auto")
    assert choose_task(AGE, statistics(5), "regression") == "regression"


def test_classes_stand_in_order_whatever_their_frequency() -> None:
    label = classification_label(CITY, ("b", "a", "b", "c"), {"train": statistics(3, num_nulls=4)})
    assert label.classes == ("a", "b", "c")
    assert label.num_outputs == 3
    assert label.num_unlabelled == {"train": 4}
    with pytest.raises(UsageError, match="1 distinct"):
        classification_label(CITY, ("a",), {})
    with pytest.raises(UsageError, match="at most 10,000"):
        classification_label(AGE, tuple(range(10_001)), {})


def test_numbers_stored_as_text_are_pointed_out() -> None:
    delays = [str(i) for i in range(30)]
    suspicious = classification_label(CITY, (*delays, "NA"), {})
    assert "--null-value NA" in (note_on_classes(suspicious) or "")
    assert note_on_classes(classification_label(CITY, delays[:5], {})) is None
    assert note_on_classes(classification_label(CITY, [f"n{i}" for i in range(30)], {})) is None


def test_named_classes_keep_their_indices() -> None:
    label = classification_label(make_feature("digit", "int64", vocabulary=("zero", "one")), (), {})
    assert label.classes == (0, 1)
    assert label.class_names == ("zero", "one")


def test_a_regression_counts_what_is_no_number_as_unlabelled() -> None:
    label = regression_label(
        PRICE, "train", {"train": statistics(mean=3.0, std=0.0, num_nans=2, num_infs=1, num_nulls=4)}
    )
    assert (label.mean, label.std) == (3.0, 1.0)
    assert label.num_unlabelled == {"train": 7}
    assert notes_on_unlabelled(label) == [
        "7 examples of train have no label that is a finite number; they have weight 0"
    ]
    one = msgspec.structs.replace(label, num_unlabelled={"train": 1, "test": 0})
    assert notes_on_unlabelled(one) == ["1 example of train has no label that is a finite number; it has weight 0"]
    with pytest.raises(UsageError, match="no finite value"):
        regression_label(PRICE, "train", {"train": statistics()})


def test_values_are_listed_only_if_all_of_them_are() -> None:
    assert listed_values(statistics(2, listed=2)) == ("v0", "v1")
    assert listed_values(statistics(30, listed=20)) is None
    assert listed_values(statistics(2, listed=2, exact=False)) is None
    assert listed_values(None) is None
