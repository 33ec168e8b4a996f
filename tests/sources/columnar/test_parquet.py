"""Parquet: what is read is what pyarrow and pandas read; damage and differences are named before or while reading."""

from __future__ import annotations

import json
import math
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.errors import DamagedFileError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.columnar.parquet import ParquetSource
from tests.support.files.parquet_makers import read, read_parts, write

TYPES = {
    "bool": pa.array([True, None, False]),
    "i8": pa.array([1, None, -3], pa.int8()),
    "u64": pa.array([1, None, 2**64 - 1], pa.uint64()),
    "f16": pa.array(np.array([1, 2, 3], np.float16)),
    "f32": pa.array([1.5, None, 3.0], pa.float32()),
    "f64": pa.array([0.1, 1e300, None]),
    "s": pa.array(["x", None, "é"]),
    "ls": pa.array(["x", None, "é"], pa.large_string()),
    "b": pa.array([b"\xff", None, b""]),
    "fb": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "dict": pa.array(["x", None, "x"]).dictionary_encode(),
    "day": pa.array([1, None, 3], pa.date32()),
    "ts": pa.array([1, None, 3], pa.timestamp("us")),
    "tz": pa.array([1, None, 3], pa.timestamp("ns", "Europe/Paris")),
    "time": pa.array([1, None, 3], pa.time64("us")),
    "span": pa.array([1, None, 3], pa.duration("ms")),
    "dec": pa.array([None, "1.50", "-2.25"]).cast(pa.decimal128(5, 2)),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
    "fixed": pa.array([[1.0, 2.0], [0.0, 9.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "names": pa.array([["a"], ["b", "c"], None], pa.list_(pa.string())),
    "nulls": pa.nulls(3),
}


def test_every_type_that_an_example_holds(tmp_path):
    table = pa.table(TYPES)
    features, found = read(write(tmp_path, table))
    wanted = pq.read_table(tmp_path / "a.parquet")
    for feature in features:
        assert found.column(feature.name).to_pylist() == wanted.column(feature.name).to_pylist(), feature
    described = {f.name: f.describe_type() for f in features}
    assert described["fixed"] == "float32[2]"
    assert described["list"] == "int32[*]"
    assert described["f64"] == "float64"
    assert described["dict"] == described["ls"] == "string"
    assert described["tz"] == "timestamp[ns] Europe/Paris"


def test_nulls_among_fixed_lists_are_nulls(tmp_path):
    # Arrow writes such columns and cannot read them.
    num_rows = 300
    is_null = pa.array([i % 3 == 1 and i > 70 for i in range(num_rows)])
    flat = pa.array(np.arange(num_rows * 4, dtype=np.float32))
    plain = pa.FixedSizeListArray.from_arrays(flat, 4, mask=is_null)
    pairs = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 2), 2, mask=is_null)
    table = {
        "when": pa.array(range(num_rows), pa.timestamp("ms", "Europe/Paris")),
        "plain": plain,
        "pairs": pairs,
        "tensor": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (2, 2)), plain),
    }
    path = write(tmp_path, table, row_group_size=100)
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(path)
    expected = plain.to_pylist()
    for source in (ParquetSource(), ParquetSource(split_bytes=1, batch_bytes=500)):
        features, found = read(path, source=source)
        assert [f.describe_type() for f in features][1:] == ["float32[4]", "float32[2][2]", "float32[2][2]"]
        assert found["when"].to_pylist() == table["when"].to_pylist()
        for name in ("plain", "pairs", "tensor"):
            assert found[name].to_pylist() == expected, name
    _, without = read(path, drop_columns=("when", "pairs"))
    assert without["plain"].to_pylist() == expected


def test_tensors_of_numpy_arrays_keep_their_shape(tmp_path):
    values = np.arange(24, dtype=np.int32).reshape(4, 2, 3)
    features, found = read(write(tmp_path, {"t": pa.FixedShapeTensorArray.from_numpy_ndarray(values)}))
    assert features[0].describe_type() == "int32[2][3]"
    assert found["t"].to_pylist() == values.reshape(4, 6).tolist()


def test_null_fixed_lists_of_a_column_with_a_dot_are_nulls_and_those_within_structs_are_named(tmp_path):
    lists = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    _, found = read(write(tmp_path, {"e.x": lists, "e": [1, 2, 3]}))
    assert found["e.x"].to_pylist() == lists.to_pylist()
    path = write(tmp_path, {"s": pa.StructArray.from_arrays([lists], ["e"])})
    with pytest.raises(DamagedFileError, match="lists of fixed size within structs or lists hold nulls"):
        read(path)


def test_structs_are_flattened_with_their_nulls(tmp_path):
    rows = [{"a": {"b": 1, "c": {"d": "x"}}}, {"a": None}, {"a": {"b": 2, "c": None}}]
    features, found = read(write(tmp_path, pa.Table.from_pylist(rows)))
    assert [f.name for f in features] == ["a/b", "a/c/d"]
    assert found.to_pylist() == [{"a/b": 1, "a/c/d": "x"}, {"a/b": None, "a/c/d": None}, {"a/b": 2, "a/c/d": None}]


MAP = pa.map_(pa.string(), pa.list_(pa.int8()))
ODD = {"d": pa.decimal128(5, 2), "t": pa.date32(), "b": pa.binary(), "f": pa.float32(), "e": pa.bool_()}
ODDS = pa.list_(pa.struct(ODD))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([[[1], []], None, []]), [[[1], []], None, []]),
        (pa.array([[("k", [1]), ("l", None)], None, []], MAP), [{"k": [1], "l": None}, None, {}]),
        (pa.array([[("k", [1]), ("k", [2])]], MAP), [[["k", [1]], ["k", [2]]]]),
        (pa.array([[(2, "x")]], pa.map_(pa.int64(), pa.string())), [[[2, "x"]]]),
        (pa.array([[{"x": 1}, None, {"x": None}], None]), [[{"x": 1}, None, {"x": None}], None]),
        (pa.array([[["a"]]]), [[["a"]]]),
        (
            pa.array(
                [[{"d": Decimal("1.50"), "t": date(2020, 2, 29), "b": b"\xff", "f": math.nan, "e": True}]],
                ODDS,
            ),
            [[{"d": "1.50", "t": "2020-02-29", "b": "/w==", "f": "NaN", "e": True}]],
        ),
        (pa.array([[[-math.inf, 0.1]]]), [[["-Infinity", 0.1]]]),
    ],
)
def test_what_is_nested_is_json(tmp_path, column, values):
    table = {"fine": range(len(column) + 2), "a": pa.concat_arrays([column, column.slice(0, 1), column.slice(0, 1)])}
    path = write(tmp_path, pa.table(table).slice(1), row_group_size=2)
    features, found = read(path)
    assert [f.describe_type() for f in features] == ["int64", "json"]
    wanted = [*values, values[0], values[0]][1:]
    assert [None if v is None else json.loads(v) for v in found["a"].to_pylist()] == wanted


def test_text_within_that_is_not_utf8_is_a_bad_row(tmp_path):
    texts = pa.array([b"ok", b"\xff\xfe", b"z"]).view(pa.string())
    objects = pa.StructArray.from_arrays([texts], ["s"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), objects)
    path = write(tmp_path, {"i": [1, 2, 3], "a": lists})
    (part,) = read_parts(path, tolerates_bad_rows=True)
    assert [json.loads(text) for text in part.batch["a"].to_pylist()] == [[{"s": "ok"}], [{"s": "z"}]]
    assert [row.position for row in part.rejected] == ["row 2"]


def test_lists_of_equal_lists_are_arrays(tmp_path):
    array = pa.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 0], [1, 2]]], pa.list_(pa.list_(pa.int16(), 2), 3))
    features, found = read(write(tmp_path, {"a": array}))
    assert (features[0].dtype, features[0].shape) == ("int16", (3, 2))
    assert found["a"].to_pylist() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 1, 2]]


def test_columns_without_nulls_are_not_nullable(tmp_path):
    table = {"full": [1, 2], "holed": [1, None], "lists": [[1], [2]]}
    features, _ = read(write(tmp_path, table))
    assert [f.nullable for f in features] == [False, True, False]
    features, _ = read(write(tmp_path, table, write_statistics=False))
    assert [f.nullable for f in features] == [True, True, True]


def test_types_of_several_files_widen(tmp_path):
    first = {
        "i": pa.array([1], pa.int32()),
        "f": pa.array([1], pa.float32()),
        "n": [1],
        "u": pa.array([1], pa.uint8()),
        "t": pa.array([1], pa.timestamp("s")),
        "d": pa.array(["x"]).dictionary_encode(),
    }
    second = {
        "t": pa.array([1], pa.timestamp("us")),
        "i": pa.array([2**40]),
        "u": pa.array([-1], pa.int16()),
        "f": pa.array([0.1]),
        "d": ["y"],
        "n": pa.array([None], pa.int64()),
    }
    features, found = read(write(tmp_path, first, "1.parquet"), write(tmp_path, second, "2.parquet"))
    described = {f.name: f.dtype for f in features}
    assert described == {
        "i": "int64",
        "f": "float64",
        "n": "int64",
        "u": "int64",
        "t": "timestamp[us]",
        "d": "string",
    }
    assert found.column("i").to_pylist() == [1, 2**40]
    assert found.column("n").to_pylist() == [1, None]
    assert found.column("t").cast(pa.int64()).to_pylist() == [1_000_000, 1]


def test_schemas_that_differ_are_refused_with_their_differences(tmp_path):
    paths = [
        write(tmp_path, {"a": [1], "b": ["x"], "c": [1]}, "1.parquet"),
        write(tmp_path, {"a": ["y"], "b": ["x"], "d": [1]}, "2.parquet"),
    ]
    with pytest.raises(UsageError) as caught:
        read(*paths)
    message = str(caught.value)
    assert "'a' is int64 in 1.parquet and string in 2.parquet" in message
    assert "'c' is only in 1.parquet" in message
    assert "'d' is only in 2.parquet" in message


@pytest.mark.full
def test_repeated_values_do_not_fill_the_memory(tmp_path):
    # 4,000 rows of 100 kB each in a file of a few kB.
    path = write(tmp_path, {"a": pa.array(["x" * 100_000, "y" * 100_000] * 2000)})
    assert path.stat().st_size < 100_000
    files = list_inputs([str(path)]).files
    source, options = ParquetSource(), SourceOptions()
    features = source.infer(files, options)
    sizes = [p.batch.nbytes for s in source.split(files, options) for p in source.read(s, files, features, options)]
    assert max(sizes) < 16 * 2**20
    assert sum(sizes) > 400_000_000


def test_declared_types_are_kept(tmp_path):
    features = (
        make_feature("i", "int32"),
        make_feature("f", "float32"),
        make_feature("k", "int64", vocabulary=("cat", "dog")),
        make_feature("v", "float32", (2, 2)),
        make_feature("s", "int64", nullable=True),
    )
    table = {"i": [1, 2], "f": [0.1, 1 / 3], "k": ["dog", "cat"], "v": [[1, 2, 3, 4]] * 2, "s": ["007", None]}
    path = write(tmp_path, table)
    _, found = read(path, features=features)
    assert found.column("k").to_pylist() == [1, 0]
    assert found.column("v").to_pylist() == [[1, 2, 3, 4]] * 2
    assert found.column("s").to_pylist() == [7, None]
    files = list_inputs([str(path)]).files
    (split,) = ParquetSource().split(files, SourceOptions())
    (part,) = ParquetSource().read(split, files, features, SourceOptions())
    assert part.num_rounded == {"f": 1}


def test_one_huge_row_group_is_read_in_small_batches(tmp_path):
    num_rows = 1_000_000
    path = write(tmp_path, {"a": np.arange(num_rows), "b": np.arange(num_rows) * 0.5}, row_group_size=num_rows)
    found = read_parts(path)
    assert max(p.batch.nbytes for p in found) <= 8 * 2**20
    assert sum(p.batch.num_rows for p in found) == num_rows
