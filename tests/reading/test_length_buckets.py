"""Batches of similar length as a reader gives them: few shapes, little padding, states, and what does not fit."""

import json
import os
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.batch import Ragged
from shardkit.reading.length_buckets import (
    LengthBuckets,
    find_buckets,
)
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset

FEATURES = (
    make_feature("id", "int64"),
    make_feature("tokens", "int32", (None,), nullable=True),
    make_feature("labels", "int32", (None,)),
    make_feature("words", "string", (None,)),
    make_feature("text", "string"),
    make_feature("length", "int16", nullable=True),
    make_feature("point", "float32", (2,)),
)
NUM_ROWS = 400
LENGTHS = np.random.default_rng(3).zipf(1.4, NUM_ROWS).clip(1, 60) - 1
BUCKETS = {"feature": "tokens", "tokens_per_batch": 240, "num_groups": 4}


def row_of(i):
    length = int(LENGTHS[i])
    return {
        "id": i,
        "tokens": None if length == 0 else [i] * length,
        "labels": [-i] * length,
        "words": [f"w{i}"] * length,
        "text": "é" * length,
        "length": None if length == 0 else length,
        "point": [i, -i],
    }


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    rows = [row_of(i) for i in range(NUM_ROWS)]
    arrays = [pa.array([row[f.name] for row in rows], f.arrow_type) for f in FEATURES]
    batch = pa.record_batch(arrays, arrow_schema(FEATURES))
    folder = tmp_path_factory.mktemp("buckets") / "set"
    return Splits(write_dataset(folder, FEATURES, {"train": batch}, num_shards=3, block_examples=9))["train"]


def ids_of(batch):
    return batch["id"].tolist() if batch.mask is None else batch["id"][batch.mask].tolist()


def seen_by(reader):
    return [(batch.pad_to, ids_of(batch)) for batch in reader]


def assert_same(batch, expected):
    assert list(batch) == list(expected)
    for name, column in batch.items():
        other = expected[name]
        if isinstance(column, Ragged):
            assert column.values.tolist() == other.values.tolist()
            assert column.row_splits.tolist() == other.row_splits.tolist()
        else:
            assert column.tolist() == other.tolist()
    assert {n: b.tolist() for n, b in batch.present.items()} == {n: b.tolist() for n, b in expected.present.items()}


@pytest.mark.parametrize(
    "asked",
    [
        {"global_batch_size": NUM_ROWS + 1},
        {"buckets": LengthBuckets(feature="tokens", tokens_per_batch=60 * NUM_ROWS * 4, boundaries=(60,))},
    ],
)
def test_a_batch_that_the_split_does_not_fill_is_refused_and_not_left_out_in_silence(train, asked):
    with pytest.raises(UsageError, match=r"no batch of split 'train' is full.* 400 examples"):
        train.batches(**asked)
    assert train.batches(**asked, remainder="pad").num_steps >= 1


@pytest.mark.parametrize("num_threads", [0, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_hold_what_lies_at_the_positions_of_their_examples(train, num_threads, shuffle):
    reader = train.batches(buckets=LengthBuckets(**BUCKETS), shuffle=shuffle, num_threads=num_threads)
    found = list(reader)
    assert len(found) == reader.num_steps
    for batch in found:
        assert_same(batch, train[ids_of(batch)])
        assert max(LENGTHS[ids_of(batch)]) <= batch.pad_to
        assert len(batch["id"]) * batch.pad_to <= 240
    seen = list(chain.from_iterable(map(ids_of, found)))
    assert len(seen) == len(set(seen)) > NUM_ROWS - max(reader.buckets.num_rows[-3:])


def test_padding_gives_every_example_once_and_the_rest_a_mask(train):
    for num_workers in (1, 2, 4):
        settings_ = {"buckets": LengthBuckets(**BUCKETS), "remainder": "pad", "num_workers": num_workers}
        readers = [train.batches(**settings_, worker_index=i) for i in range(num_workers)]
        seen = []
        for parts in zip(*readers, strict=True):
            assert len({(batch.pad_to, len(batch["id"])) for batch in parts}) == 1
            seen += chain.from_iterable(map(ids_of, parts))
        assert sorted(seen) == list(range(NUM_ROWS))


def test_a_run_goes_on_with_other_numbers_of_workers(train):
    """4 workers, then 1, then 2, over two epochs: the same global batches, in buckets that all workers agree on."""
    settings_ = {"buckets": LengthBuckets(**BUCKETS), "seed": 5, "num_epochs": 2}
    whole = seen_by(train.batches(**settings_))
    found, state = [], None
    for num_workers, num_steps in ((4, 13), (1, 30), (2, 10**6)):
        readers = [train.batches(**settings_, worker_index=i, num_workers=num_workers) for i in range(num_workers)]
        for reader in readers:
            if state is not None:
                reader.restore(json.loads(state))
        steps = zip(*readers, strict=True)
        for _ in range(num_steps):
            parts = next(steps, None)
            if parts is None:
                break
            assert len({batch.pad_to for batch in parts}) == 1
            found.append((parts[0].pad_to, list(chain.from_iterable(map(ids_of, parts)))))
        states = {json.dumps(reader.state()) for reader in readers}
        assert len(states) == 1
        state = states.pop()
        assert len(state) < 1000
    assert found == whole
    num_steps = len(whole) // 2
    assert found[:num_steps] != found[num_steps:]


@pytest.mark.full
def test_a_reader_can_go_on_at_any_step(train):
    whole = seen_by(train.batches(buckets=LengthBuckets(**BUCKETS), remainder="pad"))
    for step in range(len(whole)):
        reader = train.batches(buckets=LengthBuckets(**BUCKETS), remainder="pad", num_threads=step % 3)
        reader.restore({**reader.state(), "step": step})
        assert seen_by(reader) == whole[step:]


def test_processes_that_take_turns_share_an_epoch(train):
    settings_ = {"buckets": LengthBuckets(**BUCKETS), "remainder": "pad", "num_turns": 3}
    readers = [train.batches(**settings_, turn=turn) for turn in range(3)]
    parts = [seen_by(reader) for reader in readers]
    num_steps = readers[0].num_steps
    assert num_steps == train.batches(buckets=LengthBuckets(**BUCKETS), remainder="pad").num_steps
    assert [len(part) for part in parts] == [len(range(turn, num_steps, 3)) for turn in range(3)]
    assert sorted(chain.from_iterable(ids for part in parts for _, ids in part)) == list(range(NUM_ROWS))


def test_a_block_is_read_once_an_epoch(tmp_path):
    """The shard is emptied once each block has given a row, and nobody notices."""
    arrays = [pa.array(range(60)), pa.array([[1] * (i % 7) for i in range(60)], pa.list_(pa.int32()))]
    features = (make_feature("id", "int64"), make_feature("tokens", "int32", (None,)))
    data = pa.record_batch(arrays, arrow_schema(features))
    dataset = write_dataset(tmp_path / "set", features, {"train": data}, num_shards=1, block_examples=6)
    split = Splits(dataset)["train"]
    # Groups walk all ten blocks side by side: one row of each is in the first batches.
    buckets = LengthBuckets(feature="tokens", tokens_per_batch=8, boundaries=(1, 3, 6))
    whole = seen_by(split.batches(buckets=buckets, num_lanes=10, num_threads=0))
    reader = split.batches(buckets=buckets, num_lanes=10, num_threads=0)
    found, batches_ = [], iter(reader)
    while len({i // 6 for _, ids in found for i in ids}) < 10:
        batch = next(batches_)
        found.append((batch.pad_to, ids_of(batch)))
    assert len(found) < len(whole) - 2
    os.truncate(dataset.shard_url(dataset.shards[0]), 0)
    assert found + seen_by(batches_) == whole


def test_lists_come_as_arrays_of_one_shape_a_bucket(train):
    buckets = LengthBuckets(**BUCKETS, padded=("tokens", "labels"), boundaries=(4, 16, 59))
    shapes = set()
    for batch in train.batches(buckets=buckets):
        ids = np.array(ids_of(batch))
        expected = np.where(np.arange(batch.pad_to) < LENGTHS[ids][:, None], ids[:, None], 0)
        assert batch["tokens"].dtype == np.int32
        assert batch["tokens"].tolist() == expected.tolist()
        assert batch["labels"].tolist() == (-expected).tolist()
        assert batch["tokens/length"].tolist() == batch["labels/length"].tolist() == LENGTHS[ids].tolist()
        shapes.add(batch["tokens"].shape)
    assert shapes == {(60, 4), (12, 16), (4, 59)}
    assert buckets.boundaries is not None


@pytest.mark.parametrize(
    ("feature", "factor"), [("tokens", 1), ("labels", 1), ("words", 1), ("length", 1), ("text", 2)]
)
def test_the_length_is_that_of_the_list_the_bytes_or_the_integer(train, feature, factor):
    buckets = LengthBuckets(feature=feature, tokens_per_batch=1000, boundaries=(4, 16, 118), too_long="drop")
    found = train.batches(buckets=buckets).buckets
    numbers = find_buckets(LENGTHS * factor, (4, 16, 118))
    assert found.num_examples == tuple(np.bincount(numbers, minlength=3).tolist())
    assert found.num_tokens == LENGTHS.sum() * factor
    assert (found.num_rows, found.num_too_long) == ((250, 62, 8), 0)


def test_examples_that_are_too_long_are_refused_or_counted(train):
    num_long = int((LENGTHS > 16).sum())
    with pytest.raises(UsageError) as refused:
        train.batches(buckets=LengthBuckets(**BUCKETS, boundaries=(4, 16)))
    assert f"{num_long} of 400" in str(refused.value)
    assert f"the longest has {LENGTHS.max()}" in str(refused.value)
    buckets = LengthBuckets(**BUCKETS, boundaries=(4, 16), too_long="drop")
    reader = train.batches(buckets=buckets, remainder="pad")
    assert reader.buckets.num_too_long == num_long
    seen = list(chain.from_iterable(ids for _, ids in seen_by(reader)))
    assert sorted(seen) == np.flatnonzero(LENGTHS <= 16).tolist()


def test_batches_of_one_size_are_as_many_as_without_buckets_and_count_lengths_as_given(train):
    """4 workers, then 2: the parts of the same global batches, by lengths that are not those of the feature."""
    train = Splits(train.dataset)["train"]
    given = NUM_ROWS - np.arange(NUM_ROWS)
    train.set_lengths("tokens", given)
    buckets = LengthBuckets(feature="tokens", boundaries=(100, 150, 399, 900), num_groups=4)
    settings_ = {"buckets": buckets, "global_batch_size": 24, "seed": 3}
    readers = [
        [train.batches(**settings_, worker_index=i, num_workers=num_workers) for i in range(num_workers)]
        for num_workers in (4, 2)
    ]
    assert {reader.num_steps for reader in chain(*readers)} == {NUM_ROWS // 24}
    for fours, twos in zip(zip(*readers[0], strict=True), zip(*readers[1], strict=True), strict=True):
        ids = [list(chain.from_iterable(batch["id"].tolist() for batch in batches)) for batches in (fours, twos)]
        assert ids[0] == ids[1]
        assert len(ids[0]) == 24
        assert {batch.pad_to for batch in (*fours, *twos)} == {fours[0].pad_to}
        assert given[ids[0]].max() <= fours[0].pad_to
    state = train.batches(**settings_).state()
    train.set_lengths("tokens", given[::-1])
    with pytest.raises(UsageError, match="lengths_digest was"):
        train.batches(**settings_).restore(state)


@pytest.mark.parametrize("lengths", [[1.5] * NUM_ROWS, [1], [-1] * NUM_ROWS, [2**40] * NUM_ROWS])
def test_lengths_that_are_none_are_refused(train, lengths):
    with pytest.raises(UsageError, match="no lengths of the examples"):
        train.set_lengths("tokens", np.array(lengths))


@pytest.mark.parametrize(
    ("buckets", "more", "words"),
    [
        ({}, {"global_batch_size": 8}, "both are given"),
        (None, {}, "neither is given"),
        ({"tokens_per_batch": None}, {}, "neither is given"),
        ({"tokens_per_batch": None}, {"global_batch_size": 10}, "Use 8 or 12, or a num_groups that divides it"),
        ({"tokens_per_batch": None}, {"global_batch_size": 0}, "global_batch_size is 0"),
        ({"boundaries": (4, 4)}, {}, "ascending"),
        ({"boundaries": ()}, {}, "1 to 64"),
        ({"boundaries": tuple(range(1, 66))}, {}, "1 to 64"),
        ({"boundaries": "short"}, {}, "boundaries"),
        ({"tokens_per_batch": 0}, {}, "tokens_per_batch is 0"),
        ({"too_long": "cut"}, {}, "too_long"),
        ({"tokens_per_batch": 235, "boundaries": (59,)}, {}, "tokens_per_batch=236 or more, or num_groups=3 or less"),
        ({"tokens_per_batch": 58, "boundaries": (59,)}, {}, "tokens_per_batch=236 or more, or leave out"),
        ({}, {"num_workers": 3}, "num_groups 4 is no multiple of the 3 workers"),
        ({}, {"num_lanes": 6}, "num_lanes=4 or 8"),
        ({"feature": "nope"}, {}, "no feature 'nope'"),
        ({"feature": "point"}, {}, "has no length"),
        ({"feature": "id"}, {}, "tokens_per_batch="),
        ({"padded": ("words",)}, {}, "no list of numbers"),
        ({"padded": ("tokens",)}, {"features": ["id"]}, "no list of numbers"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(train, buckets, more, words):
    with pytest.raises(UsageError) as refused:
        train.batches(buckets=None if buckets is None else LengthBuckets(**{**BUCKETS, **buckets}), **more)
    assert words in str(refused.value)
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"boundaries": (8, 59)}, r"buckets.boundaries was \(4, 59\) and is \(8, 59\)"),
        ({"num_groups": 2}, "buckets.num_groups was 4 and is 2"),
        ({"tokens_per_batch": 480}, "buckets.tokens_per_batch was 240 and is 480"),
    ],
)
def test_a_state_of_other_buckets_is_refused_by_name(train, change, words):
    state = train.batches(buckets=LengthBuckets(**BUCKETS, boundaries=(4, 59))).state()
    reader = train.batches(buckets=LengthBuckets(**{**BUCKETS, "boundaries": (4, 59), **change}))
    with pytest.raises(UsageError, match=words):
        reader.restore(state)
    with pytest.raises(UsageError, match=r"buckets.feature was 'tokens' and is None"):
        train.batches(global_batch_size=40).restore(state)


def test_functions_on_batches_know_what_to_pad_to(train):
    reader = train.batches(buckets=LengthBuckets(**BUCKETS), features=["id", "labels"])
    reader = reader.map(lambda batch: {**batch, "labels": batch["labels"].to_dense(batch.pad_to, fill=7)})
    for batch in reader.filter(lambda batch: batch["id"] % 2 == 0):
        assert batch["labels"].shape == (len(batch["id"]), batch.pad_to)
        for i, row in zip(batch["id"].tolist(), batch["labels"].tolist(), strict=True):
            assert i % 2 == 0
            assert row == [-i] * LENGTHS[i] + [7] * (batch.pad_to - LENGTHS[i])


def test_a_list_that_does_not_fit_an_array_is_refused():
    lists = Ragged(np.arange(5), np.array([0, 2, 2, 5], np.int32))
    assert lists.to_dense(3, fill=9).tolist() == [[0, 1, 9], [9, 9, 9], [2, 3, 4]]
    with pytest.raises(UsageError, match="the longest of 3 has 3 values"):
        lists.to_dense(2)
