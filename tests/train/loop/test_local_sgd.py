"""Workers that step on their own: as good as together, less to send, and exact when they go on."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from tests.support.campaign import in_campaign
from tests.support.training.outputs import assert_same, learned, weights
from tests.support.training.workers import SETTINGS, finish_all, run_workers, start_workers

pytestmark = [pytest.mark.slow, pytest.mark.full]


def test_averaging_after_every_step_is_adding_up_gradients(labelled, tmp_path) -> None:
    settings = (labelled, *SETTINGS, "--epochs", 2, "--optimizer", "sgd", "--momentum", 0, "--learning-rate", 0.1)
    run_workers(2, *settings, "--output", tmp_path / "together", folder=tmp_path)
    said = run_workers(2, *settings, "--sync-every", 1, "--output", tmp_path / "local", folder=tmp_path)
    assert "average their weights 10 times an epoch" in said
    expected, found = weights(tmp_path / "together"), weights(tmp_path / "local")
    assert any(np.abs(value).max() > 0.1 for value in expected.values() if value.dtype == np.float32)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, rtol=0, err_msg=name)
    for one, other in zip(learned(tmp_path / "together"), learned(tmp_path / "local"), strict=True):
        assert one[2] == pytest.approx(other[2], abs=1e-5)
        assert one[3] == pytest.approx(other[3], abs=1e-5)


@pytest.mark.parametrize("more", in_campaign(((),), (("--precision", "float16", "--ema", 0.9),)), ids=["plain", "all"])
def test_workers_that_were_stopped_go_on_as_if_nothing_had_happened(labelled, tmp_path, more: tuple[object]) -> None:
    settings = (labelled, *SETTINGS, "--epochs", 40, "--sync-every", 3, *more, "--output")
    workers = start_workers(2, *settings, tmp_path / "cut", folder=tmp_path)
    assert workers[1].stderr is not None
    assert any(line.startswith("epoch 1 of") for line in workers[1].stderr)
    workers[1].send_signal(signal.SIGTERM)
    ended = finish_all(workers)
    assert [code for code, _, _ in ended] == [143, 143], "".join(err for _, _, err in ended)
    said = [err.splitlines()[-1] for _, _, err in ended]
    assert said[0] == said[1]
    assert said[0].startswith("terminated: The last checkpoint is after step ")
    run_workers(2, *settings, tmp_path / "cut", "--resume", folder=tmp_path)
    run_workers(2, *settings, tmp_path / "whole", folder=tmp_path)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert learned(tmp_path / "whole") == learned(tmp_path / "cut")
    assert learned(tmp_path / "whole")[-1][3]["accuracy"] > 0.95


@pytest.mark.campaign
def test_another_number_of_workers_goes_on_from_the_mean_of_what_each_remembered(labelled, tmp_path) -> None:
    settings = (labelled, *SETTINGS, "--sync-every", 4, "--checkpoint-every", 7, "--output", tmp_path / "run")
    run_workers(2, *settings, "--epochs", 2, folder=tmp_path)
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*-worker-1.index"))) == 3
    run_workers(1, *settings, "--epochs", 4, "--resume", folder=tmp_path)
    assert "resumed after step 40" in run_workers(2, *settings, "--epochs", 25, "--resume", folder=tmp_path)
    assert learned(tmp_path / "run")[-1][3]["accuracy"] > 0.95


@pytest.mark.campaign
def test_a_checkpoint_without_the_state_of_a_worker_is_passed_over(labelled, tmp_path) -> None:
    settings = (labelled, *SETTINGS, "--sync-every", 4, "--output", tmp_path / "run")
    run_workers(2, *settings, "--epochs", 3, folder=tmp_path)
    for path in (tmp_path / "run" / "checkpoints").glob("step-30-worker-1.*"):
        path.unlink()
    said = run_workers(2, *settings, "--epochs", 3, "--resume", folder=tmp_path)
    assert "step-30 is damaged and is passed over" in said
    assert "resumed after step 20" in said
