"""Columns whose types differ from file to file are one table where a user declares their type."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"a": [1, 2], "b": [[1], [2]], "c": [1, 2]}), tmp_path / "in/1.parquet")
    pq.write_table(pa.table({"a": ["x", "y"], "b": [["z"], []], "c": [3, 4]}), tmp_path / "in/2.parquet")
    return tmp_path / "in"


def convert(folder, name, *options):
    return main(["convert", str(folder), str(folder.parent / name), *options])


def rows_of(folder, name):
    return sorted(map(str, read_rows(open_dataset(folder.parent / name), "train")))


def test_without_a_word_they_are_refused_with_the_option_that_helps(folder, capfd):
    assert convert(folder, "out") == 2
    output = capfd.readouterr().err
    assert "'a' is int64 in 1.parquet and string in 2.parquet" in output
    assert "--cast COLUMN=TYPE" in output
    assert convert(folder, "out", "--cast", "a=string") == 2
    assert "'b' is list" in capfd.readouterr().err


def test_a_cast_and_a_schema_file_give_the_same_rows(folder):
    (folder.parent / "schema.toml").write_text('[features]\na = "string"\n')
    assert convert(folder, "cast", "--drop-columns", "b", "--cast", "a=string") == 0
    assert convert(folder, "schema", "--drop-columns", "b", "--schema", str(folder.parent / "schema.toml")) == 0
    expected = [str({"a": a, "c": c}) for a, c in (("1", 1), ("2", 2), ("x", 3), ("y", 4))]
    assert rows_of(folder, "cast") == rows_of(folder, "schema") == sorted(expected)


@pytest.mark.parametrize("casts", [("a=string", "b=string"), ("*=string",), ("[ab]=string",)])
def test_lists_and_patterns_are_declared_too(folder, casts):
    assert convert(folder, "out", *(option for cast in casts for option in ("--cast", cast))) == 0
    rows = [{"a": "1", "b": ["1"]}, {"a": "2", "b": ["2"]}, {"a": "x", "b": ["z"]}, {"a": "y", "b": []}]
    features = {f.name: f.describe_type() for f in open_dataset(folder.parent / "out").manifest.features}
    assert (features["a"], features["b"]) == ("string", "string[*]")
    assert len(rows_of(folder, "out")) == len(rows)


def test_values_that_are_not_of_the_declared_type_are_bad_rows(folder, capfd):
    assert convert(folder, "out", "--drop-columns", "b", "--cast", "a=int64") == 3
    assert "2.parquet, row 1: expected int64, got 'x'" in capfd.readouterr().err


def test_the_recipe_makes_the_same_dataset_and_a_file_is_appended(folder, capfd):
    assert convert(folder, "out", "--drop-columns", "b", "--cast", "a=string") == 0
    capfd.readouterr()
    assert main(["inspect", str(folder.parent / "out"), "--recipe"]) == 0
    (folder.parent / "recipe.toml").write_text(capfd.readouterr().out)
    assert convert(folder, "again", "--recipe", str(folder.parent / "recipe.toml")) == 0
    first, again = (open_dataset(folder.parent / name).manifest for name in ("out", "again"))
    assert first.fingerprint == again.fingerprint
    pq.write_table(pa.table({"a": ["z"], "b": [[1]], "c": [5]}), folder / "3.parquet")
    assert convert(folder, "out", "--append") == 0
    assert len(rows_of(folder, "out")) == 5


def test_a_declaration_that_is_not_needed_changes_no_fingerprint(folder):
    (folder / "2.parquet").unlink()
    assert convert(folder, "out", "--cast", "c=int32") == 0
    assert open_dataset(folder.parent / "out").manifest.recipe["source"].get("declared") is None


@pytest.mark.parametrize("key", ["a", "*", "float32", "[ab]"])
def test_csv_that_is_cast_to_strings_keeps_how_it_is_written(tmp_path, key):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("a,b\n1.10,x\n1.1,y\n,z\n1e3,w\n")
    assert convert(tmp_path / "in", "out", "--cast", f"{key}=string") == 0
    rows = [{"a": "1.10", "b": "x"}, {"a": "1.1", "b": "y"}, {"a": None, "b": "z"}, {"a": "1e3", "b": "w"}]
    assert rows_of(tmp_path / "in", "out") == sorted(map(str, rows))


def test_rows_that_are_appended_keep_how_they_are_written(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("a,b\n1.10,true\n2.50,false\n")
    casts = ("--cast", "a=string", "--cast", "b=string")
    assert convert(tmp_path / "in", "out", *casts) == 0
    (tmp_path / "in/b.csv").write_text("a,b\n1.00,TRUE\n")
    assert convert(tmp_path / "in", "out", *casts, "--append") == 0
    rows = [{"a": "1.10", "b": "true"}, {"a": "2.50", "b": "false"}, {"a": "1.00", "b": "TRUE"}]
    assert rows_of(tmp_path / "in", "out") == sorted(map(str, rows))
