"""`shardkit train` as a process: what it prints, how it ends, and that it is the same run on one device and on two."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shardkit.features import make_feature
from tests.support.paths import DATA
from tests.support.training.outputs import assert_same, learned

pytestmark = pytest.mark.full

FEATURES = (
    make_feature("x", "float64", nullable=True),
    make_feature("color", "string"),
    make_feature("label", "bool"),
)
EPOCH_LINE = "epoch 1 of"
SPOKEN = ("dataset", "train", "test", "optimizer", "epoch", "bottleneck", "best", "checkpoints", "metrics")


def rows(num_rows: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    made = [{"x": draw.uniform(-1, 1), "color": draw.choice("rgb")} for _ in range(num_rows)]
    return [
        {**r, "label": (r["x"] > 0) != (r["color"] == "r"), "x": None if i % 9 == 1 else r["x"]}
        for i, r in enumerate(made)
    ]


@pytest.fixture
def dataset(write) -> Path:
    return write(FEATURES, {"train": rows(600), "test": rows(90, 1)})


def command(*arguments: object, folder: Path | None = None) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "shardkit", "train", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=480)
    return process.returncode, out, err


def wait_for_epoch_line(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(EPOCH_LINE):
            return
    pytest.fail("the run ended before its first epoch did")


@pytest.mark.slow
def test_two_replicas_end_where_one_does(dataset, tmp_path) -> None:
    settings = ("--label", "label", "--epochs", 2, "--global-batch-size", 60)
    one = command(dataset, *settings, "--output", tmp_path / "one")
    two = command(dataset, *settings, "--output", tmp_path / "two", "--strategy", "mirrored", "--replicas", 2)
    (code_one, out, err_one), (code_two, _, err_two) = finish(one), finish(two)
    assert (code_one, code_two) == (0, 0), err_one + err_two
    assert "2 virtual CPU devices, mirrored" in err_two
    assert_same(tmp_path / "one", tmp_path / "two", atol=1e-6)
    for a, b in zip(learned(tmp_path / "one"), learned(tmp_path / "two"), strict=True):
        assert a[3].keys() == b[3].keys()
        assert a[3]["accuracy"] == b[3]["accuracy"]
        for name, value in a[3].items():
            # A score on the edge of a bin may fall into the next one.
            assert value == pytest.approx(b[3][name], abs=1e-3 if name == "auc" else 1e-6), name
    # Nothing but the table on stdout, and none of TensorFlow's own messages on stderr.
    assert out.split()[0] in ("train", "epoch")
    for line in (err_one + err_two).splitlines():
        assert line.split()[0] in SPOKEN, line


@pytest.mark.slow
def test_a_killed_run_ends_with_the_weights_of_a_whole_one(dataset, tmp_path) -> None:
    settings = ("--label", "label", "--epochs", 6, "--global-batch-size", 20, "--checkpoint-every", 7)
    killed = command(dataset, *settings, "--output", tmp_path / "killed")
    wait_for_epoch_line(killed)
    killed.kill()
    assert finish(killed)[0] == -signal.SIGKILL
    code, _, err = finish(command(dataset, *settings, "--output", tmp_path / "killed", "--resume"))
    assert code == 0, err
    code, _, err = finish(command(dataset, *settings, "--output", tmp_path / "whole"))
    assert code == 0, err
    assert learned(tmp_path / "killed") == learned(tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_stopped_run_says_how_to_go_on(dataset, tmp_path, number: signal.Signals, code: int, word: str) -> None:
    process = command(dataset, "--label", "label", "--epochs", 100_000, "--output", tmp_path / "run")
    wait_for_epoch_line(process)
    asked_at = time.monotonic()
    process.send_signal(number)
    found, _, err = finish(process)
    assert time.monotonic() - asked_at < 5  # One second where the machine is not busy.
    assert found == code
    last = err.splitlines()[-1]
    assert last.startswith(f"{word}: ")
    assert "--resume" in last
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--label", "nope"), 2, "no feature 'nope'"),
        (("--label", "label", "--validation-split", "dev"), 2, "It has: train, test"),
        (("--label", "label", "--model", "resnet"), 2, "no model 'resnet'"),
        (("--label", "x", "--task", "classification"), 2, "classes are strings"),
        (("--label", "label", "--export", "/dev/null/model"), 2, "cannot write there in /dev/null"),
    ],
)
def test_what_the_manifest_contradicts_is_refused_and_leaves_nothing(
    dataset, tmp_path, arguments, code, message
) -> None:
    found, out, err = finish(command(dataset, *arguments, "--output", tmp_path / "run"))
    assert found == code
    assert message in err
    assert out == ""
    assert not (tmp_path / "run").exists()


def test_a_batch_that_does_not_divide_names_two_that_do(dataset, tmp_path) -> None:
    code, _, err = finish(
        command(
            dataset, "--label", "label", "--output", tmp_path / "run", "--strategy", "mirrored", "--replicas", 2,
            "--global-batch-size", 33,
        )
    )  # fmt: skip
    assert code == 2
    assert "32 or 34" in err


def test_a_file_of_the_user_does_not_pass_for_the_trainer(dataset, tmp_path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('the file of the user ran')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", "import sys; from shardkit.cli import main; sys.exit(main(sys.argv[1:]))", "train",
         str(dataset), "--label", "label", "--output", str(tmp_path / "run")],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert found.returncode == 2
    assert str(tmp_path / "train.py") in found.stderr
    assert "the file of the user ran" not in found.stderr


def test_help_shows_commands_that_exist() -> None:
    code, out, _ = finish(command("--help"))
    assert code == 0
    assert "shardkit train out/adult --label income" in out


def test_without_tensorflow_the_extra_is_named(dataset, tmp_path) -> None:
    hide = "import sys; sys.modules['tensorflow'] = None; from shardkit.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["train", str(dataset), "--label", "label", "--output", str(tmp_path / "run")]
    found = subprocess.run([sys.executable, "-c", hide, *arguments], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert "pip install 'shardkit[train]'" in found.stderr


@pytest.mark.data
@pytest.mark.slow
def test_the_census_is_learned(tmp_path) -> None:
    source = DATA / "adult-census"
    if not source.is_dir():
        pytest.skip("the data sets do not lie beside the checkout")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDKIT_")}
    subprocess.run(
        [sys.executable, "-m", "shardkit", "convert", str(source / "adult_*.csv"), str(tmp_path / "adult"),
         "--split", "train=0.9", "--split", "test=0.1", "--shard-size", "512KiB", "--seed", "7"],
        check=True, capture_output=True, env=environment, timeout=120,
    )  # fmt: skip
    code, out, err = finish(
        command(tmp_path / "adult", "--label", "income", "--epochs", 5, "--output", tmp_path / "run")
    )
    assert code == 0, err
    assert "test" in out
    assert learned(tmp_path / "run")[-1][3]["accuracy"] >= 0.84
