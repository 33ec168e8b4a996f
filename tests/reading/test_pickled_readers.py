"""Readers that pass to other processes, states that stay small, and numbers that no reader can have."""

import json
import multiprocessing
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit import LengthBuckets
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.order import OrderOptions
from shardkit.testing import write_dataset
from tests.support.batch_functions import ids_of, is_small, num_examples, twice

FEATURES = (make_feature("id", "int64"), make_feature("tokens", "int32", (None,)))
NUM_ROWS = 300
LONG = tuple(range(2**62, 2**62 + 64 * 10**10, 10**10))


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    tokens = pa.array([list(range(i % 30 + 1)) for i in range(NUM_ROWS)], FEATURES[1].arrow_type)
    batch = pa.record_batch([pa.array(range(NUM_ROWS)), tokens], arrow_schema(FEATURES))
    folder = tmp_path_factory.mktemp("elsewhere") / "set"
    write_dataset(folder, FEATURES, {"train": batch, "test": batch}, num_shards=3, block_examples=8)
    return shardkit.open(folder)


READERS = {
    "split": lambda s: s["train"].batches(global_batch_size=20, seed=3, num_epochs=2, num_workers=2, worker_index=1),
    "functions": lambda s: s["train"].batches(global_batch_size=20).map(twice).filter(is_small),
    "buckets": lambda s: s["train"].batches(buckets=LengthBuckets(feature="tokens", tokens_per_batch=200)),
    "mixture": lambda s: shardkit.mix({s["train"]: 0.7, s["test"]: 0.3}).batches(global_batch_size=20, num_steps=9),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_reader_that_is_pickled_goes_on_where_it_stood(splits, kind):
    reader = READERS[kind](splits)
    batches = iter(reader)
    ids_of(next(batches) for _ in range(3))
    copy = ForkingPickler.loads(ForkingPickler.dumps(reader))
    assert copy.state() == reader.state()
    rest = ids_of(batches)
    assert len(rest) > 3
    assert ids_of(copy) == rest


@pytest.mark.full
def test_readers_and_datasets_pass_to_a_process_that_is_started_anew(splits):
    reader = READERS["functions"](splits)
    batches = iter(reader)
    next(batches)
    splits["train"].take([5])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(num_examples, [splits]) == {"train": NUM_ROWS, "test": NUM_ROWS}
        assert pool.apply(ids_of, [reader]) == ids_of(batches)


def test_a_dataset_that_was_opened_with_a_cache_is_pickled_with_it(tmp_path, splits):
    opened = shardkit.open(splits.dataset.url, cache_dir=tmp_path / "cache")
    assert ForkingPickler.loads(ForkingPickler.dumps(opened))["train"][7]["id"] == 7


@given(
    st.lists(st.integers(2**40, 2**63 - 1), min_size=1, max_size=64, unique=True).map(sorted), st.integers(0, 2**63 - 1)
)
def test_a_state_stays_under_a_kilobyte_whatever_the_boundaries_are(splits, boundaries, number):
    buckets = LengthBuckets(feature="tokens", tokens_per_batch=2**63 - 1, boundaries=tuple(boundaries), too_long="drop")
    reader = splits["train"].batches(buckets=buckets, seed=number, remainder="pad")
    state = json.dumps(reader.state())
    assert len(state) < 1024
    reader.restore(json.loads(state))


def test_many_boundaries_are_compared_when_a_state_is_restored(splits):
    def reader(boundaries):
        buckets = LengthBuckets(feature="tokens", tokens_per_batch=2**63 - 1, boundaries=boundaries)
        return splits["train"].batches(buckets=buckets, remainder="pad")

    state = json.loads(json.dumps(reader(LONG).state()))
    reader(LONG).restore(state)
    for other in ((*LONG[:30], LONG[30] + 1, *LONG[31:]), LONG[1:], LONG[:3]):
        with pytest.raises(UsageError, match=r"buckets\.boundaries was '64 from"):
            reader(other).restore(state)


def test_a_state_that_lists_many_boundaries_is_still_one(splits):
    buckets = LengthBuckets(feature="tokens", tokens_per_batch=2**63 - 1, boundaries=LONG)
    reader = splits["train"].batches(buckets=buckets)
    state = reader.state()
    state["order"]["buckets"] |= {"boundaries": list(LONG)}
    del state["order"]["buckets"]["boundaries_digest"]
    reader.restore(state)
    with pytest.raises(UsageError, match=r"buckets\.boundaries was"):
        reader.restore(
            {**state, "order": {**state["order"], "buckets": {**state["order"]["buckets"], "boundaries": [1]}}}
        )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"global_batch_size": 10**15}, "global_batch_size is 1,000,000,000,000,000 and can be 67,108,864 at most"),
        ({"num_lanes": 10**12}, "num_lanes is 1,000,000,000,000 and can be 1,048,576 at most"),
        ({"num_workers": 10**12}, "num_workers is 1,000,000,000,000 and can be 1,048,576 at most"),
        ({"num_turns": 10**12}, "num_turns is 1,000,000,000,000 and can be 1,048,576 at most"),
        ({"shuffle": 0}, "shuffle is 0"),
        ({"shuffle": "no"}, "shuffle is 'no'"),
        ({"shuffle": None}, "shuffle is None"),
    ],
)
def test_absurd_settings_are_refused_with_what_can_be(splits, settings, words):
    for source in (splits["train"], shardkit.mix({splits["train"]: 1})):
        with pytest.raises(UsageError, match=words) as caught:
            source.batches(**{"global_batch_size": 20, **settings})
        assert caught.value.next_step


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"tokens_per_batch": 10**15},
            "tokens_per_batch 1,000,000,000,000,000 gives 1,000,000,000,000,000 of length 1",
        ),
        ({"num_groups": 10**12}, "num_groups is 1,000,000,000,000 and can be 1,048,576 at most"),
    ],
)
def test_absurd_buckets_are_refused_with_what_can_be(splits, settings, words):
    buckets = LengthBuckets(**{"feature": "tokens", "tokens_per_batch": 200, "boundaries": (1, 40), **settings})
    with pytest.raises(UsageError, match=words) as caught:
        splits["train"].batches(buckets=buckets, remainder="pad")
    assert caught.value.next_step


def test_bools_of_numpy_are_bools(splits):
    settings = {"global_batch_size": 20}
    assert ids_of(splits["train"].batches(**settings, shuffle=np.bool_(False)))[0] == list(range(20))
    assert OrderOptions(**settings, shuffle=np.bool_(True)) == OrderOptions(**settings)
