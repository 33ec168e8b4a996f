"""Files and columns that a user leaves out, as `shardkit convert` and `inspect --recipe` show them."""

import csv
import json
import os
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import open_dataset
from tests.support.paths import DATA

DIRTY = DATA / "csv-dirty" / "csvkit-examples"


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "NRO_LICENSE").write_text("free\n")
    (folder / "package.json").write_text('{"name": "ip"}\n')
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("id,word\n" + "".join(f"{i},{name}{i}\n" for i in range(100)))
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as tar:
        tar.add(folder, "package")
    return tmp_path / "package.tgz"


def recipe_of(run, dataset, path):
    code, out, err = run("inspect", dataset, "--recipe")
    assert code == 0, err
    path.write_text(out)
    return path


@pytest.mark.full
def test_an_archive_of_several_kinds_of_file(run, package, tmp_path):
    code, _, err = run("convert", package, tmp_path / "out")
    assert code == 2
    assert "of several kinds" in err
    assert "--include GLOB" in err
    code, out, err = run("convert", package, tmp_path / "out", "--include", "*.csv")
    assert code == 0, err
    assert "200 rows in, 200 examples out" in out
    assert "2 of 4 files were left out by --include and --exclude" in err


@pytest.mark.full
def test_the_recipe_keeps_both(run, package, tmp_path):
    options = ["--include", "*.csv", "--include", "x*", "--exclude", "b.*", "--drop-columns", "word"]
    code, _, err = run("convert", package, tmp_path / "out", *options)
    assert code == 2
    assert "--include 'x*' matches no file" in err
    del options[2:4]
    assert run("convert", package, tmp_path / "out", *options)[0] == 0
    recipe = recipe_of(run, tmp_path / "out", tmp_path / "recipe.toml")
    assert 'drop-columns = "word"' in recipe.read_text()
    assert run("convert", package, tmp_path / "again", "--recipe", recipe)[0] == 0
    first, again = (open_dataset(str(tmp_path / name)) for name in ("out", "again"))
    assert [f.name for f in first.manifest.features] == ["id"]
    assert first.manifest.fingerprint == again.manifest.fingerprint
    assert first.manifest.splits[0].num_examples == 100


@pytest.mark.full
def test_the_fingerprint_knows_files_and_no_globs(run, package, tmp_path):
    assert run("convert", package, tmp_path / "one", "--include", "*.csv")[0] == 0
    assert run("convert", package, tmp_path / "other", "--exclude", "*.json")[0] == 0
    one, other = (open_dataset(str(tmp_path / name)).manifest for name in ("one", "other"))
    assert one.fingerprint == other.fingerprint
    assert one.recipe["source"]["include"] == ["*.csv"]


@pytest.mark.full
def test_columns_that_are_left_out(run, tmp_path):
    table = pa.table({"n": [1, 2], "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))})
    pq.write_table(table.append_column("l", pa.array([[[1]], []])), tmp_path / "a.parquet")
    code, _, err = run("convert", tmp_path / "a.parquet", tmp_path / "out", "--drop-columns", "m,l,x")
    assert code == 2
    assert "names 'x', which is no column" in err
    assert "Columns are 'n', 'm', 'l'" in err
    assert run("convert", tmp_path / "a.parquet", tmp_path / "out", "--drop-columns", "m,l", "--no-shuffle")[0] == 0
    examples = first_examples(open_dataset(str(tmp_path / "out")), "train", 2)
    assert [dict(e) for e in examples] == [{"n": 1}, {"n": 2}]


def test_where_there_are_no_columns_it_is_refused(run, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    code, _, err = run("convert", tmp_path / "a.txt", tmp_path / "out", "--format", "text", "--drop-columns", "text")
    assert code == 2
    assert "--drop-columns has no meaning for text files" in err


def test_a_server_takes_no_globs(run, tmp_path):
    code, _, err = run("convert", "postgresql://u@h/d", tmp_path / "out", "--table", "t", "--include", "*.csv")
    assert code == 2
    assert "--include and --exclude have no meaning for a database server" in err


@pytest.mark.full
def test_the_index_of_a_data_frame(run, tmp_path):
    (tmp_path / "a.csv").write_text(",word,n\n" + "".join(f"{i},w{i},{i * i}\n" for i in range(50)))
    code, _, err = run("convert", tmp_path / "a.csv", tmp_path / "out")
    assert code == 0
    assert "a.csv has columns without a name, which are called 'unnamed_1'" in err
    index = open_dataset(str(tmp_path / "out")).manifest.features[0]
    assert (index.name, index.dtype) == ("unnamed_1", "int64")
    assert run("convert", tmp_path / "a.csv", tmp_path / "less", "--drop-columns", "unnamed_1")[0] == 0
    assert [f.name for f in open_dataset(str(tmp_path / "less")).manifest.features] == ["word", "n"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "options"), [("sheetsxlsx_converted.csv", ()), ("test_empty_columns.csv", ("--header",))]
)
@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="shared data are not there")
def test_real_tables_with_unnamed_columns(run, tmp_path, name, options):
    with (DIRTY / name).open(newline="") as text:
        rows = [row for row in csv.reader(text) if row]
    # Of one of them some rows have fewer fields than the header.
    rows = [row for row in rows if len(row) == len(rows[0])]
    code, _, err = run("convert", DIRTY / name, tmp_path / "out", "--on-bad-record", "skip", *options)
    assert code == 0, err
    assert "columns without a name" in err
    dataset = open_dataset(str(tmp_path / "out"))
    assert [f.name for f in dataset.manifest.features] == [n or f"unnamed_{i}" for i, n in enumerate(rows[0], start=1)]
    assert dataset.manifest.splits[0].num_examples == len(rows) - 1


@pytest.mark.full
@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="shared data are not there")
def test_real_articles_with_lists_of_objects(run, tmp_path):
    path = DATA / "text" / "news-mtsc" / "devtest_rw.jsonl"
    lines = path.read_text().splitlines()
    code, out, err = run("convert", path, tmp_path / "out")
    assert code == 0, err
    assert f"{len(lines):,} rows in, {len(lines):,} examples out" in out
    assert {f.name for f in open_dataset(str(tmp_path / "out")).manifest.features} == json.loads(lines[0]).keys()
    found = first_examples(open_dataset(str(tmp_path / "out")), "train", len(lines))
    key = json.dumps
    assert sorted(key(json.loads(e["targets"])) for e in found) == sorted(key(json.loads(t)["targets"]) for t in lines)


def test_a_name_that_is_no_utf8_is_reported(run, tmp_path):
    (tmp_path / "in").mkdir()
    path = os.fsencode(tmp_path / "in") + b"/z\xff.csv"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    code, _, message = run("convert", tmp_path / "in", tmp_path / "out")
    assert code == 2
    assert rf"the file name is not UTF-8 in {tmp_path}/in/z\xff.csv" in message
