"""A run goes on with the version of the dataset that it began with, whatever is appended meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.campaign import in_campaign
from tests.support.training.workers import workers_of

pytestmark = [pytest.mark.slow, pytest.mark.full]

SETTINGS = ("--label", "label", "--global-batch-size", "20")


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shardkit", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments: object, code: int = 0) -> str:
    process = start(*arguments)
    out, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    return out + err


def write_rows(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = [f"{x:.4f},{'yes' if x > 0 else 'no'}" for x in (draw.uniform(-1, 1) for _ in range(200))]
    path.write_text("\n".join(["x,label", *lines]) + "\n")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder whose only file is converted to `set`."""
    (tmp_path / "in").mkdir()
    write_rows(tmp_path / "in" / "1.csv", 1)
    run("convert", tmp_path / "in", tmp_path / "set", "--split", "train=0.8", "--split", "test=0.2")
    return tmp_path / "in"


def append(inputs: Path) -> None:
    write_rows(inputs / "2.csv", 2)
    run("convert", inputs, inputs.parent / "set", "--append")


def record_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "train.json").read_bytes())


def test_a_run_is_resumed_on_the_version_that_it_began_with(inputs: Path, tmp_path: Path) -> None:
    train = ("train", tmp_path / "set", *SETTINGS)
    run(*train, "--epochs", 1, "--output", tmp_path / "run")
    append(inputs)
    said = run(*train, "--epochs", 2, "--output", tmp_path / "run", "--resume")
    assert said.count("note: the run goes on with version 1 of the dataset, as it began; there is version 2") == 1
    assert record_of(tmp_path / "run")["version"] == 1


@pytest.mark.campaign
def test_another_version_is_refused_for_a_run_and_taken_where_it_is_asked_for(inputs: Path, tmp_path: Path) -> None:
    train = ("train", tmp_path / "set", *SETTINGS)
    run(*train, "--epochs", 1, "--output", tmp_path / "run")
    append(inputs)
    planned = run(*train, "--epochs", 3, "--output", tmp_path / "run", "--resume", "--dry-run")
    assert "goes on with version 1 of the dataset" in planned
    refused = run(*train, "--epochs", 3, "--output", tmp_path / "run", "--resume", "--version", 2, code=2)
    assert "was trained on another dataset" in refused
    plan = run(*train, "--output", tmp_path / "new", "--dry-run")
    old = run(*train, "--output", tmp_path / "new", "--dry-run", "--version", 1)
    assert plan != old
    assert "note" not in plan + old
    for version, num_all in ((1, 200), (2, 400)):
        found = run("evaluate", tmp_path / "set", "--checkpoint", tmp_path / "run", "--version", version, "--json")
        document = json.loads(found[: found.rindex("}") + 1])
        assert document["version"] == version
        assert 0.1 * num_all < document["num_examples"] < 0.3 * num_all


@pytest.mark.campaign
def test_a_worker_that_is_started_again_reads_what_the_others_read(inputs: Path, tmp_path: Path) -> None:
    train = ("train", tmp_path / "set", *SETTINGS, "--epochs", 200, "--max-restarts", 1, "--output", tmp_path / "run")
    process = start(*train)
    assert process.stderr is not None
    assert any(line.startswith("epoch 1 of") for line in process.stderr)
    append(inputs)
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    said = process.stderr.read()
    assert process.wait(200) == 0, said
    assert "restart 1 of 1" in said
    assert said.count("note: the run goes on with version 1 of the dataset, as it began; there is version 2") == 1
    assert record_of(tmp_path / "run")["version"] == 1


def test_a_model_is_exported_after_a_dataset_of_other_columns_took_the_place_of_its_own(
    inputs: Path, tmp_path: Path
) -> None:
    run("train", tmp_path / "set", *SETTINGS, "--epochs", 1, "--output", tmp_path / "run")
    table = (inputs / "1.csv").read_text()
    (inputs / "1.csv").write_text(table.replace("x,label", "y,label"))
    run("convert", inputs, tmp_path / "set", "--overwrite")
    said = run("export", tmp_path / "run", tmp_path / "model")
    assert "both were loaded again; largest difference on" in said


@pytest.mark.parametrize("url", ["s3://bucket/model", *in_campaign("gs://bucket/model", "az://container/model")])
def test_a_model_is_exported_to_no_store_and_no_folder_of_its_name(inputs: Path, tmp_path: Path, url: str) -> None:
    for arguments in (
        ("export", tmp_path / "none", url),
        ("train", tmp_path / "set", *SETTINGS, "--output", tmp_path / "run", "--export", url),
    ):
        assert f"a model is exported to a local folder in {url}" in run(*arguments, code=2)
    assert not (tmp_path / "run").exists()
