"""A trained model is tested on a split that did not choose it."""

from __future__ import annotations

import pytest

from tests.support.training.manifests import manifest
from train.runs.dataset_check import choose_split


@pytest.mark.parametrize(
    ("splits", "validated", "expected"),
    [
        ({"train": 9, "test": 1, "val": 1}, "val", "test"),
        ({"train": 9, "test": 0, "val": 1}, "val", "val"),
        ({"train": 9, "holdout": 1}, "holdout", "holdout"),
        ({"train": 9, "dev": 1}, None, "dev"),
    ],
)
def test_a_trained_model_is_tested_on_what_it_was_not_chosen_by(
    splits: dict[str, int], validated: str | None, expected: str
) -> None:
    assert choose_split(manifest(splits), None, validated) == expected
