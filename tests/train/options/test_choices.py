"""Splits and features follow from the manifest."""

from __future__ import annotations

import pytest

from shardkit.errors import UsageError
from tests.support.training.manifests import manifest
from train.options.choices import choose_features, choose_splits
from train.runs.dataset_check import choose_split


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({"train": 9, "test": 1}, ("train", "test")),
        ({"train": 9, "test": 1, "validation": 1}, ("train", "validation")),
        ({"train": 9, "test": 0, "val": 1}, ("train", "val")),
        ({"train": 9, "test": 1, "val": 1}, ("train", "val")),
        ({"train": 9, "holdout": 1}, ("train", None)),
        ({"everything": 9}, ("everything", None)),
        ({"test": 9}, ("test", None)),
    ],
)
def test_splits_are_found_by_name(splits: dict[str, int], expected: tuple[str, str | None]) -> None:
    found = choose_splits(manifest(splits), None, None)
    assert (found.train, found.validation) == expected


def test_splits_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="--train-split: a, b"):
        choose_splits(manifest({"a": 1, "b": 1}), None, None)
    with pytest.raises(UsageError, match="It has: train, test"):
        choose_splits(manifest({"train": 1, "test": 1}), None, "tset")
    with pytest.raises(UsageError, match="holds no examples"):
        choose_splits(manifest({"train": 1, "test": 0}), None, "test")


def test_a_dataset_without_examples_is_not_asked_for_another_split() -> None:
    for splits in ({}, {"train": 0, "test": 0}):
        with pytest.raises(UsageError, match="the dataset holds no examples"):
            choose_splits(manifest(splits), None, None)
        for wanted in (None, "train"):
            with pytest.raises(UsageError, match="the dataset holds no examples"):
                choose_split(manifest(splits), wanted, None)


def test_the_label_is_never_learned_from() -> None:
    data = manifest({"train": 1})
    assert [f.name for f in choose_features(data, "price", None, ())] == ["age", "city"]
    assert [f.name for f in choose_features(data, "price", ("city",), ())] == ["city"]
    assert [f.name for f in choose_features(data, "price", None, ("city",))] == ["age"]
    with pytest.raises(UsageError, match="among --features"):
        choose_features(data, "price", ("price", "age"), ())
    with pytest.raises(UsageError, match="no feature 'cty'"):
        choose_features(data, "price", ("cty",), ())
    with pytest.raises(UsageError, match="both"):
        choose_features(data, "price", ("age",), ("age",))
    with pytest.raises(UsageError, match="no feature left"):
        choose_features(data, "price", None, ("age", "city"))
