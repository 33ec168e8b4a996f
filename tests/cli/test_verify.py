"""`shardkit verify` as a user meets it: one line when all is well, one line a damage, exit codes."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

pytestmark = pytest.mark.full

FEATURES = (make_feature("number", "int64"), make_feature("word", "string"))


@pytest.fixture
def dataset(tmp_path):
    rows = pa.record_batch(
        [pa.array(range(1000)), pa.array([f"word {i}" for i in range(1000)])], schema=arrow_schema(FEATURES)
    )
    return write_dataset(tmp_path / "set", FEATURES, {"train": rows, "test": rows.slice(900)}, block_examples=50)


def verify(*args, **settings):
    command = [sys.executable, "-m", "shardkit", "verify", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    return done.returncode, done.stdout, done.stderr


def shard(dataset, index=0):
    return Path(dataset.shard_url(dataset.shards[index]))


def test_a_whole_dataset_is_one_line_and_nothing_is_changed(dataset):
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in Path(dataset.url).rglob("*") if p.is_file()}
    code, out, err = verify(dataset.url)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"ok: 2 splits, 4 shards, 1,100 examples, [\d.]+ KiB, every byte read in [\d.]+ s\n", out)
    assert before == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in Path(dataset.url).rglob("*") if p.is_file()}


def test_each_damage_is_a_line_with_its_place_and_the_end_says_what_to_do(dataset):
    path = shard(dataset)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    shard(dataset, 3).unlink()
    code, out, _ = verify(dataset.url)
    lines = out.splitlines()
    assert code == 1
    assert lines[0].startswith(f"damage: {dataset.shards[0].path}: block 0 (byte 10)")
    assert lines[1] == f"damage: {dataset.shards[3].path}: the file is missing"
    assert lines[2] == "damaged: 2 damages; 2 of 4 shards are whole"
    assert "--overwrite" in out
    assert verify(dataset.url, "--split", "test")[1].count("damage: ") == 1


def test_many_damages_of_one_file_are_counted_not_printed(tmp_path):
    rows = pa.record_batch([pa.array(range(300)), pa.array(["x"] * 300)], schema=arrow_schema(FEATURES))
    dataset = write_dataset(tmp_path, FEATURES, {"train": rows}, num_shards=1, compression="none")
    path = shard(dataset)
    data = bytearray(path.read_bytes())
    for byte in range(30, len(data), len(data) // 300):
        data[byte] ^= 0xFF
    path.write_bytes(data)
    code, out, _ = verify(dataset.url)
    assert code == 1
    assert out.count("damage: ") == 10
    hidden = int(re.search(r"^and ([\d,]+) more", out, re.MULTILINE).group(1))
    assert f"damaged: {10 + hidden} damages" in out


def test_json_is_the_same_report(dataset):
    shard(dataset).write_bytes(b"")
    code, out, _ = verify(dataset.url, "--json")
    report = json.loads(out)
    assert code == 1
    assert report["is_whole"] is False
    assert (report["num_damages"], report["num_shards"], report["splits"]) == (1, 4, ["train", "test"])
    assert report["damages"][0]["path"] == dataset.shards[0].path


def test_a_lost_shard_table_is_said_without_pretending_that_shards_were_read(dataset):
    (Path(dataset.url) / dataset.manifest.shard_table.path).unlink()
    code, out, _ = verify(dataset.url)
    assert code == 1
    assert f"damage: {dataset.manifest.shard_table.path}: the shard table is missing" in out
    assert "damaged: 1 damage; no shard was read" in out


def test_a_damaged_manifest_is_an_error_with_exit_code_1(dataset):
    path = Path(dataset.url) / "manifests/00000001.json"
    path.write_bytes(path.read_bytes()[:-40])
    code, out, err = verify(dataset.url)
    assert (code, out) == (1, "")
    assert "the manifest cannot be read" in err
    assert "Traceback" not in err


def test_an_unknown_split_is_a_wrong_request(dataset):
    code, _, err = verify(dataset.url, "--split", "nope")
    assert code == 2
    assert "It has: train, test" in err


def test_files_that_no_manifest_names_are_mentioned(dataset):
    (shard(dataset).parent / "left-over.tfrecord.gz").write_bytes(b"x")
    code, out, _ = verify(dataset.url)
    assert code == 0
    assert "note: 1 other file beside the shards" in out


def test_a_terminal_gets_a_bar_on_stderr_and_stdout_stays_clean(dataset):
    primary, replica = pty.openpty()
    command = [sys.executable, "-m", "shardkit", "verify", dataset.url]
    env = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=replica, env=env) as process:
        os.close(replica)
        shown = b""
        while True:
            try:
                part = os.read(primary, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        out = process.stdout.read().decode()
    os.close(primary)
    assert process.returncode == 0
    assert out.startswith("ok: ")
    assert b"reading" in shown


@pytest.fixture(scope="module")
def long_word(tmp_path_factory):
    """Returns a dataset of one example of 200 MB, which takes 0.2 MB as it is stored."""
    rows = pa.record_batch([pa.array([1]), pa.array(["x" * 200_000_000])], schema=arrow_schema(FEATURES))
    return write_dataset(tmp_path_factory.mktemp("long") / "set", FEATURES, {"train": rows})


def verify_alone(*args):
    """Runs the command in a separate process, whose memory is that of the command alone."""
    command = [sys.executable, "-c", "from shardkit.cli import script; script()", "verify", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_block_that_needs_more_than_max_memory_ends_with_code_6_and_names_its_shard(long_word, workers):
    code, out, err = verify_alone(long_word.url, "--max-memory", "160MiB", "--workers", workers)
    assert (code, out) == (6, ""), err
    assert err.startswith("error[SK-E600]")
    assert re.search(r"not enough memory in \S*train-\S*: --max-memory allows 160 MiB a process", err)


def test_a_block_that_inflates_to_more_than_the_shard_table_states_is_damage_in_little_memory(dataset, long_word):
    path, bomb = shard(dataset), shard(long_word, 1).read_bytes()
    path.write_bytes(bomb[: path.stat().st_size])
    code, out, err = verify_alone(dataset.url, "--max-memory", "160MiB")
    assert code == 1, err
    assert "a block cannot be inflated" in out
