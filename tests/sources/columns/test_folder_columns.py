"""Folders like year=2013 give columns to text formats as they do to those whose files know their columns."""

from __future__ import annotations

import json
from pathlib import Path

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources import list_inputs, source_for
from shardkit.sources.base import SourceOptions
from shardkit.sources.columns.partitions import NULL_PARTITION


def write_delimited(delimiter):
    return lambda path, rows: pd.DataFrame(rows).to_csv(path, index=False, sep=delimiter)


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write_avro(path: Path, rows: list[dict]) -> None:
    fields = [{"name": name, "type": {int: "long", str: "string"}[type(value)]} for name, value in rows[0].items()]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows)


WRITERS = {
    "csv": write_delimited(","),
    "tsv": write_delimited("\t"),
    "jsonl": write_lines,
    "json": lambda path, rows: path.write_text(json.dumps(rows)),
    "parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path),
    "arrow": lambda path, rows: feather.write_feather(pa.Table.from_pylist(rows), path),
    "orc": lambda path, rows: orc.write_table(pa.Table.from_pylist(rows), path),
    "avro": write_avro,
}
TEXTS = ["csv", "jsonl", "json"]


def write(root: Path, kind: str, **folders: list[dict]) -> Path:
    for folder, rows in folders.items():
        path = root / folder.replace("_is_", "=") / f"part.{kind}"
        path.parent.mkdir(parents=True)
        WRITERS[kind](path, rows)
    return root


def read(root: Path, kind: str, features=None, **options):
    source, settings = source_for(kind), SourceOptions(format=kind, **options)
    files = list_inputs([str(root)]).files
    features = features or source.infer(files, settings)
    splits = source.split(files, settings)
    parts = [part.batch for split in splits for part in source.read(split, files, features, settings)]
    return features, pa.Table.from_batches(parts, schema=arrow_schema(features)).to_pylist()


@pytest.mark.parametrize("kind", WRITERS)
def test_folders_give_every_format_their_columns(tmp_path, kind):
    root = write(tmp_path, kind, year_is_2013=[{"x": 1}, {"x": 2}], year_is_2014=[{"x": 3}])
    features, rows = read(root, kind)
    assert [(f.name, f.dtype) for f in features] == [("x", "int64"), ("year", "int64")]
    assert rows == [{"x": 1, "year": 2013}, {"x": 2, "year": 2013}, {"x": 3, "year": 2014}]


@pytest.mark.parametrize("kind", WRITERS)
def test_leading_zeros_stay_text(tmp_path, kind):
    features, rows = read(write(tmp_path, kind, k_is_007=[{"x": 1}], k_is_008=[{"x": 2}]), kind)
    assert features[1].dtype == "string"
    assert [row["k"] for row in rows] == ["007", "008"]


@pytest.mark.parametrize("kind", TEXTS)
def test_null_and_declared_types(tmp_path, kind):
    root = write(tmp_path, kind, **{f"k_is_{NULL_PARTITION}": [{"x": 1}], "k_is_2": [{"x": 2}]})
    features, rows = read(root, kind)
    assert (features[1].dtype, features[1].nullable) == ("int64", True)
    assert [row["k"] for row in rows] == [2, None]
    declared = (features[0], make_feature("k", "string", nullable=True))
    assert [row["k"] for row in read(root, kind, declared)[1]] == ["2", None]
    with pytest.raises(UsageError, match="the folder's value of column 'k' does not fit"):
        read(root, kind, (features[0], make_feature("k", "int64")))


@pytest.mark.parametrize("kind", TEXTS)
def test_columns_of_the_files_must_say_the_same(tmp_path, kind):
    same = write(tmp_path / "same", kind, k_is_1=[{"k": 1, "x": "a"}], k_is_2=[{"k": 2, "x": "b"}])
    features, rows = read(same, kind)
    assert [f.name for f in features] == ["k", "x"]
    assert [row["k"] for row in rows] == [1, 2]
    other = write(tmp_path / "other", kind, k_is_1=[{"k": 1}], k_is_2=[{"k": 2}, {"k": 3}])
    with pytest.raises(UsageError, match=r"column 'k' says something else than the folder in k=2.*expected '2', got 3"):
        read(other, kind)


def test_keys_that_some_objects_lack_are_filled_in(tmp_path):
    root = write(tmp_path, "jsonl", k_is_1=[{"k": 1, "x": 1}, {"x": 2}], k_is_2=[{"x": 3}])
    assert [row["k"] for row in read(root, "jsonl")[1]] == [1, 1, 2]


@pytest.mark.parametrize("kind", TEXTS)
def test_folders_must_name_the_same_columns(tmp_path, kind):
    root = write(tmp_path, kind, k_is_1=[{"x": 1}], other=[{"x": 2}])
    with pytest.raises(UsageError, match="name different columns"):
        read(root, kind)


@pytest.mark.parametrize("kind", TEXTS)
def test_they_can_be_left_out(tmp_path, kind):
    root = write(tmp_path, kind, k_is_1=[{"x": 1}], k_is_2=[{"x": 2}])
    assert read(root, kind, drop_columns=("k",))[1] == [{"x": 1}, {"x": 2}]
    with pytest.raises(UsageError, match="'j', which is no column"):
        read(root, kind, drop_columns=("j",))


@pytest.mark.parametrize("kind", TEXTS)
def test_bad_rows_keep_their_places(tmp_path, kind):
    root = write(tmp_path, kind, k_is_1=[{"x": 1}, {"x": "no"}, {"x": 3}], k_is_2=[{"x": 4}])
    features = (make_feature("x", "int64"), make_feature("k", "int64"))
    with pytest.raises(BadInputError, match="column 'x' does not fit in k=1"):
        read(root, kind, features)
    assert read(root, kind, features, tolerates_bad_rows=True)[1] == [
        {"x": 1, "k": 1},
        {"x": 3, "k": 1},
        {"x": 4, "k": 2},
    ]
