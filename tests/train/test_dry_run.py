"""--dry-run shows what the run would do, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.training.inprocess import Recorder
from train.dry_run import dry_run
from train.options.config import TrainOptions
from train.runs.request import resolve
from train.runs.run_folder import RunFolder

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("num_workers", "is_one"), [(1, True), (2, False)])
def test_what_is_said_of_one_replica_is_said_of_one_only(place, tmp_path, num_workers, is_one) -> None:
    options = TrainOptions(
        dataset=str(place / "data"), output=str(tmp_path / "run"), label="sides", reduce_in="bfloat16"
    )
    reporter = Recorder()
    dry_run(resolve(options), RunFolder(options.output), reporter, num_workers)
    assert any("there is one replica" in text for text in reporter.texts) == is_one


@pytest.mark.slow
def test_the_command(place, tmp_path) -> None:
    (tmp_path / "run.toml").write_text('label = "sides"\nepochs = 3\nglobal-batch-size = 50\noutput = "run"\n')

    def shardkit(*arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
        found = subprocess.run(
            [sys.executable, "-m", "shardkit", "train", str(place / "data"), "--config", "run.toml", *arguments],
            capture_output=True, text=True, timeout=280, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        return found

    shown = shardkit("--dry-run", "--set", "epochs=2").stdout
    assert "12, 6 an epoch" in shown
    assert "activations" in shown
    several = shardkit("--dry-run", "--strategy", "multi-worker", "--workers-per-host", "2")
    assert "2 workers of 1 device (CPU)" in several.stderr
    assert "50, 25 on each replica" in several.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["run.toml"]
    trained = shardkit("--set", "epochs=1", "--profile-steps", "2:4", "--set", "export=model")
    assert "of 2 steps: tensorboard --logdir" in trained.stderr
    assert [p.stat().st_size > 1000 for p in (tmp_path / "run").rglob("*.xplane.pb")] == [True]
    assert (tmp_path / "model" / "saved_model" / "saved_model.pb").is_file()
    assert "epoch 1 of 1" in trained.stderr
