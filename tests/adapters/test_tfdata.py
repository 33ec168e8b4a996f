"""The stock graph gives back what stock TensorFlow wrote, in a seeded order, and notices what TFRecord cannot."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from shardkit.adapters import tfdata
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.errors import DamageError, UsageError
from shardkit.features import make_feature
from tests.support.training.tensorflow_writer import write_dataset

pytestmark = pytest.mark.full

ROW_ID = (make_feature("i", "int64"),)
EVERY_DTYPE = (
    make_feature("flag", "bool"),
    make_feature("small", "int8", nullable=True),
    make_feature("big", "int64"),
    make_feature("single", "float32"),
    make_feature("double", "float64", nullable=True),
    make_feature("sure_double", "float64"),
    make_feature("text", "string", nullable=True),
    make_feature("price", "decimal(9,2)"),
    make_feature("when", "timestamp[us]", nullable=True),
    make_feature("words", "string", (None,)),
    make_feature("doubles", "float64", (None,)),
    make_feature("pair", "float32", (2,)),
    make_feature("matrix", "float64", (2, 2)),
    make_feature("maybe_pair", "int32", (2,), nullable=True),
)
ROWS = [
    {
        "flag": i % 2 == 0, "small": None if i % 3 == 0 else i - 3, "big": 2**60 + i, "single": i / 4,
        "double": None if i % 4 == 1 else math.pi * i, "sure_double": 0.1 * i, "text": None if i == 2 else f"t{i}é",
        "price": f"{i}.25", "when": None if i == 5 else 10**15 + i, "words": ["a"] * (i % 3),
        "doubles": [0.1 * k for k in range(i % 4)], "pair": [float(i), -1.0],
        "matrix": [1.0, 0.1, float(i), 4.0], "maybe_pair": None if i == 0 else [i, i + 1],
    }
    for i in range(7)
]  # fmt: skip


@pytest.fixture
def write(tmp_path):
    return partial(write_dataset, tmp_path / "dataset")


def numbered(write, num_rows: int, **settings) -> Dataset:
    return open_dataset(str(write(ROW_ID, {"train": [{"i": i} for i in range(num_rows)]}, **settings)))


def order(dataset: Dataset, seed: int | None, epoch: int = 0) -> list[int]:
    batches = tfdata.load_split(dataset, "train", batch_size=7, shuffle_seed=seed, epoch=epoch)
    return [int(i) for batch in batches for i in batch["i"].numpy()]


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_values_come_back_with_their_dtype_and_nulls(write, compression: str) -> None:
    dataset = open_dataset(str(write(EVERY_DTYPE, {"train": ROWS}, num_shards=1, compression=compression)))
    batches = list(tfdata.load_split(dataset, "train", batch_size=100, with_presence=True))
    assert len(batches) == 1
    values, present = batches[0]
    assert set(present) == {f.name for f in EVERY_DTYPE if f.nullable}
    for feature in EVERY_DTYPE:
        column = values[feature.name]
        for i, row in enumerate(ROWS):
            expected = row[feature.name]
            if feature.nullable:
                assert bool(present[feature.name][i]) == (expected is not None)
            if expected is None:
                continue
            found = column[i].numpy()
            if feature.num_values is None or feature.shape:
                found = found.reshape(-1).tolist()
                expected = [v.encode() if isinstance(v, str) else v for v in expected]
            elif isinstance(expected, str):
                found, expected = found.decode(), expected
            assert found == expected, feature.name
    assert values["small"].dtype == tf.int8
    assert values["flag"].dtype == tf.bool
    assert values["double"].dtype == tf.float64
    assert values["matrix"].shape == [7, 2, 2]
    assert np.isnan(values["double"].numpy()[1])
    assert values["small"].numpy()[0] == 0


def test_every_order_holds_each_example_once(write) -> None:
    dataset = numbered(write, 1000, num_shards=5)
    stored = order(dataset, None)
    assert stored == [i for shard in range(5) for i in range(shard, 1000, 5)]
    shuffled = [order(dataset, 3), order(dataset, 3, epoch=1), order(dataset, 4)]
    assert all(sorted(o) == list(range(1000)) for o in shuffled)
    assert len({tuple(o) for o in shuffled}) == 3
    assert order(dataset, 3) == shuffled[0]


def test_windows_smaller_than_a_shard_keep_every_record(write, monkeypatch) -> None:
    monkeypatch.setattr(tfdata, "MAX_WINDOW_EXAMPLES", 64)
    monkeypatch.setattr(tfdata, "MAX_CHUNK_EXAMPLES", 10)
    dataset = numbered(write, 500, num_shards=3)
    assert Counter(order(dataset, 1)) == Counter(range(500))
    assert order(dataset, 1) != order(dataset, 1, epoch=1)


def test_an_empty_shard_is_no_obstacle(write) -> None:
    assert sorted(order(numbered(write, 2, num_shards=4), 0)) == [0, 1]


def rewrite(path: Path, keep: int, add: int = 0) -> None:
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(path), "GZIP")]
    with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
        for record in [*records[:keep], *records[:add]]:
            writer.write(record)


def read_damaged(dataset: Dataset) -> DamageError:
    with pytest.raises(tf.errors.OpError) as raised:
        order(dataset, 0)
    return tfdata.find_damage(raised.value, dataset, "train")


@pytest.mark.parametrize(("keep", "add", "found"), [(299, 0, "found 299"), (300, 5, "expected 300")])
def test_a_shard_cut_between_two_records_is_noticed(write, keep: int, add: int, found: str) -> None:
    dataset = numbered(write, 900)
    bad = Path(dataset.shard_url(dataset.split_shards("train")[1]))
    rewrite(bad, keep, add)
    error = read_damaged(dataset)
    assert error.where == str(bad)
    assert found in str(error)
    assert "shardkit verify" in str(error)


def test_a_flipped_byte_names_the_shard(write) -> None:
    dataset = numbered(write, 900, compression="none")
    bad = Path(dataset.shard_url(dataset.split_shards("train")[2]))
    raw = bytearray(bad.read_bytes())
    raw[len(raw) // 2] ^= 1
    bad.write_bytes(raw)
    error = read_damaged(dataset)
    assert error.where == str(bad)


def test_a_missing_or_torn_shard_is_named(write) -> None:
    dataset = numbered(write, 900)
    first, second = (Path(dataset.shard_url(s)) for s in dataset.split_shards("train")[:2])
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    assert read_damaged(dataset).where == str(first)
    first.write_bytes(whole)
    second.unlink()
    assert read_damaged(dataset).where == str(second)


def test_a_torn_gzip_at_a_record_boundary_is_named(write) -> None:
    dataset = numbered(write, 900)
    path = Path(dataset.shard_url(dataset.split_shards("train")[0]))
    raw = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(raw[: len(raw) // 2 // (len(raw) // 300) * (len(raw) // 300)]))
    assert read_damaged(dataset).where == str(path)


def test_a_store_that_tensorflow_cannot_open_is_refused(write) -> None:
    dataset = numbered(write, 3)
    remote = Dataset("s3://bucket/dataset", 1, dataset.manifest)
    with pytest.raises(UsageError, match="s3://"):
        tfdata.shard_files(remote, "train")
