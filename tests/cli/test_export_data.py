"""`shardkit export-data` as a user meets it: the page, what it refuses, and exports from and to a store."""

import io
import json
import re
import subprocess
import sys

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from shardkit.cli import main
from shardkit.storage import files as storage
from tests.exporting.conftest import NUMBERS, PHOTOS, make_dataset
from tests.reading.test_real_stores import served_by_s3


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """Returns where a dataset of 180 rows is, relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    make_dataset(tmp_path / "set", NUMBERS, 9)
    return "set"


def test_the_page_says_what_is_there_and_how_it_is_read(run, numbers):
    code, out, err = run("export-data", numbers, "out/", "--to", "parquet", "--rows-per-file", 100)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    sizes = [re.escape(size) for size in re.findall(r"[\d.,]+ (?:KiB|B)", out)]
    assert re.search(rf"train +2 +180 +{sizes[0]}\ntest +1 +1 +{sizes[1]}\n", out)
    snippet = out.split("In Python:\n\n")[1]
    assert "out/train-*.parquet" in snippet
    compile(snippet, "snippet", "exec")
    again = run("export-data", numbers, "out", "--to", "parquet", "--rows-per-file", 100)[1]
    assert "kept: 3 files that were there already" in again


@pytest.mark.parametrize("format", ["arrow", "csv", "jsonl", "webdataset", "mds", "array-record"])
def test_every_page_fits_and_has_a_program(run, numbers, format):
    _, out, _ = run("export-data", numbers, "out", "--to", format, "--rows-per-file", 100, "--workers", 1)
    assert max(map(len, out.splitlines())) <= 80
    compile(out.split("In Python:\n\n")[1], "snippet", "exec")


@pytest.mark.full
@pytest.mark.parametrize("format", ["arrow", "csv"])
def test_the_program_runs(run, numbers, format):
    _, out, _ = run("export-data", numbers, "out", "--to", format)
    program = [sys.executable, "-c", out.split("In Python:\n\n")[1]]
    assert "id" in subprocess.run(program, check=True, capture_output=True, text=True).stdout


def test_splits_columns_and_versions_are_chosen(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for version in (1, 2):
        make_dataset(tmp_path / "set", PHOTOS, version=version)
    options = ("--split", "test", "--version", 1, "--columns", "label, filename")
    assert run("export-data", "set", "out", "--to", "csv", *options)[0] == 0
    assert duckdb.read_csv("out/*.csv").fetchall() == [(0, "cats/1.jpg")]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["export.json", "test-00000-of-00001.csv"]
    plan = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (plan["version"], [f.get("vocabulary") for f in plan["features"]]) == (1, [["cat", "dog"], None])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--to", "csv"], 2, "CSV cannot hold the column 'image'.*Nothing was written.*--columns filename,label"),
        (["--to", "xml"], 2, "Invalid value for '--to'"),
        ([], 2, "Missing option '--to'. Choose from: parquet, arrow, csv,"),
        (["--to", "csv", "--split", "dev"], 2, "no split 'dev'.*It has: train, test"),
        (["--to", "csv", "--columns", "lable"], 2, "no feature 'lable'.*Did you mean 'label'"),
        (["--to", "csv", "--columns", ","], 2, "no column is chosen"),
        (["--to", "parquet", "--version", "7"], 2, "there is no version 7"),
    ],
)
def test_wrong_requests_say_what_to_do(run, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    make_dataset(tmp_path / "set", PHOTOS)
    found, _, err = run("export-data", "set", "out", *arguments)
    assert found == code
    assert re.search(words, err), err
    assert not (tmp_path / "out").exists()


def test_other_exports_are_refused_with_code_4(run, numbers, tmp_path):
    assert run("export-data", numbers, "out", "--to", "parquet")[0] == 0
    code, _, err = run("export-data", numbers, "out", "--to", "arrow")
    assert code == 4
    assert "it is Parquet, not Arrow. It is untouched. Name another folder, or replace it with --overwrite." in err
    assert run("export-data", numbers, "out", "--to", "arrow", "--overwrite")[0] == 0
    code, _, err = run("export-data", numbers, numbers, "--to", "arrow", "--overwrite")
    assert (code, "no export" in err) == (4, True)


def test_a_file_in_the_way_is_an_error(run, numbers, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, _, err = run("export-data", numbers, "file", "--to", "arrow")
    assert code in (2, 4)
    assert "file" in err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.full
def test_from_and_to_a_store(run, tmp_path):
    make_dataset(tmp_path / "set", NUMBERS, 9)
    with served_by_s3(tmp_path) as (url, _):
        for format in ("parquet", "mds", "webdataset", "array-record"):
            options = ("--to", format, "--rows-per-file", 50)
            code, _, err = run("export-data", f"{url}/set", f"{url}/{format}", *options)
            assert (code, err) == (0, "")
            assert run("export-data", tmp_path / "set", tmp_path / format, *options)[0] == 0
            files = [p for p in (tmp_path / format).rglob("*") if p.is_file()]
            names = [p.relative_to(tmp_path).as_posix() for p in files]
            assert [storage.read_bytes(f"{url}/{name}") for name in names] == [p.read_bytes() for p in files]
        stored = io.BytesIO(storage.read_bytes(f"{url}/parquet/train-00000-of-00004.parquet"))
        assert np.array_equal(pq.read_table(stored)["id"], np.tile(np.arange(20), 9)[:45])
        storage.delete_file(f"{url}/parquet/train-00001-of-00004.parquet")
        again = run("export-data", f"{url}/set", f"{url}/parquet", "--to", "parquet", "--rows-per-file", 50)
        assert "kept: 4 files" in again[1]
        code, _, err = run("export-data", f"{url}/set", f"{url}/parquet", "--to", "csv")
        assert (code, "--overwrite" in err) == (4, True)
        assert run("export-data", f"{url}/set", f"{url}/parquet", "--to", "csv", "--overwrite")[0] == 0
        names = ["export.json", "test-00000-of-00001.csv", "train-00000-of-00001.csv"]
        assert storage.list_names(f"{url}/parquet") == names


def test_the_command_needs_nothing_but_a_dataset(capsys):
    assert main(["export-data", "nowhere", "out", "--to", "csv"]) == 2
    assert "there is no dataset" in capsys.readouterr().err
