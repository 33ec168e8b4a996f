"""Workers that never wait for each other: every batch is taken once, whoever is lost, and the run comes to its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from shardkit.features import make_feature
from tests.support.campaign import in_campaign
from tests.support.stores.faulty_proxy import Hangs, proxied
from tests.support.stores.servers import BUCKET, KINDS, serve
from tests.support.training.workers import free_addresses, train_command
from train.distribution.signals import INPUT_GRACE_S

pytestmark = pytest.mark.full

FEATURES = (make_feature("x", "float64"), make_feature("label", "bool"))
NUM_TRAIN, NUM_TEST, BATCH = 600, 90, 20
SETTINGS = ("--label", "label", "--global-batch-size", BATCH, "--strategy", "parameter-server")
# Steps that change nothing: whoever takes which batch when, the losses must be those of the initial weights.
STILL = ("--optimizer", "sgd", "--learning-rate", 1e-30, "--schedule", "constant")


@pytest.fixture
def dataset(write) -> Path:
    draw = np.random.default_rng(0)
    rows = [{"x": float(x), "label": bool(x > 0)} for x in draw.uniform(-1, 1, NUM_TRAIN + NUM_TEST)]
    return write(FEATURES, {"train": rows[:NUM_TRAIN], "test": rows[NUM_TRAIN:]})


@contextmanager
def started(*arguments: object, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
    clean |= environment or {}
    with subprocess.Popen(train_command(*arguments), stderr=subprocess.PIPE, text=True, env=clean) as process:
        try:
            yield process
        finally:
            process.terminate()


def finished(process: subprocess.Popen[str], *, code: int = 0) -> str:
    _, said = process.communicate(timeout=480)
    assert process.returncode == code, said
    return said


def wait_for_epoch(process: subprocess.Popen[str], epoch: int) -> None:
    assert process.stderr is not None
    assert any(line.startswith(f"epoch {epoch} of") for line in process.stderr)


def find_worker(output: Path, job: str, index: int) -> int:
    """Returns the number of the process that has a job in the run of a folder."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:
                continue
            config = dict(part.split(b"=", 1) for part in environment.split(b"\0") if b"=" in part).get(b"TF_CONFIG")
            is_ours = str(output).encode() in command and config is not None
            if is_ours and json.loads(config)["task"] == {"type": job, "index": index}:
                return int(folder.name)
    raise AssertionError(f"there is no {job} {index}")


def lines_of(output: Path) -> list[dict[str, dict[str, float]]]:
    return [msgspec.json.decode(line) for line in (output / "metrics.jsonl").read_bytes().splitlines()]


def num_updates(output: Path) -> int:
    reader = tf.train.load_checkpoint(str(output / "checkpoints"))
    names = [name for name in reader.get_variable_to_shape_map() if re.search(r"optimizer/.*iteration", name)]
    return max(int(reader.get_tensor(name)) for name in names)


@pytest.mark.slow
def test_every_batch_is_taken_once_and_no_update_is_lost(dataset, tmp_path) -> None:
    output = tmp_path / "run"
    with started(dataset, *SETTINGS, *STILL, "--workers-per-host", 2, "--epochs", 3, "--output", output) as process:
        said = finished(process)
    assert "2 workers, each on its own, and 1 parameter server" in said
    assert num_updates(output) == 3 * NUM_TRAIN // BATCH
    alone = tmp_path / "alone"
    single = (*SETTINGS[:-1], "single", *STILL, "--epochs", 3)
    with started(dataset, *single, "--output", alone) as process:
        finished(process)
    for ours, theirs in zip(lines_of(output), lines_of(alone), strict=True):
        assert ours["step"] == theirs["step"]
        for part in ("train", "validation"):
            assert ours[part] == pytest.approx(theirs[part], rel=1e-6)


@pytest.mark.slow
# It finds workers by what they were started with.
@pytest.mark.campaign
@pytest.mark.fresh_start
def test_a_lost_worker_is_survived_and_replaced(dataset, tmp_path) -> None:
    output = tmp_path / "run"
    with started(dataset, *SETTINGS, *STILL, "--workers-per-host", 2, "--epochs", 40, "--output", output) as process:
        wait_for_epoch(process, 2)
        os.kill(find_worker(output, "worker", 1), signal.SIGKILL)
        said = finished(process)
    assert re.search(r"worker 1 was killed by SIGKILL after step \d+; the others go on", said)
    assert "failed to connect" not in said
    assert [line["step"] for line in lines_of(output)] == [(i + 1) * NUM_TRAIN // BATCH for i in range(40)]
    losses = [line["train"]["loss"] for line in lines_of(output)]
    assert losses == pytest.approx([losses[0]] * 40, rel=1e-6)
    # A unit that was under way on it is taken again, whole.
    assert num_updates(output) >= 40 * NUM_TRAIN // BATCH


@pytest.mark.campaign
@pytest.mark.slow
# It finds workers by what they were started with.
@pytest.mark.fresh_start
def test_a_lost_server_starts_all_again_from_the_checkpoint(dataset, tmp_path) -> None:
    output = tmp_path / "run"
    with started(dataset, *SETTINGS, "--workers-per-host", 1, "--epochs", 30, "--output", output) as process:
        wait_for_epoch(process, 2)
        os.kill(find_worker(output, "ps", 0), signal.SIGKILL)
        said = finished(process)
    assert "parameter server 0 was killed by SIGKILL while it served; restarting 3 workers from the last chec" in said
    assert "resumed after step" in said
    assert lines_of(output)[-1]["validation"]["accuracy"] > 0.9
    assert lines_of(output)[-1]["step"] == 30 * NUM_TRAIN // BATCH


@pytest.mark.campaign
@pytest.mark.slow
def test_a_run_that_is_preempted_goes_on_where_it_stopped(dataset, tmp_path) -> None:
    settings = (dataset, *SETTINGS, "--workers-per-host", 2, "--epochs", 200, "--output", tmp_path / "run")
    with started(*settings) as process:
        wait_for_epoch(process, 1)
        process.terminate()
        said = finished(process, code=143)
    step = int(re.search(r"The last checkpoint is after step ([\d,]+)", said)[1].replace(",", ""))
    with started(*settings, "--resume", "--epochs", step * BATCH // NUM_TRAIN + 2) as process:
        said = finished(process)
    assert f"resumed after step {step:,}" in said


@pytest.mark.slow
@pytest.mark.campaign
def test_two_hosts_end_together(dataset, tmp_path) -> None:
    ports = [int(address.rpartition(":")[2]) for address in free_addresses(2)]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    settings = (dataset, *SETTINGS, "--hosts", hosts, "--epochs", 2, "--host-index")
    with (
        started(*settings, 0, "--output", tmp_path / "run") as chief,
        started(*settings, 1, "--output", tmp_path / "run") as other,
    ):
        assert "2 workers, each on its own" in finished(chief)
        finished(other)


@pytest.mark.slow
def test_damage_that_a_worker_meets_is_reported_as_damage(dataset, tmp_path) -> None:
    shard = next((dataset / "data").glob("*/train-*"))
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    shard.write_bytes(damaged)
    with started(dataset, *SETTINGS, "--workers-per-host", 1, "--output", tmp_path / "run") as process:
        said = finished(process, code=1)
    assert "error[SK-E100]" in said
    assert shard.name in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("num_answered", [20, *in_campaign(0)])
def test_an_input_that_hangs_holds_up_no_stop(tmp_path, num_answered) -> None:
    kind = KINDS["moto"]
    if kind.find() is None:
        pytest.skip(kind.install)
    table = tmp_path / "a.csv"
    table.write_text("x,label\n" + "".join(f"{i / 977},{i % 2}\n" for i in range(40_000)))
    fault = Hangs(lambda r: r.method == "GET" and "/data/" in r.key and "/train-" in r.key, num_answered + 1)
    with serve("moto", tmp_path) as server, proxied(server.environment["AWS_ENDPOINT_URL"], fault) as address:
        dataset = f"s3://{BUCKET}/hangs"
        convert = [sys.executable, "-m", "shardkit", "convert", str(table), dataset, "--num-shards", "60"]
        subprocess.run([*convert, "--split", "train=1"], env={**os.environ, **server.environment}, check=True)
        store = {**server.environment, "AWS_ENDPOINT_URL": address}
        settings = (*SETTINGS, "--workers-per-host", 2, "--epochs", 40, "--output", tmp_path / "run")
        with started(dataset, *settings, environment=store) as process:
            assert fault.asked.wait(120)
            time.sleep(2)  # Batches that were read before are taken.
            asked_at = time.monotonic()
            process.terminate()
            finished(process, code=143)
            took_s = time.monotonic() - asked_at
    # It was 26: those that wait for each other have 25 s for a checkpoint.
    assert took_s < INPUT_GRACE_S + 10
