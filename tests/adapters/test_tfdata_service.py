"""Workers of tf.data service share the shards of a split, and each example comes once."""

import pytest
import tensorflow as tf

import shardkit
from shardkit.adapters.tfdata import load_split
from shardkit.dataset.open import open_dataset

pytestmark = pytest.mark.full

NUM_ROWS = 500


@pytest.fixture(scope="module")
def address():
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    at = dispatcher.target.partition("://")[2]
    workers = [service.WorkerServer(service.WorkerConfig(dispatcher_address=at)) for _ in range(2)]
    yield dispatcher.target
    # The servers live as long as these names.
    del workers, dispatcher


@pytest.fixture
def dataset(tmp_path):
    shardkit.convert({"i": list(range(NUM_ROWS))}, tmp_path / "set", num_shards=7)
    return open_dataset(str(tmp_path / "set"))


def numbers(rows, address):
    shared = rows.apply(tf.data.experimental.service.distribute("distributed_epoch", address))
    return [int(i) for i in shared.unbatch().as_numpy_iterator()]


@pytest.mark.parametrize("seed", [None, 3])
def test_the_graph_of_shardkit(dataset, address, seed):
    batches = load_split(dataset, "train", batch_size=16, shuffle_seed=seed).map(lambda batch: batch["i"])
    assert sorted(numbers(batches, address)) == list(range(NUM_ROWS))


def test_the_readers_of_tensorflow(dataset, address):
    paths = [dataset.shard_url(shard) for shard in dataset.split_shards("train")]
    records = tf.data.TFRecordDataset(paths, "GZIP").batch(16)
    spec = {"i": tf.io.FixedLenFeature([], tf.int64)}
    rows = records.map(lambda batch: tf.io.parse_example(batch, spec)["i"])
    assert sorted(numbers(rows, address)) == list(range(NUM_ROWS))
