"""Shares of the workers are even, and are what their readers read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.reading.splits import open_splits
from train.input.shares import worker_shares

pytestmark = pytest.mark.full

SHARDS = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=8)


@given(SHARDS, st.integers(1, 4), st.integers(1, 20), st.integers(0, 3))
def test_shares_are_even_and_cover_the_steps(shards, num_workers, worker_batch, seed) -> None:
    size = num_workers * worker_batch
    blocks_each, block_examples = np.array([len(s) for s in shards]), np.concatenate(shards)
    shares = worker_shares(blocks_each, block_examples, global_batch_size=size, num_workers=num_workers, seed=seed)
    num_steps = sum(map(sum, shards)) // size
    assert [s.num_examples for s in shares] == [num_steps * worker_batch] * num_workers
    assert {s.num_step_examples for s in shares} == {worker_batch}
    assert all(s.num_shards <= min(len(shards), s.num_blocks) for s in shares)
    assert all(bool(s.num_blocks) == bool(num_steps) for s in shares)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_share_is_what_the_reader_reads(place, num_workers) -> None:
    split = open_splits(place / "data")["train"]
    shards = split.dataset.split_shards("train")
    size = 20
    shares = worker_shares(*shards.block_examples(), global_batch_size=size, num_workers=num_workers, seed=5)
    block_of = [i for i, n in enumerate(split.block_num_examples) for _ in range(n)]
    shard_of = [i for i, s in enumerate(shards) for _ in range(s.num_examples)]
    for share in shares:
        reader = split.batches(
            global_batch_size=size, seed=5, worker_index=share.worker_index, num_workers=num_workers, features=["id"]
        )
        ids = [int(i) for batch in reader for i in batch["id"]]
        assert len(ids) == share.num_examples
        assert len({block_of[i] for i in ids}) == share.num_blocks
        assert len({shard_of[i] for i in ids}) == share.num_shards
