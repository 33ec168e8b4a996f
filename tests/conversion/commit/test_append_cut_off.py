"""Appends that are killed in the commit or behind it, and two that meet there: the same command ends well again."""

import json
import signal
import subprocess
import sys

import pytest

from shardkit.dataset.open import list_versions, open_dataset
from shardkit.verify.shards import verify_dataset

pytestmark = pytest.mark.full

# Runs the command; the link that creates a file of that name is where it is killed, or waits for its input to end.
HALTED = """
import os, re, signal, sys

point, name, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
link = os.link

def halting(source, target, *rest, **named):
    if not re.search(name, str(target)):
        return link(source, target, *rest, **named)
    if point == "wait":
        print("waiting", flush=True)
        sys.stdin.read()
    if point != "before":
        link(source, target, *rest, **named)
    if point != "wait":
        os.killpg(os.getpid(), signal.SIGKILL)

os.link = halting
from shardkit.cli import main
sys.argv[0] = "shardkit"
sys.argv[1:] = argv
sys.exit(main())
"""
MANIFEST, TABLE = "manifests/00000002.json$", "manifests/00000002-[0-9a-f]{16}.shards.parquet$"


def write(path, first, num_rows):
    path.write_text("id,x\n" + "".join(f"{i},{i / 8}\n" for i in range(first, first + num_rows)))


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a.csv", 0, 3_000)
    done = run(tmp_path / "data", tmp_path / "out", "--num-shards", "2")
    assert done.returncode == 0, done.stderr
    write(tmp_path / "data" / "b.csv", 3_000, 1_000)
    return tmp_path / "data"


def command(inputs, destination, *options):
    return ["convert", str(inputs), str(destination), "--workers", "1", *options]


def run(inputs, destination, *options):
    argv = [sys.executable, "-m", "shardkit", *command(inputs, destination, *options)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def start(point, name, inputs, destination, *options):
    argv = [sys.executable, "-c", HALTED, point, name, *command(inputs, destination, "--append", *options)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(argv, text=True, start_new_session=True, **pipes)


def kill(point, name, inputs, destination):
    process = start(point, name, inputs, destination)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, stderr


def content_of(destination):
    """Returns all data by name, and the manifests and their tables without that in which two of the same may differ."""
    found = {p.name: p.read_bytes() for p in destination.glob("data/*/*")}
    for path in destination.glob("manifests/*.json"):
        document = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("created", "sha256", "name")}
        table = destination / document["shard_table"].pop("path")
        found[path.name] = document, table.read_bytes()
    return found


@pytest.mark.parametrize(("point", "name"), [("before", TABLE), ("after", TABLE), ("before", MANIFEST)])
def test_an_append_that_was_killed_goes_on_to_the_same_bytes(data, tmp_path, point, name):
    kill(point, name, data, tmp_path / "out")
    assert list_versions(str(tmp_path / "out")) == [1]
    again = run(data, tmp_path / "out", "--append")
    assert again.returncode == 0, again.stderr
    assert "Going on" in again.stderr
    (tmp_path / "aside.csv").write_bytes((data / "b.csv").read_bytes())
    (data / "b.csv").unlink()
    assert run(data, tmp_path / "undisturbed", "--num-shards", "2").returncode == 0
    (data / "b.csv").write_bytes((tmp_path / "aside.csv").read_bytes())
    assert run(data, tmp_path / "undisturbed", "--append").returncode == 0
    assert content_of(tmp_path / "out") == content_of(tmp_path / "undisturbed")


def test_an_append_that_was_killed_behind_its_commit_is_done(data, tmp_path):
    destination = tmp_path / "out"
    kill("after", MANIFEST, data, destination)
    assert (destination / "work").exists()
    again = run(data, destination, "--append")
    assert again.returncode == 0, again.stderr
    assert "Nothing to append: all 2 files are in version 2" in again.stdout
    assert not (destination / "work").exists()
    assert verify_dataset(open_dataset(str(destination))).is_whole


def test_two_that_meet_at_the_commit_both_succeed(data, tmp_path):
    destination = tmp_path / "out"
    write(data / "c.csv", 4_000, 500)
    slow = start("wait", MANIFEST, data / "b.csv", destination)
    assert slow.stdout.readline() == "waiting\n"
    fast = run(data / "c.csv", destination, "--append")
    assert fast.returncode == 0, fast.stderr
    _, stderr = slow.communicate(timeout=60)
    assert slow.returncode == 0, stderr
    dataset = open_dataset(str(destination))
    assert (dataset.version, dataset.manifest.accounting.num_examples) == (3, 4_500)
    assert all(verify_dataset(open_dataset(str(destination), v)).is_whole for v in (1, 2, 3))


def test_of_two_without_rebase_that_meet_at_the_commit_one_wins_and_no_row_is_lost(data, tmp_path):
    destination = tmp_path / "out"
    write(data / "c.csv", 4_000, 500)
    slow = start("wait", MANIFEST, data / "b.csv", destination, "--no-rebase")
    assert slow.stdout.readline() == "waiting\n"
    fast = run(data / "c.csv", destination, "--append")
    assert fast.returncode == 0, fast.stderr
    _, stderr = slow.communicate(timeout=60)
    assert slow.returncode == 4, stderr
    assert "Nothing was appended; the other version is whole" in stderr
    assert "Run the same command again: it appends to the newest version" in stderr
    assert list_versions(str(destination)) == [1, 2]
    again = run(data / "b.csv", destination, "--append")
    assert again.returncode == 0, again.stderr
    dataset = open_dataset(str(destination))
    assert (dataset.version, dataset.manifest.accounting.num_examples) == (3, 4_500)
    assert all(verify_dataset(open_dataset(str(destination), v)).is_whole for v in (1, 2, 3))
