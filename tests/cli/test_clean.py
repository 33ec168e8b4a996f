"""`shardkit clean` as a user meets it: a table, what stays and why, nothing gone unless it is asked for."""

import json
import os
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

pytestmark = pytest.mark.full

FEATURES = (make_feature("number", "int64"),)
DEAD = f"data/{'d' * 32}/train-00000-of-00002.tfrecord.gz"


def clean(*args):
    done = subprocess.run(
        [sys.executable, "-m", "shardkit", "clean", *map(str, args)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "set"
    write_dataset(folder, FEATURES, {"train": pa.record_batch([pa.array(range(100))], schema=arrow_schema(FEATURES))})
    dead = folder / DEAD
    dead.parent.mkdir()
    dead.write_bytes(bytes(2048))
    long_ago = time.time() - 9.9 * 86_400
    os.utime(dead, (long_ago, long_ago))
    return folder


def test_without_delete_nothing_is_changed(folder):
    before = files(folder)
    code, out, err = clean(folder)
    assert (code, err) == (0, "")
    assert files(folder) == before
    row = next(line for line in out.splitlines() if line.startswith("data of conversions that were never committed"))
    assert row.endswith("  2.00 KiB  10 d")
    assert "kept: 4 files, " in out
    assert "named by version 1" in out
    assert out.endswith("would remove: 1 file, 2.00 KiB; --delete does it\n")


def test_with_delete_it_is_gone_and_the_rest_is_as_it_was(folder):
    before = files(folder)
    code, out, _ = clean(folder, "--delete")
    assert code == 0
    assert out.endswith("removed: 1 file, 2.00 KiB\n")
    assert files(folder) == [name for name in before if name != DEAD]
    assert not (folder / DEAD).parent.exists()
    assert clean(folder, "--delete")[1].endswith("ok: there is nothing to remove\n")


def test_what_is_younger_stays(folder):
    code, out, _ = clean(folder, "--delete", "--older-than", "10d")
    assert code == 0
    assert "kept: 1 file, 2.00 KiB, too young\n" in out
    assert (folder / DEAD).exists()


def test_json_lists_every_file(folder):
    document = json.loads(clean(folder, "--json")[1])
    assert [file["path"] for group in document["groups"] for file in group["files"]] == [DEAD]
    assert document["kept"]["named by version 1"]["files"] == 4
    assert document["removed"] is None
    document = json.loads(clean(folder, "--json", "--delete")[1])
    assert document["removed"] == {"num_files": 1, "num_bytes": 2048, "spared": []}


def test_a_damaged_manifest_ends_it_with_7(folder):
    (folder / "manifests" / "00000001.json").write_text("{}")
    before = files(folder)
    code, _, err = clean(folder, "--delete", "--older-than", "0")
    assert code == 7
    assert err.startswith("error[SK-E700]: it is unknown which files are needed in ")
    assert "Nothing was removed." in err
    assert files(folder) == before


@pytest.mark.parametrize("args", [("--older-than", "soon"), ("--keep-versions", "0")])
def test_options_that_make_no_sense(folder, args):
    assert clean(folder, *args)[0] == 2


def test_a_place_without_a_dataset(tmp_path):
    code, _, err = clean(tmp_path)
    assert code == 2
    assert "there is no dataset" in err


def test_files_that_are_no_dataset_are_left_alone(tmp_path):
    (tmp_path / "raw.csv").write_text("x\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "flights.csv").write_text("x\n")
    code, out, _ = clean(tmp_path, "--older-than", "0", "--delete")
    assert code == 0
    assert "not of shardkit" in out
    assert files(tmp_path) == ["data/flights.csv", "raw.csv"]
