"""Splits as streams, tables and data frames, and one example after another."""

from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

import shardkit
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

FEATURES = (
    make_feature("i", "int64"),
    make_feature("s", "string", nullable=True),
    make_feature("v", "float32", (3,)),
    make_feature("l", "int64", (None,)),
    make_feature("a", "float64", (2, 3), nullable=True),
    make_feature("m", "json", nullable=True),
    make_feature("t", "timestamp[us]"),
)
NUM_ROWS = 2_500


def row(i):
    json = None if i % 5 == 0 else b'{"i":%d}' % i
    return {
        "i": i, "s": None if i % 3 == 0 else f"é {i}", "v": [i, i + 0.5, -i], "l": list(range(i % 4)),
        "a": None if i % 4 == 0 else [i / 8] * 6, "m": json, "t": i * 1_000_000,
    }  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return pa.Table.from_pylist([row(i) for i in range(NUM_ROWS)], arrow_schema(FEATURES))


@pytest.fixture(scope="module")
def split(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrow")
    batch = table.combine_chunks().to_batches()[0]
    write_dataset(folder, FEATURES, {"train": batch, "none": batch.slice(0, 0)}, block_examples=190)
    return shardkit.open(folder)["train"]


def test_a_table_has_all_rows_in_their_order(split, table):
    found = split.to_arrow()
    assert found.drop_columns("a").equals(table.drop_columns("a"))
    assert found["a"].to_pylist() == [None if i % 4 == 0 else [[i / 8] * 3] * 2 for i in range(NUM_ROWS)]
    assert split.to_arrow(["l", "i"]).equals(table.select(["l", "i"]))
    with pytest.raises(UsageError, match="no feature 'x'"):
        split.to_arrow(["x"])
    empty = shardkit.open(split.dataset.url)["none"].to_arrow()
    assert (empty.num_rows, empty.schema) == (0, found.schema)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("string", ["é", ""]), ("bytes", [b"\0", b""]), ("decimal(4,2)", [Decimal("1.50"), Decimal("-2.25")])],
)
def test_lists_of_one_value_of_bytes_are_read(tmp_path, dtype, values):
    features = (make_feature("x", dtype, (1,), nullable=True),)
    rows = [[values[0]], None, [values[1]]]
    batch = pa.record_batch([pa.array(rows, features[0].arrow_type)], schema=arrow_schema(features))
    write_dataset(tmp_path, features, {"train": batch})
    train = shardkit.open(tmp_path)["train"]
    assert train.to_arrow()["x"].to_pylist() == rows
    assert [None if e["x"] is None else e["x"].tolist() for e in train] == rows
    found = next(iter(train.batches(global_batch_size=3, shuffle=False)))
    assert found["x"].shape == (3, 1)
    assert found.present["x"].tolist() == [True, False, True]


# Polars looks for torch.
@pytest.mark.full
def test_libraries_take_a_split_as_it_is(split, table):
    counted = duckdb.sql("select count(*), sum(i), count(s) from split").fetchall()
    assert counted == [(NUM_ROWS, NUM_ROWS * (NUM_ROWS - 1) // 2, NUM_ROWS - len(range(0, NUM_ROWS, 3)))]
    assert duckdb.from_arrow(split.scan(["i"])).max("i").fetchall() == [(NUM_ROWS - 1,)]
    assert polars.DataFrame(split)["i"].to_list() == split.to_polars(["i"])["i"].to_list() == list(range(NUM_ROWS))
    names = [name for name in table.column_names if name != "a"]
    pd.testing.assert_frame_equal(split.to_pandas(names), table.select(names).to_pandas())
    assert pa.table(split).equals(split.to_arrow())


def test_examples_come_one_after_another_as_their_positions_give_them(split):
    for position, example in enumerate(split):
        if position % 97 == 0 or position == NUM_ROWS - 1:
            np.testing.assert_equal(example, split[position])
    assert position == NUM_ROWS - 1
    assert list(shardkit.open(split.dataset.url)["none"]) == []


@pytest.mark.full
def test_a_split_becomes_a_dataset_with_the_same_rows(split, table, tmp_path):
    again = shardkit.convert(split, tmp_path / "again", shuffle=False)["train"]
    names = ["i", "s", "l", "t"]
    assert again.to_arrow(names).equals(table.select(names))
    assert next(f for f in again.features if f.name == "a").shape == (2, 3)
    assert again.to_arrow(["a"]).equals(split.to_arrow(["a"]))
