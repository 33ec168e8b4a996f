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
    "content",
    [
        b'model_checkpoint_path: "../../../etc/passwd"\n',
        b'all_model_checkpoint_paths: "step-' + b"9" * 5000 + b'"\n',
        *in_campaign(b"", b"\xcf\x00garbage"),
    ],
)
def test_a_run_goes_on_from_its_checkpoint_whatever_the_list_says(resume, content):
    done = resume(in_place_of("checkpoints/checkpoint", lambda path: path.write_bytes(content)))
    assert done.returncode == 0, done.stderr
    assert "epoch 2" in done.stdout + done.stderr
    assert "no checkpoint" not in done.stderr


def test_nothing_behind_a_link_is_written(resume, tmp_path):
    others = tmp_path / "others"
    others.write_text("of another user")

    def spoil(run):
        step = next((run / "checkpoints").glob("*.index")).stem
        for name in (
            ".train.json.new",
            ".metrics.jsonl.new",
            f"best/.{step}.index.new",
            f"best/{step}.data-00000-of-00001",
        ):
            (run / "best").mkdir(exist_ok=True)
            (run / name).unlink(missing_ok=True)
            (run / name).symlink_to(others)
        (run / f"best/{step}.index").unlink(missing_ok=True)

    done = resume(spoil)
    assert done.returncode == 0, done.stderr
    assert others.read_text() == "of another user"


def test_a_lock_that_is_a_link_is_refused(resume, tmp_path):
    others = tmp_path / "others"
    others.write_text("of another user")
    done = resume(in_place_of(".lock", lambda path: path.symlink_to(others)))
    assert done.returncode == 7, done.stderr
    assert ".lock is a link" in done.stderr
    assert others.read_text() == "of another user"


@pytest.mark.parametrize("name", ["best", *in_campaign("checkpoints")])
def test_checkpoints_behind_a_link_are_not_removed(resume, tmp_path, name):
    others = tmp_path / "others"

    def spoil(run):
        (run / name).rename(others) if (run / name).exists() else others.mkdir()
        (others / "step-99.index").write_text("of another run")
        (run / name).symlink_to(others)

    done = resume(spoil)
    assert done.returncode == 7, done.stderr
    assert f"{name} is a link" in done.stderr
    assert (others / "step-99.index").read_text() == "of another run"


def with_recipe(change):
    def spoil(run):
        record = json.loads((run / "train.json").read_text())
        change(record)
        (run / "train.json").write_text(json.dumps(record))

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        with_recipe(lambda record: record["label"].update(classes=[0, 2**70])),
        with_recipe(lambda record: record["recipe"]["columns"]["numeric"][0].update(width=2**40)),
    ],
)
def test_numbers_that_no_tensor_holds_are_no_record(resume, spoil):
    done = resume(spoil)
    assert done.returncode == 1, done.stderr
    assert "the record of the run cannot be read in " in done.stderr


@pytest.mark.parametrize("make", [os.mkfifo, *in_campaign(os.mkdir)])
def test_metrics_that_are_no_file_are_named(resume, make):
    done = resume(in_place_of("metrics.jsonl", make))
    assert done.returncode == 1, done.stderr
    assert "the metrics of the run cannot be read in " in done.stderr


@pytest.mark.parametrize("end", ["index", *in_campaign("data-00000-of-00001")])
def test_a_checkpoint_that_is_a_pipe_is_passed_over(resume, end):
    done = resume(in_place_of(f"checkpoints/step-2.{end}", os.mkfifo))
    assert done.returncode == 1, done.stderr
    assert "is damaged and is passed over" in done.stderr
    assert "it is a pipe, not a file" in done.stderr
