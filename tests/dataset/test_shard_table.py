"""Large shard tables: rows are made when they are asked for, and every shard is dealt to somebody once."""

import contextlib
import copy
import hashlib
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.dataset.block_index import SplitBlocks
from shardkit.dataset.manifest import describe_table
from shardkit.dataset.open import Dataset
from shardkit.dataset.shard_table import decode_shard_table, encode_shard_table
from shardkit.errors import DamageError, UnsafeError
from shardkit.reading.order import EpochOrder, OrderOptions, Worker, choose_num_lanes
from shardkit.units import MiB
from tests.dataset.test_manifest import make_manifest, make_shard
from tests.support.examples import draws
from tests.support.paths import ROOT

NUM_SHARDS, NUM_WORKERS = 50_000, 1024


def numbered(split, num_shards, **changes):
    return [
        make_shard(
            split,
            i,
            path=f"data/abc/{split}-{i:05d}.tfrecord.gz",
            sha256=hashlib.sha256(f"{split}{i}".encode()).hexdigest(),
            **changes,
        )
        for i in range(num_shards)
    ]


def opened(shards):
    table = encode_shard_table(shards)
    return decode_shard_table(table, make_manifest(shards, table), "here")


@pytest.fixture(scope="module")
def large():
    """Returns a dataset of many shards of two blocks each, and its table."""
    shards = [*numbered("train", NUM_SHARDS), *numbered("test", 100)]
    table = encode_shard_table(shards)
    manifest = make_manifest(shards, table)
    return Dataset("/nowhere", 1, manifest, decode_shard_table(table, manifest, "here")), shards, table


@pytest.mark.full
def test_many_rows_are_what_was_written(large):
    dataset, shards, _ = large
    assert len(dataset.shards) == NUM_SHARDS + 100
    assert list(dataset.shards) == shards
    assert dataset.shards[-1] == shards[-1]
    assert dataset.split_shards("test")[3] == shards[NUM_SHARDS + 3]
    assert list(dataset.split_shards("test")[10:12]) == shards[NUM_SHARDS + 10 : NUM_SHARDS + 12]
    assert dataset.shards[::20_000] == tuple(shards[::20_000])
    with pytest.raises(IndexError):
        _ = dataset.split_shards("test")[100]


def test_columns_need_no_rows(large):
    dataset, _, _ = large
    train = dataset.split_shards("train")
    assert train.size_range() == (300, 300)
    assert train.column("num_bytes").sum() == 118 * NUM_SHARDS
    blocks_each, block_examples = train.block_examples()
    assert blocks_each.tolist() == [2] * NUM_SHARDS
    assert block_examples.tolist() == [20, 10] * NUM_SHARDS


def test_opening_and_dealing_hold_little(large):
    dataset, _, table = large
    tracemalloc.start()
    try:
        shards = decode_shard_table(table, dataset.manifest, "here")
        own = Dataset("/nowhere", 1, dataset.manifest, shards)
        blocks = SplitBlocks(own, "train")
        options = OrderOptions(global_batch_size=4 * NUM_WORKERS, num_lanes=choose_num_lanes(NUM_WORKERS))
        order = EpochOrder(blocks.num_examples, options, 0)
        order.rows(0, Worker(index=7, num_workers=NUM_WORKERS))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 100,000 blocks of a few numbers each; as rows of Python they would be 60 MB.
    assert peak < 16 * MiB


@pytest.mark.full
def test_every_shard_is_dealt_once_over_all_workers(large):
    dataset, _, _ = large
    blocks = SplitBlocks(dataset, "train")
    # As many examples as fill the steps exactly, so that nothing is left out of the epoch.
    size = 120 * NUM_WORKERS
    options = OrderOptions(global_batch_size=size, num_lanes=choose_num_lanes(NUM_WORKERS), remainder="pad", seed=5)
    order = EpochOrder(blocks.num_examples, options, 0)
    times = np.zeros(len(blocks.num_examples), np.int64)
    for index in range(NUM_WORKERS):
        worker = Worker(index=index, num_workers=NUM_WORKERS)
        num_rows = 0
        for step in range(order.num_steps):
            for place, first, stop in order.rows(step, worker):
                times[order.blocks[place]] += stop - first
                num_rows += stop - first
        assert abs(num_rows - order.num_examples / NUM_WORKERS) <= size / NUM_WORKERS
    assert np.array_equal(times, blocks.num_examples)
    shards = {blocks.ref(i).shard_index for i in range(0, len(times), 997)}
    assert shards == {i // 2 for i in range(0, len(times), 997)}


def test_shards_with_many_blocks_lie_in_smaller_row_groups():
    many = {
        "num_examples": 3000,
        "num_uncompressed_bytes": 6000,
        "num_bytes": 3018,
        "block_num_bytes": (1,) * 3000,
        "block_num_uncompressed_bytes": (2,) * 3000,
        "block_num_examples": (1,) * 3000,
        "block_crc32c": (7,) * 3000,
    }
    shards = numbered("train", 300, **many)
    found = opened(shards)
    assert list(found[85:90]) == shards[85:90]
    assert found.block_examples()[1].sum() == 900_000


def test_a_table_goes_to_another_process(large):
    dataset, shards, _ = large
    # Copied as it is pickled.
    again = copy.copy(dataset.split_shards("test"))
    assert list(again) == shards[NUM_SHARDS:]


@pytest.mark.full
@pytest.mark.parametrize("index", [0, 1, 70_000])
def test_names_with_more_than_five_digits_are_distinguished(index):
    shards = numbered("train", 100_050)
    if index:
        shards[index] = make_shard("train", index, path=shards[index - 1].path)
        with pytest.raises(DamageError, match="lists a file twice"):
            opened(shards)
    else:
        assert len(opened(shards)) == 100_050


@settings(max_examples=draws(60))
@given(st.lists(st.text("ab0/", min_size=1, max_size=4), min_size=1, max_size=8), st.integers(0, 8))
def test_a_file_is_never_listed_twice(paths, num_train):
    num_train = min(num_train, len(paths))
    splits = [("train", i) for i in range(num_train)] + [("test", i) for i in range(len(paths) - num_train)]
    shards = [make_shard(split, i, path=path) for (split, i), path in zip(splits, paths, strict=True)]
    if len(set(paths)) < len(paths):
        with pytest.raises(DamageError):
            opened(shards)
        return
    with contextlib.suppress(UnsafeError):
        assert list(opened(shards)) == shards


def test_blocks_that_do_not_add_up_are_noticed_when_they_are_read():
    shards = [*numbered("train", 3), make_shard("train", 3, block_num_examples=(2**62, 2**62))]
    table = encode_shard_table(shards)
    info = describe_table(1, "0" * 32, table, 4)
    found = decode_shard_table(table, make_manifest(shards, table, shard_table=info), "here")
    with pytest.raises(DamageError, match=r"train-00003\.tfrecord\.gz do not add up"):
        _ = found[0]
    with pytest.raises(DamageError, match="do not add up"):
        found.block_examples()


_DAMAGES = """
from shardkit.dataset.shard_table import decode_shard_table
from shardkit.errors import ShardkitError
from tests.dataset.test_manifest import SHARDS, TABLE, make_manifest

num_refused = 0
for place in range(len(TABLE) - 1800, len(TABLE)):
    table = TABLE[:place] + bytes([TABLE[place] ^ 0x54]) + TABLE[place + 1 :]
    try:
        decode_shard_table(table, make_manifest(SHARDS, table), "here")
    except ShardkitError:
        num_refused += 1
print(num_refused)
"""


@pytest.mark.full
def test_a_damaged_footer_never_ends_the_process():
    # Arrow throws where nothing can catch it: the process would be aborted.
    found = subprocess.run([sys.executable, "-c", _DAMAGES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-1000:]
    assert int(found.stdout) > 100
