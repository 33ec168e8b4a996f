"""Folders like year=2013/month=1 give columns, for every format whose files know their columns."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.columnar.arrow_ipc import ArrowSource
from shardkit.sources.columnar.orc import OrcSource
from shardkit.sources.columnar.parquet import ParquetSource
from shardkit.sources.columns.partitions import NULL_PARTITION, partition_features, partition_values


def write(root: Path, name: str, columns: dict) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def read(root: Path, source=None):
    """Returns the features and the rows as one table."""
    source, options = source or ParquetSource(), SourceOptions()
    files = list_inputs([str(root)]).files
    features = source.infer(files, options)
    parts = [p.batch for s in source.split(files, options) for p in source.read(s, files, features, options)]
    return features, pa.Table.from_batches(parts, schema=arrow_schema(features))


def raw_file(name: str) -> RawFile:
    return RawFile(path=f"/{name}", name=name, num_bytes=1, version="")


def test_folders_give_columns_as_they_do_in_arrow(tmp_path):
    for year in (2012, 2013):
        for kind in ("a", "b c"):
            table = pa.table({"x": [year, 1], "year": [year] * 2, "kind": [kind] * 2})
            arrow_dataset.write_dataset(
                table,
                tmp_path,
                format="parquet",
                partitioning=arrow_dataset.partitioning(
                    pa.schema([("year", pa.int64()), ("kind", pa.string())]), flavor="hive"
                ),
                existing_data_behavior="overwrite_or_ignore",
            )
    features, found = read(tmp_path)
    assert [(f.name, f.dtype, f.nullable) for f in features] == [
        ("x", "int64", False),
        ("year", "int64", False),
        ("kind", "string", False),
    ]
    wanted = arrow_dataset.dataset(tmp_path, partitioning="hive").to_table()
    order = [("year", "ascending"), ("kind", "ascending"), ("x", "ascending")]
    assert found.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()


@pytest.mark.parametrize(
    ("values", "dtype", "nullable"),
    [
        (("1", "-20", "0"), "int64", False),
        (("01", "12"), "string", False),
        (("1", "x"), "string", False),
        (("9223372036854775807", "-9223372036854775808"), "int64", False),
        (("9223372036854775808",), "string", False),
        (("-0",), "string", False),
        (("\u0661",), "string", False),
        (("1", NULL_PARTITION), "int64", True),
        ((NULL_PARTITION,), "string", True),
        (("",), "string", False),
    ],
)
def test_type_of_a_partition(values, dtype, nullable):
    (feature,) = partition_features([raw_file(f"k={value}/a.parquet") for value in values])
    assert (feature.name, feature.dtype, feature.nullable) == ("k", dtype, nullable)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=4))
def test_any_name_and_value_survives_its_folder(columns):
    values = {key: value for key, value in columns.items() if value != NULL_PARTITION}
    folders = [f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in values.items()]
    assert partition_values(raw_file("/".join([*folders, "a=b.parquet"]))) == values


def test_a_null_partition_is_null(tmp_path):
    write(tmp_path, "k=1/a.parquet", {"x": [1]})
    write(tmp_path, f"k={NULL_PARTITION}/a.parquet", {"x": [2]})
    _, found = read(tmp_path)
    assert found.to_pylist() == [{"x": 1, "k": 1}, {"x": 2, "k": None}]


def test_files_with_other_folders_are_refused(tmp_path):
    write(tmp_path, "year=1/month=1/a.parquet", {"x": [1]})
    write(tmp_path, "year=1/day=2/b.parquet", {"x": [1]})
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert "'month' is only in the folders of year=1/month=1/a.parquet" in str(caught.value)
    assert "'day' is only in the folders of year=1/day=2/b.parquet" in str(caught.value)


def test_a_folder_named_twice_is_refused():
    with pytest.raises(UsageError, match="'k' twice"):
        partition_values(raw_file("k=1/k=2/a.parquet"))


def test_a_column_that_agrees_with_its_folder_is_read_once(tmp_path):
    write(tmp_path, "year=2012/a.parquet", {"x": [1], "year": pa.array([2012], pa.int16())})
    write(tmp_path, "year=2013/a.parquet", {"x": [2], "year": pa.array([2013], pa.int16())})
    features, found = read(tmp_path)
    assert [(f.name, f.dtype) for f in features] == [("x", "int64"), ("year", "int16")]
    assert found.column("year").to_pylist() == [2012, 2013]


@pytest.mark.parametrize(
    ("year", "parts"),
    [([2012, 2013], ["row 2", "expected '2012', got 2013"]), ([2012, None], ["row 2", "expected '2012', got None"])],
)
def test_a_column_that_contradicts_its_folder_is_refused(tmp_path, year, parts):
    write(tmp_path, "year=2012/a.parquet", {"x": [1, 2], "year": year})
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    for part in ["'year' says something else than the folder", "year=2012/a.parquet", *parts]:
        assert part in str(caught.value)


def test_a_folder_of_another_type_than_the_column_is_refused_before_reading(tmp_path):
    write(tmp_path, "year=soon/a.parquet", {"x": [1], "year": [2012]})
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match="the folder's value of column 'year' does not fit"):
        ParquetSource().infer(files, SourceOptions())


def test_arrow_and_orc_have_partitions_too(tmp_path):
    for value in ("a", "b"):
        for folder, writer in (("arrow", feather.write_feather), ("orc", orc.write_table)):
            path = tmp_path / folder / f"k={value}"
            path.mkdir(parents=True)
            writer(pa.table({"x": [1, 2]}), str(path / "f"))
    for folder, source in (("arrow", ArrowSource()), ("orc", OrcSource())):
        _, found = read(tmp_path / folder, source)
        assert found.column("k").to_pylist() == ["a", "a", "b", "b"]
