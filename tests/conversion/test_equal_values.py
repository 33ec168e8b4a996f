"""Rows with equal numbers are equal, however the numbers are stored: to duplicates, groups and classes alike."""

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from shardkit.cli import main
from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import open_dataset

pytestmark = pytest.mark.full

# Zeros of both signs; NaNs of several payloads and signs, as division, parsing and other libraries leave them.
ZEROS = np.array([0, 1 << 63], np.uint64).view(np.float64)
NANS = np.array([0x7FF8 << 48, (0x7FF8 << 48) + 0x123, 0xFFF8 << 48, (0x7FF8 << 48) + 1], np.uint64).view(np.float64)
VALUES = np.concatenate([ZEROS, NANS, [1.5, -1.5]])
CLASSES = [0, 0, 1, 1, 1, 1, 2, 3]
TYPES = [pa.float32(), pa.float64()]


def arrays(type_):
    numbers = VALUES if pa.types.is_float64(type_) else narrow(VALUES)
    return pa.array(numbers, type_, from_pandas=False)


def narrow(values):
    # A conversion would keep few of the payloads.
    bits = values.view(np.uint64)
    high = (bits >> np.uint64(32)).astype(np.uint32)
    narrowed = values.astype(np.float32)
    is_nan = np.isnan(values)
    narrowed[is_nan] = (0x7FC00000 | (high[is_nan] & 0x80000000) | (bits[is_nan] & 0x3FF).astype(np.uint32)).view("f4")
    return narrowed


def as_values(values):
    return values


def as_lists(values):
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


def as_vectors(values):
    return pa.FixedSizeListArray.from_arrays(pa.concat_arrays([values]).take(np.repeat(np.arange(len(values)), 2)), 2)


def convert(source, destination, *options):
    assert main(["convert", str(source), str(destination), "--workers", "1", "--no-shuffle", *options]) == 0
    return open_dataset(str(destination))


def examples(dataset, split):
    return list(first_examples(dataset, split, 10**6))


@pytest.mark.parametrize("type_", TYPES, ids=str)
@pytest.mark.parametrize("form", [as_values, as_lists, as_vectors])
def test_equal_rows_are_duplicates_whatever_their_bits(tmp_path, type_, form):
    column = pa.concat_arrays([form(arrays(type_)), pa.nulls(2, form(arrays(type_)).type)])
    # Parquet cannot hold vectors and nulls beside each other.
    feather.write_feather(pa.table({"x": column, "n": [7] * len(column)}), tmp_path / "in.arrow")
    dataset = convert(tmp_path / "in.arrow", tmp_path / "out", "--dedup")
    found = [e["x"] for e in examples(dataset, "train")]
    assert len(found) == 5
    assert dataset.manifest.accounting.num_duplicates == len(column) - 5
    first = np.ravel(found[0])[0]
    assert first == 0, "of equal rows the first stays, as it was"
    assert not np.signbit(first)
    assert found[-1] is None, "a null is no NaN"


@pytest.mark.parametrize("options", [("--group-by", "x"), ("--stratify", "x")], ids=" ".join)
def test_equal_values_are_one_group_and_one_class(tmp_path, options):
    times = 61
    table = pa.table({"x": pa.concat_arrays([arrays(pa.float64())] * times), "class": CLASSES * times})
    pq.write_table(table, tmp_path / "in.parquet")
    # With one seed alone, equal values may fall into one split by chance.
    for seed in range(6):
        splits = ("--split", "train=0.5", "--split", "test=0.5", "--seed", str(seed))
        dataset = convert(tmp_path / "in.parquet", tmp_path / f"out{seed}", *options, *splits)
        found = [[e["class"] for e in examples(dataset, split.name)] for split in dataset.manifest.splits]
        counts = np.array([np.bincount(own, minlength=4) for own in found])
        if options[0] == "--group-by":
            assert (counts.min(axis=0) == 0).all(), "a group is in two splits"
        else:
            assert (abs(counts[0] - counts[1]) <= 1).all(), "a class is not divided evenly"
