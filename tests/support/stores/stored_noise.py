"""A dataset of noise in many small blocks, for what reads it from a server."""

from pathlib import Path

import numpy as np
import pyarrow as pa

import shardkit
from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.open import open_dataset
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

FEATURES = (make_feature("id", "int64"), make_feature("noise", "bytes"))
NUM_ROWS = 1200


def write_noise(path: Path, compression: str) -> Path:
    """600 KB in 3 shards of 40 blocks."""
    noise = np.random.default_rng(0).bytes(500 * NUM_ROWS)
    arrays = [pa.array(range(NUM_ROWS)), pa.array([noise[i * 500 :][:500] for i in range(NUM_ROWS)])]
    batch = pa.record_batch(arrays, arrow_schema(FEATURES))
    write_dataset(path, FEATURES, {"train": batch}, num_shards=3, block_examples=10, compression=compression)
    return path


def rows_of(url, *, global_batch_size=60, cache_dir=None, cache_bytes="1MB", **options):
    train = shardkit.open(str(url), cache_dir=cache_dir, cache_bytes=cache_bytes)["train"]
    reader = train.batches(global_batch_size=global_batch_size, **options)
    return [(batch["id"].tolist(), batch["noise"].tolist()) for batch in reader]


def all_blocks(url):
    return [ref for shard in open_dataset(str(url)).shards for ref in list_blocks(shard)]
