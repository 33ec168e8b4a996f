"""Numbers that are stored as bytes come back by every reader of TensorFlow, with their nulls."""

import math

import pyarrow as pa
import pytest
import tensorflow as tf

from shardkit.adapters import tfdata_bench
from shardkit.adapters.tensorflow import dataset
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset

pytestmark = pytest.mark.full

COLUMNS = {
    make_feature("pixels", "uint8", (2, 2)): [[0, 1, 254, 255], [255, 0, 0, 0]],
    make_feature("shown", "uint8", (2,), nullable=True): [[7, 255], None],
    make_feature("steps", "int8", (None,), nullable=True): [[-128, 127, -1], None],
    make_feature("double", "float64", nullable=True): [0.1, None],
    make_feature("doubles", "float64", (None,)): [[0.1, -0.0], []],
}
EXPECTED = {
    "pixels": [[[0, 1], [254, 255]], [[255, 0], [0, 0]]],
    "shown": [[7, 255], [0, 0]],
    "steps": [[-128, 127, -1], []],
    "double": [0.1, math.nan],
    "doubles": [[0.1, -0.0], []],
}


@pytest.fixture
def split(tmp_path):
    arrays = [pa.array(values, feature.arrow_type) for feature, values in COLUMNS.items()]
    batch = pa.record_batch(arrays, arrow_schema(tuple(COLUMNS)))
    return Splits(write_dataset(tmp_path / "set", tuple(COLUMNS), {"train": batch}, num_shards=1))["train"]


def as_lists(value):
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


def assert_read(columns):
    assert repr({name: as_lists(columns[name]) for name in EXPECTED}) == repr(EXPECTED)
    for feature in COLUMNS:
        assert columns[feature.name].dtype == tf.as_dtype(feature.dtype)


@pytest.mark.parametrize("engine", ["reader", "tfdata"])
def test_by_both_engines_of_the_adapter(split, engine):
    (batch,) = dataset(split, global_batch_size=2, engine=engine, shuffle=False)
    assert_read(batch)


def test_by_the_loop_that_bench_compares_with(split):
    (shard,) = split.dataset.shards
    records = list(tf.data.TFRecordDataset(split.dataset.shard_url(shard), "GZIP"))
    assert_read(tfdata_bench.parser(tuple(COLUMNS))(tf.stack(records)))
