"""Nulls that a file denies: nested columns whose counts tell of their leaves, and lists with nulls in them."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import shardkit
from shardkit.cli import main

pytestmark = pytest.mark.full

ROWS = [
    {"id": 0, "nested": [{"a": 1}], "items": [1, 2]},
    {"id": 1, "nested": None, "items": [1, None]},
    {"id": 2, "nested": [], "items": None},
]
WRITERS = {"parquet": pq.write_table, "orc": orc.write_table, "arrow": feather.write_feather}


@pytest.mark.parametrize("form", WRITERS)
def test_they_are_nulls(tmp_path, capfd, form):
    WRITERS[form](pa.Table.from_pylist(ROWS), tmp_path / f"a.{form}")
    assert main(["convert", str(tmp_path / f"a.{form}"), str(tmp_path / "out"), "--no-shuffle"]) == 0
    assert "column 'items' is json, and was int64[*]" in " ".join(capfd.readouterr().err.split())
    split = shardkit.open(tmp_path / "out")["train"]
    found = [{"id": int(row["id"]), **{n: row[n] for n in ("nested", "items")}} for row in (split[i] for i in range(3))]
    assert found == ROWS


def test_a_declared_list_makes_a_bad_row_of_a_null_in_it(tmp_path, capfd):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    schema = tmp_path / "schema.json"
    columns = {"id": "int64", "nested": {"nullable": True}, "items": {"dtype": "int64", "nullable": True}}
    schema.write_text(json.dumps({"features": columns}))
    options = ("--schema", str(schema), "--on-bad-record", "skip", "--max-bad", "50%")
    assert main(["convert", str(tmp_path / "a.parquet"), str(tmp_path / "out"), *options]) == 0
    assert "row 2: column 'items' does not fit: expected no null inside a list" in capfd.readouterr().err


def test_types_that_differ_from_file_to_file_are_noted(tmp_path, capfd):
    (tmp_path / "in").mkdir()
    for name, values in (("a", [1, 2]), ("b", [1.5, None])):
        pq.write_table(pa.table({"v": values, "w": ["x", "y"]}), tmp_path / f"in/{name}.parquet")
    pq.write_table(pa.table({"v": [3], "w": pa.nulls(1)}), tmp_path / "in/c.parquet")
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    output = " ".join(capfd.readouterr().err.split())
    assert "column 'v' is int64 in a.parquet, float64 in b.parquet: all are read as one type" in output
    assert "column 'w'" not in output
