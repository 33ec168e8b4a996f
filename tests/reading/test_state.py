"""The state of a reader: it goes on where another stood, and refuses what is the state of something else."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset


def write_ids(folder, num_rows):
    features = (make_feature("id", "int64"),)
    batch = pa.record_batch([pa.array(range(num_rows))], arrow_schema(features))
    return Splits(write_dataset(folder, features, {"train": batch}, num_shards=7, block_examples=6))


@pytest.fixture
def ids(tmp_path):
    """Splits of many small blocks that hold nothing but an id."""
    return write_ids(tmp_path / "ids", 1000)


def read_ids(reader):
    return [batch["id"].tolist() for batch in reader]


def test_a_run_goes_on_with_other_numbers_of_workers(ids):
    """2 workers, then 4, then 1, with a new process each time: nothing is lost, repeated or in another place."""
    settings_ = {"global_batch_size": 24, "seed": 5, "num_epochs": 2}
    whole = read_ids(ids["train"].batches(**settings_))
    found, state = [], None
    for num_workers, num_steps in ((2, 11), (4, 50), (1, 10**6)):
        readers = [
            ids["train"].batches(**settings_, worker_index=i, num_workers=num_workers) for i in range(num_workers)
        ]
        for reader in readers:
            if state is not None:
                reader.restore(json.loads(state))
        steps = zip(*readers, strict=True)
        for _ in range(num_steps):
            batches = next(steps, None)
            if batches is None:
                break
            found.append([number for batch in batches for number in batch["id"].tolist()])
        states = {json.dumps(reader.state()) for reader in readers}
        assert len(states) == 1
        state = states.pop()
        assert len(state) < 1000
    assert found == whole
    num_steps = 1000 // 24
    for epoch in (found[:num_steps], found[num_steps:]):
        assert len({number for batch in epoch for number in batch}) == 24 * num_steps
    assert found[:num_steps] != found[num_steps:]


def test_a_reader_goes_on_where_its_last_iterator_stood(ids):
    reader = ids["train"].batches(global_batch_size=100, num_epochs=2)
    whole = read_ids(ids["train"].batches(global_batch_size=100, num_epochs=2))
    first = [batch["id"].tolist() for _, batch in zip(range(3), reader, strict=False)]
    assert first + read_ids(reader) == whole
    assert list(reader) == []


def test_a_resumed_reader_reads_what_it_needs_and_no_more(ids):
    """All shards but those of the next batches are gone, and nobody notices."""
    settings_ = {"global_batch_size": 40, "shuffle": False, "num_ahead": 0, "num_threads": 0}
    state = {**ids["train"].batches(**settings_).state(), "step": 24}
    for shard in ids.dataset.shards[:-1]:
        Path(ids.dataset.shard_url(shard)).unlink()
    reader = shardkit.open(ids.dataset.url)["train"].batches(**settings_)
    reader.restore(state)
    assert read_ids(reader) == [list(range(960, 1000))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"global_batch_size": 20}, "global_batch_size was 40 and is 20"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"num_lanes": 8}, "num_lanes was 48 and is 8"),
        ({"shuffle": False}, "shuffle was True and is False"),
    ],
)
def test_a_state_of_another_order_is_refused(ids, change, words):
    state = ids["train"].batches(global_batch_size=40).state()
    reader = ids["train"].batches(**{"global_batch_size": 40, **change})
    with pytest.raises(UsageError, match=words):
        reader.restore(state)


def test_a_state_of_other_data_and_what_is_no_state_are_refused(ids, tmp_path):
    train = write_ids(tmp_path / "others", 203)["train"]
    reader = ids["train"].batches(global_batch_size=40)
    with pytest.raises(UsageError, match="dataset was"):
        reader.restore(train.batches(global_batch_size=40).state())
    state = reader.state()
    for name, number in [("num_threads", None), ("num_ahead", 1.5), ("num_epochs", -1), ("turn", "0")]:
        with pytest.raises(UsageError, match=f"{name} is {number!r}"):
            train.batches(global_batch_size=20, **{name: number})
    for wrong in ({}, {"reader": 1}, {**state, "reader": 1}, {**state, "step": "x"}, {**state, "more": 1}):
        with pytest.raises(UsageError, match="no state of a reader"):
            reader.restore(wrong)
    with pytest.raises(UsageError, match="no such step"):
        reader.restore({**reader.state(), "step": 26})


def test_numpy_numbers_in_the_order_are_numbers_in_the_state(ids):
    reader = ids["train"].batches(global_batch_size=np.int64(10), seed=np.int32(3), shuffle=np.True_)
    state = json.loads(json.dumps(reader.state()))
    ids["train"].batches(global_batch_size=10, seed=3).restore(state)


@pytest.mark.parametrize(
    "settings", [{"seed": 1.5}, {"seed": None}, {"epoch": -1}, {"remainder": "keep"}, {"global_batch_size": "8"}]
)
def test_an_order_that_cannot_be_is_refused_at_once(ids, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        ids["train"].batches(**{"global_batch_size": 8, **settings})


def test_a_state_before_the_first_epoch_is_refused(ids):
    reader = ids["train"].batches(global_batch_size=10)
    with pytest.raises(UsageError, match="epoch is -1"):
        reader.restore({**reader.state(), "epoch": -1})


def test_a_state_of_an_epoch_that_is_not_read_is_refused(ids):
    """It would silently give no batches, or epochs that nobody asked for."""

    def reader(epoch, num_epochs):
        return ids["train"].batches(global_batch_size=100, epoch=epoch, num_epochs=num_epochs)

    state = reader(3, 1).state()
    for epoch, num_epochs, words in [
        (0, 1, "reads epoch 0"),
        (0, 3, "reads epochs 0 to 2"),
        (4, 2, "reads epochs 4 to 5"),
        (4, 0, "reads no epoch"),
    ]:
        with pytest.raises(UsageError, match=f"does not read epoch 3.*{words}") as caught:
            reader(epoch, num_epochs).restore({**state, "step": 7})
        assert "epoch=3" in str(caught.value)
    whole = read_ids(reader(0, 5))
    for epoch, num_epochs in [(3, 1), (0, 4), (3, 2), (1, 4)]:
        other = reader(epoch, num_epochs)
        other.restore({**state, "step": 7})
        assert read_ids(other) == whole[37 : 10 * (epoch + num_epochs)]


@pytest.mark.parametrize("num_epochs", [0, 1, 3])
def test_a_reader_of_the_epochs_that_are_left_takes_the_state_of_a_finished_run(ids, num_epochs):
    finished = ids["train"].batches(global_batch_size=100, epoch=2 - num_epochs % 2, num_epochs=num_epochs)
    read_ids(finished)
    state = finished.state()
    for reader in (finished, ids["train"].batches(global_batch_size=100, epoch=state["epoch"], num_epochs=0)):
        reader.restore(state)
        assert read_ids(reader) == []
        assert reader.state() == state


def test_an_epoch_of_buckets_or_of_a_mixture_that_is_not_read_is_refused(ids):
    buckets = shardkit.LengthBuckets(feature="id", boundaries=(500, 1000), tokens_per_batch=20_000)
    for source, settings in (
        (ids["train"], {"buckets": buckets}),
        (shardkit.mix({ids["train"]: 1}), {"global_batch_size": 10, "num_steps": 5}),
    ):
        state = {**source.batches(**settings, epoch=2).state(), "step": 1}
        with pytest.raises(UsageError, match="does not read epoch 2"):
            source.batches(**settings, num_epochs=2).restore(state)
        reader = source.batches(**settings, epoch=1, num_epochs=2)
        reader.restore(state)
        assert len(read_ids(reader)) == reader.num_steps - 1


@pytest.mark.parametrize("number", [1.0, 0.5, None, "1"])
@pytest.mark.parametrize("name", ["num_workers", "worker_index", "num_turns", "num_lanes", "global_batch_size"])
def test_what_is_no_whole_number_is_refused(ids, name, number):
    if (name, number) == ("num_lanes", None):
        return
    sources = [(ids["train"], {}), (shardkit.mix({ids["train"]: 1}), {"num_steps": 4})]
    for source, settings in sources:
        with pytest.raises(UsageError, match=f"{name}"):
            source.batches(**{"global_batch_size": 8, **settings, name: number})
