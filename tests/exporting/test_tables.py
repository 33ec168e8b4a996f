"""Parquet, Arrow, CSV and JSON Lines hold the very values, as readers that share no code with shardkit see them."""

import csv
import decimal
import json

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.features import make_feature
from tests.exporting.conftest import COLUMNS, LISTS, PHOTOS, SCALARS, columns_of, export, make_dataset, same, tables


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_every_type_comes_back_by_arrow(dataset, tmp_path, format):
    export(dataset, tmp_path / "out", format, rows_per_file=2)
    files = sorted((tmp_path / "out").glob("train-*"))
    assert [f.name for f in files] == [f"train-0000{i}-of-00002.{format}" for i in range(2)]
    read = pq.read_table if format == "parquet" else lambda f: pa.ipc.open_file(f).read_all()
    found, wanted = pa.concat_tables(map(read, files)), columns_of(dataset["train"])
    assert found.column_names == list(wanted)
    for name, values in wanted.items():
        assert same(found[name].to_pylist(), values), name
    assert found.schema.field("when").type == pa.timestamp("us", "Europe/Berlin")


def test_parquet_by_duckdb_polars_and_pandas(dataset, tmp_path):
    export(dataset, tmp_path / "out", "parquet")
    wanted = columns_of(dataset["train"])
    path = str(tmp_path / "out" / "train-*.parquet")
    rows = duckdb.read_parquet(path)
    found = dict(zip(rows.columns, map(list, zip(*rows.fetchall(), strict=True)), strict=True))
    exact = ("flag", "small", "low", "big", "single", "double", "text", "price", "day", "label", "messages", "counts")
    for name in (*exact, "words", "days", "raw", "parts", "clock"):
        assert same(found[name], wanted[name]), name
    assert [list(map(list, grid)) for grid in found["grid"]] == wanted["grid"]
    frame = pl.read_parquet(path)
    for name in (*exact, "words", "days", "raw", "parts", "clock", "grid", "span", "when"):
        assert same(frame[name].to_list(), wanted[name]), name
    assert pd.read_parquet(next((tmp_path / "out").glob("train-*")))["big"].tolist() == wanted["big"]


def test_arrow_by_polars(dataset, tmp_path):
    export(dataset, tmp_path / "out", "arrow")
    frame = pl.read_ipc(next((tmp_path / "out").glob("train-*")))
    for name in ("low", "big", "text", "price", "words", "parts", "grid", "vector"):
        assert same(frame[name].to_list(), columns_of(dataset["train"])[name]), name


def test_json_lines_by_json(dataset, tmp_path):
    export(dataset, tmp_path / "out", "jsonl")
    text = next((tmp_path / "out").glob("train-*")).read_text()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.split("\n")[:-1]]
    wanted = columns_of(dataset["train"])
    for name in ("flag", "small", "low", "big", "single", "text", "label", "words", "counts", "grid"):
        assert same([row[name] for row in rows], wanted[name]), name
    assert [row["messages"] for row in rows] == [{"a": [1, None]}, "x", [1.5]]
    assert [row["double"] for row in rows] == [0.1, None, "inf"]
    assert [decimal.Decimal(row["price"]) if row["price"] else None for row in rows] == wanted["price"]
    assert [row["nanos"] for row in rows] == ["2020-02-29 01:02:03.000000001", "1970-01-01 00:00:00.000000000",
                                              "1969-12-31 23:59:59.999999999"]  # fmt: skip
    assert (rows[0]["when"], rows[0]["day"], rows[0]["span"]) == ("2020-02-29 01:02:03.000004Z", "2020-02-29", 1001)
    assert [row["vector"] for row in rows] == [wanted["vector"][0], None, [3.0, "nan"]]
    assert [msgspec.convert(row["parts"], list[bytes]) for row in rows] == wanted["parts"]
    assert [msgspec.convert(row["raw"], bytes) for row in rows] == wanted["raw"]


def test_csv_by_csv_and_pandas(tmp_path):
    dataset = make_dataset(tmp_path / "set", SCALARS)
    export(dataset, tmp_path / "out", "csv")
    path, wanted = next((tmp_path / "out").glob("train-*")), columns_of(dataset["train"])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name, kind in (("low", int), ("big", int), ("double", float), ("price", decimal.Decimal)):
        assert same([kind(row[name]) if row[name] else None for row in rows], wanted[name]), name
    assert [row["text"] for row in rows] == ['é "a", b\r\nc', "", ""]
    frame = pd.read_csv(path, dtype={"single": "float32"}, parse_dates=["nanos", "when"])
    assert frame["single"].tolist() == wanted["single"]
    assert frame["nanos"].astype("int64").tolist() == [1_582_938_123_000_000_001, 0, -1]
    assert frame["messages"].tolist() == wanted["messages"]


@pytest.mark.parametrize(
    "feature", [f for f, _ in COLUMNS if not f.is_scalar or f.dtype == "bytes"], ids=lambda f: f.name
)
def test_csv_refuses_what_it_cannot_hold(dataset, tmp_path, feature):
    with pytest.raises(UsageError, match=f"CSV cannot hold the column '{feature.name}'") as caught:
        export(dataset, tmp_path / "out", "csv", columns=("low", feature.name))
    assert "Leave it out with --columns low" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_line_of_csv_is_never_empty(tmp_path):
    dataset = make_dataset(tmp_path / "set", SCALARS)
    with pytest.raises(UsageError, match="a null alone in its row is an empty line"):
        export(dataset, tmp_path / "out", "csv", columns=("text",))
    export(dataset, tmp_path / "out", "csv", columns=("low",))


def test_what_parquet_and_texts_cannot_hold_is_refused(tmp_path):
    columns = [
        (make_feature("d", "decimal(5,-2)"), [decimal.Decimal(100)]),
        (make_feature("t", "timestamp[s]"), [2**40]),
    ]
    dataset = make_dataset(tmp_path / "set", columns)
    with pytest.raises(UsageError, match="no negative scale"):
        export(dataset, tmp_path / "out", "parquet")
    for format in ("csv", "jsonl"):
        with pytest.raises(UsageError, match="'t' holds a time that has no text") as caught:
            export(dataset, tmp_path / format, format, num_threads=1)
        assert "Files that are there are whole" in str(caught.value)
        assert [p.name for p in (tmp_path / format).iterdir()] == ["export.json"]
    export(dataset, tmp_path / "arrow", "arrow")


@pytest.mark.full
@given(columns=tables(), rows_per_file=st.integers(1, 9), format=st.sampled_from(["parquet", "arrow", "jsonl"]))
def test_any_rows_come_back(tmp_path_factory, columns, rows_per_file, format):
    folder = tmp_path_factory.mktemp("any")
    dataset = make_dataset(folder / "set", columns)
    export(dataset, folder / "out", format, rows_per_file=rows_per_file, num_threads=1)
    files = sorted((folder / "out").glob("train-*"))
    wanted = columns_of(dataset["train"])
    if format != "jsonl":
        read = pq.read_table if format == "parquet" else lambda f: pa.ipc.open_file(f).read_all()
        found = {name: [v for f in files for v in read(f)[name].to_pylist()] for name in wanted}
        assert all(same(found[name], values) for name, values in wanted.items())
        return
    rows = [json.loads(line) for f in files for line in f.read_text().split("\n")[:-1]]
    for feature, _ in columns:
        if feature.dtype in ("int64", "uint64", "string"):
            assert same([row[feature.name] for row in rows], wanted[feature.name])
        elif feature.dtype == "bytes":
            assert [msgspec.convert(row[feature.name], type_of(feature)) for row in rows] == wanted[feature.name]
        elif feature.dtype.startswith("float"):
            assert same([numbers(row[feature.name]) for row in rows], wanted[feature.name])


def type_of(feature):
    kind = bytes
    for _ in feature.shape:
        kind = list[kind]
    return kind | None


def numbers(value):
    if isinstance(value, list):
        return [numbers(v) for v in value]
    return None if value is None else float(value)


@pytest.mark.full
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_datasets_of_hugging_face_find_values_classes_and_images(tmp_path, format):
    datasets = pytest.importorskip("datasets")
    columns = tuple({feature.name: (feature, values) for feature, values in (*PHOTOS, *SCALARS, *LISTS)}.values())
    dataset = make_dataset(tmp_path / "set", columns)
    export(dataset, tmp_path / "out", format, rows_per_file=2)
    files = {split: str(tmp_path / "out" / f"{split}-*") for split in ("train", "test")}
    loaded = datasets.load_dataset(format, data_files=files, cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {"train": 3, "test": 1}
    rows, wanted = loaded["train"], columns_of(dataset["train"])
    assert rows.features["label"].names == ["cat", "dog"]
    assert rows.cast_column("image", datasets.Image())[1]["image"].getpixel((0, 0)) == (7, 2, 3)
    assert rows["image"][:] == wanted["image"]
    for name in ("low", "big", "price", "when", "vector", "grid", "counts", "words", "span", "label"):
        assert same(rows[name][:], wanted[name]), name


@pytest.mark.full
def test_datasets_of_hugging_face_read_json_lines(tmp_path):
    datasets = pytest.importorskip("datasets")
    dataset = make_dataset(tmp_path / "set", PHOTOS)
    export(dataset, tmp_path / "out", "jsonl", rows_per_file=2)
    files = {"train": str(tmp_path / "out" / "train-*")}
    rows = datasets.load_dataset("json", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
    assert (rows["filename"][:], rows["label"][:]) == (PHOTOS[1][1], [0, 1, 1])
