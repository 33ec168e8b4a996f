"""Examples that are kept: the same batches, and nothing is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardkit
from shardkit.dataset.open import open_dataset
from shardkit.errors import UsageError
from shardkit.features import make_feature
from shardkit.reading.splits import Splits
from train.input import caching
from train.input.caching import keep_examples

pytestmark = pytest.mark.full

FEATURES = (make_feature("id", "int64"), make_feature("text", "string"))


@pytest.fixture
def dataset(write) -> Path:
    rows: list[dict[str, Any]] = [{"id": i, "text": f"number {i}"} for i in range(500)]
    return write(FEATURES, {"train": rows, "test": rows[:90]})


def test_what_is_kept_in_memory_is_never_read_again(dataset) -> None:
    expected = [batch["id"] for batch in shardkit.open(dataset)["train"].batches(global_batch_size=60, num_epochs=2)]
    opened = shardkit.open(dataset)
    note = keep_examples(opened, ("train", "test"), "memory", 1)
    assert note is not None
    assert "kept in memory" in note
    for shard in (dataset / "data").rglob("*.tfrecord*"):
        shard.unlink()
    found = [batch["id"] for batch in opened["train"].batches(global_batch_size=60, num_epochs=2)]
    np.testing.assert_array_equal(found, expected)
    test = opened["test"].batches(global_batch_size=40, shuffle=False, remainder="pad")
    assert sorted([i for batch in test for i in batch["id"].tolist()][:90]) == list(range(90))


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(dataset, monkeypatch) -> None:
    monkeypatch.setattr(caching, "MAX_MEMORY_SHARE", 1e-9)
    for shard in (dataset / "data").rglob("*.tfrecord*"):
        shard.unlink()
    with pytest.raises(UsageError, match="do not fit into memory"):
        keep_examples(Splits(open_dataset(str(dataset))), ("train",), "memory", 2)


def test_a_dataset_on_this_disk_needs_no_cache_on_it(dataset) -> None:
    note = keep_examples(shardkit.open(dataset), ("train",), "disk", 1)
    assert note is not None
    assert "keeps nothing" in note
