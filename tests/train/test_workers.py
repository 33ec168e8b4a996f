"""Several workers are one run: the same weights as on one, stopped together, and resumed by another number of them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.training.outputs import assert_same, learned
from tests.support.training.workers import (
    FEATURES,
    SETTINGS,
    finish_all,
    labelled_rows,
    run_workers,
    start_processes,
    start_workers,
    train_command,
    workers_of,
)
from train.distribution.exit_codes import EXIT_PEER_LOST

pytestmark = pytest.mark.full

# Without kinks, at which hundreds of steps would turn rounding errors into other weights.
LINEAR = """
import keras

def build(features, statistics, label):
    x = keras.Input([], name="x")
    return keras.Model([x], keras.layers.Dense(label.num_outputs)(keras.layers.Reshape([1])(x)))
"""


@pytest.mark.slow
def test_two_workers_are_two_replicas_bit_for_bit(labelled, tmp_path) -> None:
    settings = (labelled, *SETTINGS, "--epochs", 2)
    said = run_workers(2, *settings, "--output", tmp_path / "workers", folder=tmp_path)
    assert "2 workers of 1 device (CPU)" in said
    replicas = ("--strategy", "mirrored", "--replicas", 2)
    run_workers(1, *settings, *replicas, "--output", tmp_path / "replicas", folder=tmp_path)
    assert_same(tmp_path / "workers", tmp_path / "replicas")
    for one, other in zip(learned(tmp_path / "workers"), learned(tmp_path / "replicas"), strict=True):
        assert one[3] == pytest.approx(other[3], abs=1e-6)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize(("num_resumed", "atol"), [(2, 0.0), (1, 1e-6)])
def test_workers_that_are_preempted_stop_together_and_go_on(labelled, tmp_path, num_resumed: int, atol: float) -> None:
    (tmp_path / "linear.py").write_text(LINEAR)
    linear = ("--model", f"{tmp_path}/linear.py:build", "--optimizer", "sgd", "--learning-rate", 0.1)
    model = () if num_resumed == 2 else linear
    settings = (labelled, *SETTINGS, *model, "--epochs", 60, "--output")
    workers = start_workers(2, *settings, tmp_path / "cut", folder=tmp_path)
    assert workers[1].stderr is not None
    assert any(line.startswith("epoch 1 of") for line in workers[1].stderr)
    workers[1].send_signal(signal.SIGTERM)
    ended = finish_all(workers)
    assert [code for code, _, _ in ended] == [143, 143]
    said = [err.splitlines()[-1] for _, _, err in ended]
    assert said[0] == said[1]
    assert said[0].startswith("terminated: The last checkpoint is after step ")
    run_workers(num_resumed, *settings, tmp_path / "cut", "--resume", folder=tmp_path)
    run_workers(2, *settings, tmp_path / "whole", folder=tmp_path)
    assert_same(tmp_path / "whole", tmp_path / "cut", atol=atol)


@pytest.mark.campaign
@pytest.mark.slow
def test_workers_that_are_preempted_in_validation_need_not_wait_for_its_end(write, tmp_path) -> None:
    rows = labelled_rows(1_000)
    dataset = write(FEATURES, {"train": rows[:24], "test": rows[24:]})
    settings = (dataset, "--label", "label", "--global-batch-size", 4, "--epochs", 2, "--output")
    workers = start_workers(2, *settings, tmp_path / "cut", folder=tmp_path)
    heartbeat = tmp_path / "heartbeat-1"
    while not heartbeat.exists() or b'"validation"' not in heartbeat.read_bytes():
        assert workers[1].poll() is None
        time.sleep(0.01)
    workers[1].send_signal(signal.SIGTERM)
    ended = finish_all(workers)
    assert [code for code, _, _ in ended] == [143, 143]
    for _, _, err in ended:
        assert err.splitlines()[-1].startswith("terminated: The last checkpoint is after step 6;")
    assert not (tmp_path / "cut" / "metrics.jsonl").exists()
    run_workers(2, *settings, tmp_path / "cut", "--resume", folder=tmp_path)
    run_workers(2, *settings, tmp_path / "whole", folder=tmp_path)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert learned(tmp_path / "whole") == learned(tmp_path / "cut")


@pytest.mark.campaign
@pytest.mark.slow
def test_a_lost_worker_costs_nothing_but_time(labelled, tmp_path) -> None:
    settings = (labelled, *SETTINGS, "--epochs", 40, "--checkpoint-every", 7, "--workers-per-host", 2, "--output")
    (supervisor,) = start_processes(None, train_command(*settings, tmp_path / "cut"), folder=tmp_path)
    assert supervisor.stderr is not None
    assert any(line.startswith("epoch 2 of") for line in supervisor.stderr)
    os.kill(workers_of(supervisor)[1], signal.SIGKILL)
    ((code, _, said),) = finish_all([supervisor])
    assert code == 0, said
    assert "worker 1 was killed by SIGKILL after step" in said
    assert "restarting 2 workers from the last checkpoint, restart 1 of 3" in said
    run_workers(2, *settings[:-3], "--output", tmp_path / "whole", folder=tmp_path)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert learned(tmp_path / "whole") == learned(tmp_path / "cut")


@pytest.mark.slow
def test_a_lost_worker_is_not_the_fault_of_a_model_of_the_users_own(labelled, tmp_path) -> None:
    (tmp_path / "linear.py").write_text(LINEAR)
    settings = (labelled, *SETTINGS, "--model", f"{tmp_path}/linear.py:build", "--epochs", 400, "--output")
    workers = start_workers(2, *settings, tmp_path / "run", folder=tmp_path)
    assert workers[1].stderr is not None
    assert any(line.startswith("epoch 1 of") for line in workers[1].stderr)
    workers[1].kill()
    (code, _, said), _ = finish_all(workers)
    assert code == EXIT_PEER_LOST, said
    assert said.endswith("lost: another worker is gone.\n")
    # What TensorFlow has to tell of it stands in a log.
    assert "E0000" not in said
    assert "E0000" in (tmp_path / "run" / "workers" / "chief.log").read_text()
