"""Datasets that the tests of verification damage, and what it says of them."""

from pathlib import Path

import pyarrow as pa

from shardkit.dataset.open import open_dataset
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from shardkit.verify.shards import verify_dataset

FEATURES = (
    make_feature("age", "int64", nullable=True),
    make_feature("city", "string"),
    make_feature("scores", "float32", (None,)),
    make_feature("weight", "float64"),
)


def rows(num_rows, first=0):
    numbers = range(first, first + num_rows)
    columns = [
        [None if i % 5 == 0 else i * 1000 - 7 for i in numbers],
        [f"city {i % 7} " * (1 + i % 3) for i in numbers],
        [[i / 3] * (i % 4) for i in numbers],
        [i * 0.1 for i in numbers],
    ]
    arrays = [pa.array(c, f.arrow_type) for c, f in zip(columns, FEATURES, strict=True)]
    return pa.record_batch(arrays, schema=arrow_schema(FEATURES))


def two_splits(folder, compression):
    """Returns a dataset of 24 and 9 rows, each in two shards."""
    splits = {"train": rows(24), "test": rows(9, first=100)}
    return write_dataset(folder, FEATURES, splits, compression=compression)


def shard_file(dataset, split="train", index=0):
    shard = dataset.split_shards(split)[index]
    return Path(dataset.shard_url(shard)), shard


def damages_of(dataset, **options):
    return verify_dataset(open_dataset(dataset.url), **options).damages
