"""The command that kills runs, once; and a run that goes on with fewer workers counts every example as often."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import kill_trainer
from tests.fuzz.kill_elastic import lose_a_worker_twice

pytestmark = pytest.mark.full


@pytest.mark.campaign
@pytest.mark.slow
def test_the_killing_command_finds_the_same_hash(capsys, tmp_path) -> None:
    settings = ["--strategy", "single", "--kinds", "SIGKILL at a step", "--trials", "1", "--epochs", "2"]
    assert kill_trainer.main([*settings, "--seed", "5", "--folder", str(tmp_path)]) == 0
    assert "1 trials, 1 with the same hash, 0 with problems" in capsys.readouterr().out


@pytest.mark.campaign
@pytest.mark.slow
def test_a_run_that_goes_on_with_fewer_workers_misses_and_repeats_no_example(capsys, tmp_path) -> None:
    assert lose_a_worker_twice(tmp_path, random.Random(0)), capsys.readouterr().out
    said = capsys.readouterr().out
    assert "restarting 2 workers from the last checkpoint, restart 1 of 3" in said
    assert "going on with 1 worker from the last checkpoint, restart 2 of 3" in said
    assert said.count("each of 600 examples trained on 16.0000 to 16.0000 times in 16 epochs") == 2
