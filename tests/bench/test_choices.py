"""What `shardkit bench` chooses."""

import pyarrow as pa
import pytest

from shardkit.bench.run import choose_batch_size, choose_split
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from shardkit.units import KiB, MiB

FEATURES = (make_feature("x", "int64"),)


def batch_of(num_rows):
    return pa.record_batch([pa.array(range(num_rows), pa.int64())], schema=arrow_schema(FEATURES))


def manifest_of(folder, **num_rows):
    return write_dataset(folder, FEATURES, {name: batch_of(n) for name, n in num_rows.items()}).manifest


def test_train_is_read_unless_another_split_is_named(tmp_path):
    manifest = manifest_of(tmp_path / "set", test=9, train=3)
    assert choose_split(manifest, None).name == "train"
    assert choose_split(manifest, "test").name == "test"


def test_without_train_the_largest_split_is_read(tmp_path):
    assert choose_split(manifest_of(tmp_path / "set", a=2, b=7, c=4), None).name == "b"


def test_a_dataset_without_splits_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing to read: the dataset holds no examples"):
        choose_split(manifest_of(tmp_path), None)


def test_an_empty_split_is_refused_and_the_others_are_named(tmp_path):
    manifest = manifest_of(tmp_path / "set", train=0, test=5)
    with pytest.raises(UsageError, match=r"split 'train'.*no examples.*one of: test"):
        choose_split(manifest, None)
    with pytest.raises(UsageError, match="'nope'"):
        choose_split(manifest, "nope")


@pytest.mark.parametrize(
    ("wanted", "num_examples", "mean_num_bytes", "expected"),
    [
        (None, 10**6, 100, 1024),
        (None, 10**6, 114_676, 256),
        (None, 10**6, 100 * MiB, 1),
        (None, 300, 100, 32),
        (None, 7, 100, 1),
        (5000, 10**6, 100 * KiB, 5000),
        (5000, 7, 100, 7),
    ],
)
def test_batch_size(wanted, num_examples, mean_num_bytes, expected):
    assert choose_batch_size(wanted, num_examples, mean_num_bytes) == expected
