"""`shardkit index` as a user meets it: a table, what was left out, what comes next, exit codes."""

import gzip
import re
import struct
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

import shardkit
from shardkit.encoding.tfrecord import frame
from shardkit.errors import DamageError
from shardkit.features import make_feature
from shardkit.testing import write_dataset
from tests.support.commands import run_shardkit

pytestmark = pytest.mark.full


def record(number: int) -> bytes:
    """Returns an Example with an int64 `n` and a float `x`, as protobuf writes it."""
    n = b"\x0a\x01n\x12\x05\x1a\x03\x0a\x01" + bytes([number])
    x = b"\x0a\x01x\x12\x08\x12\x06\x0a\x04" + struct.pack("<f", number / 2)
    features = b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in (n, x))
    return frame(b"\x0a" + bytes([len(features)]) + features)


def write(path: Path, first: int, count: int, pack=bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(b"".join(map(record, range(first, first + count)))))
    return path


def run(*args, **settings):
    done = run_shardkit(*args, timeout=120, **settings)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "set" / "train-00000-of-00002.tfrecord.gz", 0, 40, gzip.compress)
    write(tmp_path / "set" / "train-00001-of-00002.tfrecord.gz", 40, 40, gzip.compress)
    write(tmp_path / "set" / "test-00000-of-00001.tfrecord.gz", 80, 20, gzip.compress)
    (tmp_path / "set" / "LICENSE").write_text("yes\n")
    return tmp_path / "set"


def test_a_folder_becomes_a_dataset_that_all_commands_read(folder):
    code, out, err = run("index", folder)
    assert (code, err) == (0, "note: LICENSE holds no TFRecords and is left out\n")
    lines = out.strip().splitlines()
    assert lines[0].split() == ["split", "files", "examples", "size", "uncompressed", "blocks"]
    assert re.fullmatch(r"train +2 +80 +\d+ B +[\d.,]+ (B|KiB) +2", lines[1].rstrip())
    assert re.fullmatch(r"test +1 +20 +\d+ B +[\d.,]+ (B|KiB) +1", lines[2].rstrip())
    assert lines[3].startswith(f"2 features; version 1 of {folder} in ")
    assert lines[3].endswith("no file was changed")
    assert lines[4] == f"Next: shardkit inspect {folder}"
    code, page, err = run("inspect", folder)
    assert (code, err) == (0, "")
    assert "gzip as others wrote it, one block a file" in page
    assert re.search(r"\bn +int64 +0 +0 +", page)
    code, out, _ = run("verify", folder)
    assert code == 0
    assert "ok: 2 splits, 3 shards, 100 examples" in out


def test_a_second_time_there_is_nothing_to_do_and_a_new_file_makes_the_next_version(folder):
    run("index", folder)
    code, out, _ = run("index", folder)
    assert code == 0
    assert f"nothing to do: version 1 of {folder} is of these very files" in out
    write(folder / "test-00001-of-00001.tfrecord.gz", 100, 5, gzip.compress)
    code, out, _ = run("index", folder)
    assert code == 0
    assert f"version 2 of {folder}" in out
    assert run("verify", folder, "--version", 1)[0] == 0


def test_splits_go_by_globs_and_the_rest_by_names(folder):
    write(folder / "more" / "part-7.tfrecord.gz", 100, 3, gzip.compress)
    code, out, err = run("index", folder, "--split", "held_out=train-00001*")
    assert code == 0
    assert [line.split()[:3] for line in out.strip().splitlines()[1:4]] == [
        ["held_out", "1", "40"],
        ["train", "2", "43"],
        ["test", "1", "20"],
    ]
    assert "the names of 1 file tells no split, such as more/part-7.tfrecord.gz: counted as train; see --split" in err


def test_the_recipe_says_how_to_do_it_again_and_how_to_convert(folder):
    run("index", folder, "--split", "every one=*", "--split", "all=*")
    assert not (folder / "manifests").exists()
    run("index", folder, "--split", "all=*")
    code, out, _ = run("inspect", folder, "--recipe")
    assert code == 0
    assert f"#   shardkit index {folder} --split 'all=*'" in out
    assert tomllib.loads(out)["features"]["x"] == {"dtype": "float32", "nullable": False}
    recipe = folder.parent / "recipe.toml"
    recipe.write_text(out)
    code, out, err = run("convert", folder, folder.parent / "converted", "--recipe", recipe)
    assert code == 0, err
    assert "100 rows in, 100 examples out" in out


def test_a_damaged_record_ends_it_with_its_place_and_nothing_is_written(folder):
    path = write(folder.parent / "plain" / "a.tfrecord", 0, 10)
    data = bytearray(path.read_bytes())
    data[3 * len(record(0)) + 14] ^= 1
    path.write_bytes(data)
    code, out, err = run("index", path.parent)
    assert (code, out) == (3, "")
    assert f"a.tfrecord, row 4, byte {3 * len(record(0))}: it is damaged" in err
    assert "Nothing was written" in err
    assert "Traceback" not in err
    assert [p.name for p in path.parent.iterdir()] == ["a.tfrecord"]


def test_verify_names_what_changed_since_and_what_to_do(folder):
    run("index", folder)
    path = folder / "test-00000-of-00001.tfrecord.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    code, out, _ = run("verify", folder)
    assert code == 1
    assert out.startswith("damage: test-00000-of-00001.tfrecord.gz: block 0 (byte 0)")
    assert "Next: get these files again from where they came" in out
    assert "shardkit convert" not in out


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (["nowhere"], 2, "nowhere"),
        ([".", "--split", "test"], 2, "names no files"),
        ([".", "--split", "test=*x*"], 2, "fits no file"),
        ([], 2, "Missing argument"),
    ],
)
def test_wrong_requests_are_refused(folder, args, exit_code, message):
    code, out, err = run("index", *args, cwd=folder)
    assert (code, out) == (exit_code, "")
    assert message in err
    assert not (folder / "manifests").exists()


def test_a_converted_dataset_is_left_alone(tmp_path):
    rows = pa.record_batch([pa.array([1, 2, 3])], names=["n"])
    write_dataset(tmp_path / "set", (make_feature("n", "int64"),), {"train": rows}, num_shards=1)
    code, _, err = run("index", tmp_path / "set")
    assert code == 4
    assert "there is a dataset already" in err


def test_names_with_spaces_become_a_dataset_that_all_commands_read(tmp_path):
    folder = tmp_path / "my records"
    write(folder / "train" / "my part (1).tfrecord", 0, 30)
    write(folder / "test.tfrecord", 30, 10)
    code, out, err = run("index", folder)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"Next: shardkit inspect '{folder}'"
    assert run("verify", folder)[0] == 0
    assert run("inspect", folder)[0] == 0
    train = shardkit.open(folder)["train"]
    assert train[29]["n"] == 29
    (folder / "train" / "my part (1).tfrecord").unlink()
    with pytest.raises(DamageError, match=r"train/my part \(1\)\.tfrecord") as caught:
        shardkit.open(folder)["train"].take([0])
    assert caught.value.next_step == f"Run: shardkit verify '{folder}'"


def test_the_error_at_a_name_that_no_manifest_holds_says_what_works(tmp_path):
    write(tmp_path / "caf\u00e9.tfrecord", 0, 3)
    code, _, err = run("index", tmp_path)
    assert code == 2
    assert "spaces inside" in err
    assert "open_tfrecords" in err


@pytest.mark.parametrize("name", ["00000001.json", "00000001-*.shards.parquet"])
def test_a_damaged_version_is_reported_and_replaced_by_the_next(folder, name):
    assert run("index", folder)[0] == 0
    document = next((folder / "manifests").glob(name))
    content = bytearray(document.read_bytes())
    content[len(content) // 2] ^= 1
    document.write_bytes(content)
    code, out, err = run("index", folder)
    assert code == 0, err
    assert "note: version 1 is damaged and replaced by the next: the " in err
    assert "version 2 of" in out
    assert run("verify", folder)[0] == 0
    assert "nothing to do: version 2" in run("index", folder)[1]
    assert document.read_bytes() == content


def test_a_damaged_version_of_a_conversion_is_left_to_the_conversion(tmp_path):
    rows = pa.record_batch([pa.array([1, 2, 3])], names=["n"])
    write_dataset(tmp_path / "set", (make_feature("n", "int64"),), {"train": rows}, num_shards=1)
    (tmp_path / "set" / "manifests" / "00000001.json").write_bytes(b"{")
    code, _, err = run("index", tmp_path / "set")
    assert code == 1
    assert "the manifest cannot be read" in err
    assert "shardkit convert" in err
    assert [path.name for path in (tmp_path / "set" / "manifests").glob("*.json")] == ["00000001.json"]
