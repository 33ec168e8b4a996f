"""`shardkit train` with several workers: what is started, what is refused, and a worker that is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardkit.errors import UsageError
from shardkit.features import make_feature
from tests.support.training.workers import workers_of
from train.distribution.launch import plan_launch, run_identity
from train.options.config import TrainOptions

FEATURES = (make_feature("x", "float64"), make_feature("label", "bool"))


def options(**settings) -> TrainOptions:
    return TrainOptions(dataset="d", label="y", output="o", **settings)


def train(*arguments: object, **more: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_", "SLURM_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "shardkit", "train", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment | more,
    )  # fmt: skip


@pytest.fixture
def dataset(write) -> Path:
    draw = random.Random(0)
    rows = [{"x": draw.uniform(-1, 1)} for _ in range(400)]
    return write(FEATURES, {"train": [{**r, "label": r["x"] > 0} for r in rows]})


def test_one_process_needs_no_supervisor() -> None:
    assert plan_launch(options(), ("run",), {}) is None
    assert plan_launch(options(workers_per_host=1), ("run",), {}) is None
    assert plan_launch(options(max_restarts=0), ("run",), {}) is None


def test_what_a_supervisor_is_to_keep_running() -> None:
    alone = plan_launch(options(max_restarts=2), ("run",), {})
    assert (alone.placement.num_workers, alone.max_restarts) == (1, 2)
    several = plan_launch(options(workers_per_host=3, elastic=True), ("run",), {})
    assert (several.placement.num_workers, several.max_restarts, several.is_elastic) == (3, 3, True)
    assert several.logs == Path("o/workers")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"elastic": True}, "there is one worker"),
        ({"elastic": True, "workers_per_host": 3, "replicas": 3}, "--elastic and --replicas do not go together"),
        ({"elastic": True, "hosts": ("a:1", "b:1"), "host_index": 0}, "several hosts cannot agree"),
        ({"strategy": "single", "workers_per_host": 2}, "--workers-per-host was given"),
        ({"strategy": "mirrored", "hosts": ("a:1", "b:1"), "host_index": 0}, "--hosts was given"),
        ({"parameter_servers": 2}, "--parameter-servers is for --strategy parameter-server"),
        ({"strategy": "parameter-server", "elastic": True}, "--elastic does not go with parameter servers"),
        ({"strategy": "parameter-server", "xla": True}, "--xla does not go with parameter servers"),
        ({"strategy": "parameter-server", "replicas": 2}, "--replicas does not go"),
        ({"strategy": "parameter-server", "reduce_in": "bfloat16"}, "--reduce-in does not go"),
        ({"strategy": "parameter-server", "profile_steps": (1, 2)}, "--profile-steps does not go"),
    ],
)
def test_contradictions_are_named(settings, words) -> None:
    with pytest.raises(UsageError, match=words):
        plan_launch(options(**settings), ("run",), {})


def test_a_chief_and_parameter_servers_are_started_beside_the_workers() -> None:
    orders = plan_launch(options(strategy="parameter-server", parameter_servers=2, workers_per_host=3), ("run",), {})
    assert (orders.placement.num_workers, orders.placement.num_servers, orders.placement.num_commanded) == (6, 2, 3)


def test_one_process_by_request_looks_at_no_environment() -> None:
    environment = {
        "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
    }
    assert plan_launch(options(strategy="single"), ("run",), environment) is None
    assert plan_launch(options(), ("run",), environment).placement.num_workers == 2


def test_hosts_may_differ_in_what_is_theirs_and_in_nothing_else() -> None:
    one = run_identity(options(hosts=("a:1", "b:1"), host_index=0, resume=True), "f")
    other = TrainOptions(dataset="e", label="y", output="p", hosts=("a:1", "b:1"), host_index=1)
    assert run_identity(other, "f") == one
    assert run_identity(other, "g") != one
    wrong = run_identity(options(learning_rate=0.5), "f")
    assert {name for name in one if one[name] != wrong[name]} == {"--learning-rate"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hosts", "a,b:1", "--host-index", 0), "'a' is no address of a worker"),
        (("--hosts", "a:1,b:1"), "--hosts needs --host-index"),
        (("--workers-per-host", 2, "--strategy", "single"), "--strategy single is one process"),
        (("--workers-per-host", 2, "--label", "z"), "'z'"),
    ],
)
def test_a_wrong_request_starts_no_worker(dataset, tmp_path, arguments, words) -> None:
    process = train(dataset, "--label", "label", "--output", tmp_path / "o", *arguments)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, words in err) == (2, True), err
    assert err.startswith("error[SK-E200]")
    assert not (tmp_path / "o").exists()


@pytest.mark.full
@pytest.mark.slow
def test_a_worker_that_is_killed_is_started_again_and_ends_the_run(dataset, tmp_path) -> None:
    settings = ("--label", "label", "--epochs", 40, "--global-batch-size", 20, "--checkpoint-every", 5)
    process = train(dataset, *settings, "--output", tmp_path / "o", "--max-restarts", 2)
    end_s = time.monotonic() + 200
    # TensorFlow writes this file when the first checkpoint is whole; the index is there before it is.
    while not (tmp_path / "o" / "checkpoints" / "checkpoint").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end_s
        time.sleep(0.02)
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert "worker 0 was killed by SIGKILL" in err
    assert "restarting 1 worker from the last checkpoint, restart 1 of 2" in err
    assert "resumed after step" in err
    lines = (tmp_path / "o" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(40))


@pytest.mark.full
@pytest.mark.slow
def test_what_lies_in_the_current_folder_is_not_taken_for_shardkit_by_the_workers(dataset, tmp_path) -> None:
    for name in ("shardkit", "train"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    command = [Path(sys.executable).with_name("shardkit"), "train", dataset, "--label", "label", "--epochs", "1"]
    ended = subprocess.run(
        [*map(str, command), "--workers-per-host", "2", "--output", "run"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "epoch 1 of 1" in ended.stderr
