"""Damage under `engine="tfdata"`: nothing is waited for, no epoch is shorter, and the message names the shard."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf

from shardkit.adapters.tensorflow import dataset, naming_damage
from shardkit.adapters.tfdata import find_damage, unreachable
from shardkit.dataset.open import Dataset
from shardkit.errors import DamageError, StorageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset
from train.input.reading_errors import explained

FEATURES = (make_feature("id", "int64"),)

pytestmark = [pytest.mark.timeout(120), pytest.mark.full]


@pytest.fixture
def train(tmp_path):
    batch = pa.record_batch([pa.array(range(400))], arrow_schema(FEATURES))
    return Splits(write_dataset(tmp_path / "set", FEATURES, {"train": batch}, num_shards=4, block_examples=20))["train"]


@pytest.fixture
def shard(train):
    return Path(train.dataset.shard_url(train.dataset.shards[2]))


def tfdata_batches(train):
    return dataset(train, global_batch_size=20, engine="tfdata")


def put_pipe(shard):
    shard.unlink()
    os.mkfifo(shard)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (put_pipe, "not a regular file"),
        (Path.unlink, "it is missing"),
        (lambda shard: os.truncate(shard, 200), r"expected [\d,]+ bytes, found 200"),
    ],
)
def test_what_sizes_show_is_an_error_before_anything_is_read(train, shard, damage, why):
    damage(shard)
    with pytest.raises(DamageError, match=why) as caught:
        tfdata_batches(train)
    assert caught.value.where == str(shard)
    assert caught.value.next_step == f"Run: shardkit verify {train.dataset.url}"


def flip(shard):
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def add_a_record(shard):
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(shard), "GZIP")]
    with tf.io.TFRecordWriter(str(shard), "GZIP") as writer:
        for record in [*records, records[0]]:
            writer.write(record)


def test_a_wrong_number_of_records_names_the_shard_and_what_to_run(train, shard):
    batches = tfdata_batches(train)
    add_a_record(shard)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(batches)
    assert str(shard) in caught.value.message
    assert f"shardkit verify {train.dataset.url}" in caught.value.message


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda shard: os.truncate(shard, 200), add_a_record])
def test_what_is_met_while_reading_is_named_where_that_is_asked_for(train, shard, damage):
    batches = tfdata_batches(train)
    assert sum(len(batch["id"]) for batch in batches) == 400
    damage(shard)
    with pytest.raises(DamageError, match="a shard") as caught, naming_damage(train):
        list(batches)
    assert caught.value.where == str(shard)
    assert f"shardkit verify {train.dataset.url}" in caught.value.next_step


def test_errors_that_no_shard_is_to_blame_for_stay_as_they_are(train):
    with pytest.raises(tf.errors.InvalidArgumentError, match="mine"), naming_damage(train):
        raise tf.errors.InvalidArgumentError(None, None, "mine")


def test_training_on_the_reader_names_the_shard_and_what_to_run(train, shard):
    read = dataset(train, global_batch_size=20).map(lambda t: (tf.cast(t["id"], tf.float32), t["id"]))
    flip(shard)
    model = tf.keras.Sequential([tf.keras.layers.Reshape((1,)), tf.keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="sgd")
    with pytest.raises(tf.errors.OpError) as caught:
        model.fit(read, verbose=0)
    assert str(shard) in caught.value.message
    assert f"shardkit verify {train.dataset.url}" in caught.value.message


NO_ANSWER = (
    "Error executing an HTTP request: libcurl code 6 meaning 'Could not resolve hostname', error details: Could not "
    "resolve host: storage.googleapis.com\n\t when reading gs://bucket/set/data/f/train-00000-of-00004.tfrecord.gz"
)


def test_a_store_that_tensorflow_cannot_reach_is_no_damage(train):
    far = Dataset("gs://bucket/set", train.dataset.version, train.dataset.manifest)
    error = tf.errors.FailedPreconditionError(None, None, NO_ANSWER)
    found = find_damage(error, far, "train")
    assert found.exit_code == 5
    assert "TensorFlow cannot reach the store in gs://bucket/set: Error executing an HTTP request" in str(found)
    assert "--reader shardkit" in str(found.next_step)
    with pytest.raises(StorageError), naming_damage(Splits(far)["train"]):
        raise error
    with pytest.raises(StorageError), explained(far, "train", FEATURES):
        raise error


def test_a_shard_that_a_store_lacks_and_an_error_of_a_model_are_something_else(train):
    far = Dataset("gs://bucket/set", train.dataset.version, train.dataset.manifest)
    gone = tf.errors.NotFoundError(None, None, "Error executing an HTTP request: HTTP response code 404")
    assert unreachable(gone, far) is None
    assert unreachable(tf.errors.FailedPreconditionError(None, None, "a variable is not there"), far) is None
    assert unreachable(tf.errors.FailedPreconditionError(None, None, NO_ANSWER), train.dataset) is None
