"""`train --resume` into a folder of damaged files, or of other things: an error that names them, or the run goes on."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.campaign import in_campaign

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a dataset `set` and a run `run` of one epoch."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "a.csv").write_text("x,y\n" + "".join(f"{i % 97},{i % 2}\n" for i in range(600)))
    for words in (["convert", "a.csv", "set"], ["train", "set", "--label", "y", "--epochs", "1", "--output", "run"]):
        subprocess.run([sys.executable, "-m", "shardkit", *words], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def resume(trained, tmp_path):
    """Copies the run, lets a function spoil it, and goes on with it."""

    def run(spoil):
        subprocess.run(["cp", "-a", trained / "run", tmp_path / "run"], check=True)
        spoil(tmp_path / "run")
        options = ["--label", "y", "--epochs", "2", "--output", tmp_path / "run", "--resume"]
        command = [sys.executable, "-m", "shardkit", "train", trained / "set", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


def in_place_of(name, make):
    def spoil(run):
        (run / name).unlink()
        make(run / name)

    return spoil


def with_record(**changes):
    def spoil(run):
        record = json.loads((run / "train.json").read_text())
        (run / "train.json").write_text(json.dumps(record | changes))

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        in_place_of("train.json", os.mkfifo),
        in_place_of("train.json", lambda path: path.write_bytes(b'{"dataset": "\xff"}')),
        with_record(num_lanes=0),
        *in_campaign(
            in_place_of("train.json", os.mkdir),
            in_place_of("train.json", lambda path: path.symlink_to("/etc/passwd")),
            in_place_of("train.json", lambda path: path.write_bytes(b"[" * 200_000)),
            with_record(global_batch_size=-1),
            with_record(splits={}),
        ),
    ],
)
def test_a_record_that_is_none_is_named(resume, spoil):
    done = resume(spoil)
    assert done.returncode == 1, done.stderr
    assert "the record of the run cannot be read in " in done.stderr
    assert "train.json" in done.stderr
    assert "root:" not in done.stderr


@pytest.mark.parametrize("make", [os.mkfifo, *in_campaign(os.mkdir)])
def test_a_list_of_checkpoints_that_is_no_file_is_named(resume, make):
    done = resume(in_place_of("checkpoints/checkpoint", make))
    assert done.returncode == 1, done.stderr
    assert "the list of checkpoints cannot be read in " in done.stderr


@pytest.mark.parametrize(
    "content", [b'model_checkpoint_path: "../../../etc/passwd"\n', *in_campaign(b"", b"\xcf\x00garbage")]
)
def test_a_run_goes_on_from_its_checkpoint_whatever_the_list_says(resume, content):
    done = resume(in_place_of("checkpoints/checkpoint", lambda path: path.write_bytes(content)))
    assert done.returncode == 0, done.stderr
    assert "epoch 2" in done.stdout + done.stderr
    assert "no checkpoint" not in done.stderr
