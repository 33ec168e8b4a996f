"""What `shardkit bench` chooses, and what it computes from a rate."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.bench.planning import (
    NUM_ACCELERATORS,
    choose_batch_size,
    choose_split,
    compute_feeding,
    share_busy,
)
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


@given(st.floats(1, 1e9), st.integers(1, 10**5), st.floats(1e-3, 10), st.integers(1, 64), st.integers(1, 64))
def test_more_accelerators_are_never_busier(rate, batch_size, step_time_s, few, more):
    few, more = sorted((few, more))
    assert 0 < share_busy(rate, batch_size, step_time_s, more) <= share_busy(rate, batch_size, step_time_s, few) <= 1


def test_what_a_rate_means_for_accelerators():
    feeding = compute_feeding(examples_per_s=4000, batch_size=400, step_time_s=0.2)
    assert feeding.needed_per_s == pytest.approx(2000)
    assert NUM_ACCELERATORS == (1, 2, 4, 8)
    assert feeding.shares_busy == pytest.approx((1, 1, 0.5, 0.25))
    # Two take all of it; 2.22 of them would be busy nine tenths of the time.
    assert feeding.num_fed == 2


@given(st.floats(1, 1e7), st.integers(1, 10**4), st.floats(1e-3, 1))
def test_as_many_as_are_fed_are_busy_nine_tenths_and_one_more_is_not(rate, batch_size, step_time_s):
    num_fed = compute_feeding(rate, batch_size, step_time_s).num_fed
    if num_fed:
        assert share_busy(rate, batch_size, step_time_s, num_fed) >= 0.9 - 1e-9
    assert share_busy(rate, batch_size, step_time_s, num_fed + 1) <= 0.9 + 1e-9
