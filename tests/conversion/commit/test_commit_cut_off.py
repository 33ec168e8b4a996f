"""Conversions that are killed in the commit or right behind it: nothing stays, and the same command ends well."""

import os
import re
import signal
import subprocess
import sys

import pytest

from shardkit.dataset.open import list_versions, open_dataset
from shardkit.storage import files as storage
from tests.support.campaign import in_campaign

TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}")

# Runs the command with a call of the system replaced by one that kills the process, before or after the call is made.
KILLER = """
import os, pathlib, shutil, signal, sys

point, argv = sys.argv[1], sys.argv[2:]

def killing(function, condition, after=False):
    def wrapped(*args, **kwargs):
        if not condition(*args):
            return function(*args, **kwargs)
        if after:
            function(*args, **kwargs)
        os.killpg(os.getpid(), signal.SIGKILL)
    return wrapped

def is_manifest(source, target=None, *rest):
    return str(target).endswith("manifests/00000001.json" if "manifest" in point else ".shards.parquet")

if point.startswith("before"):
    os.link = killing(os.link, is_manifest)
elif point.startswith("after"):
    os.link = killing(os.link, is_manifest, after=True)
elif point == "removing":
    shutil.rmtree = killing(shutil.rmtree, lambda path, *rest: "extract" in str(path))
elif point == "removed":
    shutil.rmtree = killing(shutil.rmtree, lambda path, *rest: str(path).count("/work/") == 1
        and pathlib.Path(path).parent.name == "work")

from shardkit.cli import main
sys.argv[0] = "shardkit"
sys.argv[1:] = argv
main()
"""


@pytest.fixture
def source(tmp_path):
    rows = "".join(f"{i},{i / 8}\n" for i in range(3_000))
    (tmp_path / "a.csv").write_text(f"id,x\n{rows}")
    return tmp_path / "a.csv"


def command(source, destination, *options):
    return ["convert", str(source), str(destination), "--num-shards", "2", "--workers", "1", *options]


def run(source, destination, *options):
    argv = [sys.executable, "-m", "shardkit", *command(source, destination, *options)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def kill(point, source, destination, *options):
    argv = [sys.executable, "-c", KILLER, point, *command(source, destination, *options)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, stderr


def leftovers(destination):
    return sorted(p.name for p in destination.rglob(".*") if TEMPORARY.fullmatch(p.name))


@pytest.mark.full
@pytest.mark.parametrize("point", ["before-table", "after-table", "before-manifest"])
def test_what_a_killed_commit_left_goes_with_the_next_conversion(tmp_path, source, point):
    destination = tmp_path / "out"
    kill(point, source, destination)
    assert leftovers(destination)
    assert list_versions(str(destination)) == []
    # One that makes another dataset of other rows tidies up just as well.
    options = ("--seed", "7") if point == "before-table" else ()
    assert run(source, destination, *options).returncode == 0
    assert leftovers(destination) == []
    assert list_versions(str(destination)) == [1]


@pytest.mark.full
@pytest.mark.parametrize("point", ["after-manifest", "removing", "removed"])
@pytest.mark.parametrize("options", [(), *in_campaign((("--overwrite",),))])
def test_a_conversion_killed_behind_its_commit_is_found_complete(tmp_path, source, point, options):
    destination = tmp_path / "out"
    kill(point, source, destination, *options)
    assert list_versions(str(destination)) == [1]
    before = (destination / "manifests" / "00000001.json").read_bytes()
    assert (destination / "work").exists()
    again = run(source, destination, *options)
    assert again.returncode == 0, again.stderr
    assert "complete already" in again.stderr
    assert "version 1 of" in again.stdout
    assert "3,000" in again.stdout
    assert not (destination / "work").exists()
    assert leftovers(destination) == []
    assert list_versions(str(destination)) == [1]
    assert (destination / "manifests" / "00000001.json").read_bytes() == before
    third = run(source, destination)
    assert third.returncode == 4
    assert "there is a dataset already" in third.stderr


@pytest.mark.full
def test_another_conversion_into_a_dataset_whose_maker_was_killed_is_refused(tmp_path, source):
    destination = tmp_path / "out"
    kill("after-manifest", source, destination)
    other = run(source, destination, "--seed", "7")
    assert other.returncode == 4
    assert (destination / "work").exists()
    dry = run(source, destination, "--dry-run")
    assert dry.returncode == 4
    assert run(source, destination).returncode == 0
    assert open_dataset(str(destination)).version == 1


@pytest.mark.full
def test_files_that_are_being_written_are_left_alone(tmp_path):
    target = tmp_path / "00000001.json"
    code = (
        "import os, sys; from pathlib import Path; from shardkit.storage import files as storage\n"
        "def wait(*args):\n    print('written', flush=True); sys.stdin.read(); return link(*args)\n"
        "link, os.link = os.link, wait\n"
        "storage.commit_exclusive(sys.argv[1], b'content')"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == "written\n"
    dead = tmp_path / f".{target.name}.{'0' * 16}"
    dead.write_bytes(b"half")
    kept = [tmp_path / ".hidden", tmp_path / "00000002.json"]
    for path in kept:
        path.write_bytes(b"")
    storage.remove_dead_temporaries(str(tmp_path))
    assert not dead.exists()
    assert all(path.exists() for path in kept)
    assert len(leftovers(tmp_path)) == 1
    writer.communicate(timeout=30)
    assert writer.returncode == 0
    assert target.read_bytes() == b"content"
    assert leftovers(tmp_path) == []


def test_a_folder_that_is_not_there_has_nothing_to_remove(tmp_path):
    storage.remove_dead_temporaries(str(tmp_path / "missing"))
    assert os.listdir(tmp_path) == []
