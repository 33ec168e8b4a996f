"""`shardkit convert --append` takes what the dataset holds, says what it leaves out, and refuses what cannot be."""

import gzip
import json
import os

import pytest

from tests.support.commands import shardkit

pytestmark = pytest.mark.full


def write(path, first, num_rows=40):
    path.write_text("x,y\n" + "".join(f"{i},{i % 3}\n" for i in range(first, first + num_rows)))


@pytest.fixture
def data(tmp_path):
    """Returns a folder of one converted file and one that is not."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "1.csv", 0)
    shardkit("convert", tmp_path / "data", tmp_path / "out", "--seed", "7", "--split", "a=0.5", "--split", "b=0.5")
    write(tmp_path / "data" / "2.csv", 40)
    return tmp_path / "data"


def test_only_new_files_are_added(data, tmp_path):
    done = shardkit("convert", data, tmp_path / "out", "--append")
    assert "1 of 2 files are in the dataset already" in done.stderr
    assert "80 rows in, 80 examples out" in done.stdout
    assert "version 2 of" in done.stdout
    assert "appended to version 1" in done.stdout
    again = shardkit("convert", data, tmp_path / "out", "--append")
    assert "Nothing to append: all 2 files are in version 2" in again.stdout
    write(data / "3.csv", 80, 5)
    shardkit("convert", data, tmp_path / "out", "--append")
    shown = shardkit("inspect", tmp_path / "out", "--history").stdout.splitlines()
    assert shown[-2].endswith("version 1 and 2.csv")
    assert shown[-1].endswith("version 2 and 3.csv")
    found = json.loads(shardkit("inspect", tmp_path / "out", "--history", "--json").stdout)
    assert [(v["version"], v["appended_to"], v["num_examples"]) for v in found] == [
        (1, None, 40),
        (2, 1, 80),
        (3, 2, 85),
    ]
    page = shardkit("inspect", tmp_path / "out").stdout
    assert "1 file to version 2" in page
    assert "85 rows in" in page
    assert "40 rows in" in shardkit("inspect", tmp_path / "out", "--version", "1").stdout
    assert shardkit("verify", tmp_path / "out").stdout.startswith("ok")


def test_a_column_without_values_is_of_no_other_type(data, tmp_path):
    (data / "2.csv").write_text("x,y\n")
    (data / "3.csv").write_text("x,y\n,\n")
    assert "looks like" not in shardkit("convert", data, tmp_path / "out", "--append", "--dry-run").stdout
    (data / "4.csv").write_text("x,y\n,\n1,word\n")
    found = shardkit("convert", data, tmp_path / "out", "--append", "--dry-run", code=3).stdout
    assert "column 'y' looks like string in 4.csv and is int64 in the dataset" in " ".join(found.split())
    assert "column 'x'" not in found


def test_a_file_that_may_have_been_renamed_gets_a_note(data, tmp_path):
    (data / "1.csv").rename(data / "0.csv")
    os.utime(data / "0.csv", (10**9, 10**9))
    # Of the same size, but made later.
    write(data / "2.csv", 0)
    os.utime(data / "2.csv", (2**32, 2**32))
    words = f"has the size of {data / '1.csv'}, which is in the dataset and is gone"
    done = shardkit("convert", data, tmp_path / "out", "--append", "--dry-run")
    assert f"note: 0.csv {words}: if it was renamed, its rows are added once more" in done.stdout
    assert f"2.csv {words}" not in done.stdout
    write(data / "3.csv", 0)
    shardkit("convert", data, tmp_path / "out", "--append", "--exclude", "0.csv")
    found = shardkit("convert", data, tmp_path / "out", "--append", "--dry-run").stdout
    assert words in found, "another input of that size, which is there, is not the one"
    (data / "00.csv").write_bytes((data / "0.csv").read_bytes())
    os.utime(data / "00.csv", (10**9, 10**9))
    found = shardkit("convert", data, tmp_path / "out", "--append", "--dry-run").stdout
    assert "and is gone, and so with 1 more file: if it" in found
    (data / "00.csv").unlink()
    (data / "0.csv").unlink()
    assert words not in shardkit("convert", data, tmp_path / "out", "--append", "--dry-run").stdout


def test_a_day_without_rows_is_no_error(data, tmp_path):
    (data / "2.csv").write_text("x,y\n")
    (data / "3.csv").write_text("")
    done = shardkit("convert", data, tmp_path / "out", "--append")
    assert "40 rows in, 40 examples out" in done.stdout
    assert "Nothing to append" in shardkit("convert", data, tmp_path / "out", "--append").stdout
    assert shardkit("verify", tmp_path / "out").stdout.startswith("ok")


def test_a_file_that_was_rejected_as_a_whole_is_taken_once_it_is_another(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "1.csv", 0)
    torn = tmp_path / "data" / "2.csv.gz"
    whole = gzip.compress(b"x,y\n" + b"".join(b"%d,1\n" % i for i in range(40, 2000)))
    torn.write_bytes(whole[:-400])
    shardkit("convert", tmp_path / "data", tmp_path / "out", "--on-bad-record", "quarantine")
    again = shardkit("convert", tmp_path / "data", tmp_path / "out", "--append").stdout
    assert "2.csv.gz was rejected as a whole and has the size that it had then: it is left out again" in again
    torn.write_bytes(whole)
    done = shardkit("convert", tmp_path / "data", tmp_path / "out", "--append")
    assert "2,000 rows in, 2,000 examples out" in done.stdout
    assert shardkit("verify", tmp_path / "out").stdout.startswith("ok")
    assert "Nothing to append" in shardkit("convert", tmp_path / "data", tmp_path / "out", "--append").stdout


def test_a_dry_run_shows_what_would_be_added_and_writes_nothing(data, tmp_path):
    shown = shardkit("convert", data, tmp_path / "out", "--append", "--dry-run").stdout
    assert "1 of 2 files are in the dataset already" in shown
    assert "splits   a 50 %, b 50 %" in shown
    assert "nothing was written" in shown
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["data", "manifests"]
    (data / "2.csv").unlink()
    shown = shardkit("convert", data, tmp_path / "out", "--append", "--dry-run").stdout
    assert "Nothing to append: the only file is in version 1" in shown


def test_options_that_the_dataset_holds_may_be_repeated(data, tmp_path):
    same = ("--seed", "7", "--split", "a=0.5", "--split", "b=0.5", "--format", "csv", "--shard-size", "128MiB")
    shardkit("convert", data, tmp_path / "out", "--append", *same)


@pytest.mark.parametrize(
    ("options", "held"),
    [
        (("--seed", "0"), "--seed 7"),
        (("--split", "a=0.9", "--split", "b=0.1"), "--split a=0.5,b=0.5"),
        (("--compression", "none"), "--compression gzip"),
        (("--num-shards", "2"), "no --num-shards"),
        (("--no-shuffle",), "--shuffle"),
        (("--lower", "y"), "no --lower"),
        (("--dedup",), "no --dedup"),
        (("--format", "tsv"), "--format csv"),
        (("--on-bad-record", "skip"), "--on-bad-record fail"),
    ],
)
def test_options_that_contradict_the_dataset_are_named(data, tmp_path, options, held):
    said = shardkit("convert", data, tmp_path / "out", "--append", *options, code=2).stderr
    name = {"--no-shuffle": "--shuffle"}.get(options[0], options[0])
    assert f"{name} contradicts the dataset that is appended to: it was made with {held}." in said


def test_what_cannot_go_together_is_refused(data, tmp_path):
    out = tmp_path / "out"
    schema = tmp_path / "schema.json"
    schema.write_text('{"features": {"y": "int32"}}')
    for options, words in (
        (("--overwrite",), "--append and --overwrite exclude each other"),
        (("--schema", schema), "--schema and --append exclude each other"),
    ):
        assert words in shardkit("convert", data, out, "--append", *options, code=2).stderr
    said = shardkit("convert", "postgresql://localhost/db", out, "--append", code=2).stderr
    assert "rows of a database server cannot be appended" in said
    said = shardkit("convert", data, tmp_path / "none", "--append", code=2).stderr
    assert "there is no dataset to append to" in said
    assert "Leave out --append" in said
    assert not (tmp_path / "none").exists()


def test_files_that_were_indexed_where_they_lie_are_not_appended_to(data, tmp_path):
    shards = tmp_path / "shards"
    shardkit("convert", data, shards, "--no-shuffle")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in shards.rglob("*.tfrecord.gz"):
        (foreign / path.name).write_bytes(path.read_bytes())
    shardkit("index", foreign)
    said = shardkit("convert", data / "1.csv", foreign, "--append", code=2).stderr
    assert "this dataset cannot be appended to" in said
    assert "shardkit index" in said


def test_the_error_at_an_existing_dataset_names_both_ways_on(data, tmp_path):
    said = shardkit("convert", data, tmp_path / "out", code=4).stderr
    assert "--append to add new files to it" in said
    assert "--overwrite" in said


def test_a_file_that_does_not_fit_names_no_option_that_would_contradict_the_dataset(data, tmp_path):
    (data / "2.csv").write_text("x,y\n1,red\n")
    said = shardkit("convert", data, tmp_path / "out", "--append", code=3).stderr
    assert "column 'y' looks like string in 2.csv and is int64 in the dataset" in said
    assert "column 'y' does not fit in 2.csv, line 2: expected int64, got 'red'" in said
    assert "--exclude GLOB" in said
    assert "--schema" not in said
    shardkit("convert", data, tmp_path / "out", "--append", "--exclude", "2.csv")
