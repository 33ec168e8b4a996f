"""A writer that is killed at any of its moments leaves no dataset or the whole one, and can begin again."""

import signal
import subprocess
import sys

import pytest

import shardkit
from shardkit.dataset.open import list_versions
from tests.support.commands import run_shardkit

pytestmark = [pytest.mark.full, pytest.mark.campaign]

NUM_ROWS = 9_000
# Kills the process where it makes, moves, links or removes a file for the n-th time; says how often it did if it lives.
PROGRAM = """
import os, signal, sys
import shardkit

left, place = int(sys.argv[1]), sys.argv[2]
num_seen = 0
def watch(event, arguments):
    global num_seen
    if event in ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir") and place in str(arguments[0]):
        num_seen += 1
        if num_seen == left:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
with shardkit.Writer(place, num_shards=2, workers=1) as writer:
    for i in range(int(sys.argv[3])):
        writer.write({"i": i, "s": f"row {i}"})
print(num_seen)
"""


def write(number, place):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(number), str(place), str(NUM_ROWS)], capture_output=True, text=True
    )


def shards_in(place):
    return sorted((p.name, p.read_bytes()) for p in place.glob("data/*/*.tfrecord.gz"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole") / "out"
    done = write(0, place)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), shards_in(place)


@pytest.mark.parametrize("share", [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
def test_a_killed_writer_begins_again(whole, share, tmp_path):
    num_moments, shards = whole
    assert num_moments > 30
    place = tmp_path / "out"
    assert write(1 + int(share * num_moments), place).returncode == -signal.SIGKILL
    if list_versions(str(place)) == []:
        assert write(0, place).returncode == 0
    assert shards_in(place) == shards
    assert sorted(row["i"] for row in shardkit.open(place)["train"]) == list(range(NUM_ROWS))
    cleaned = run_shardkit("clean", place, "--older-than", "0s", "--delete")
    assert cleaned.returncode == 0, cleaned.stderr
    assert {p.relative_to(place).parts[0] for p in place.rglob("*") if p.is_file()} == {"data", "manifests"}
