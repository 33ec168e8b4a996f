"""The campaigns in short: what a reader never may see is not there, and the same command ends well."""

import subprocess
import sys
from pathlib import Path

import pytest
from campaign import CAMPAIGNS, Result, gave_up, has_failed, run
from full_disk import may_mount
from trials import Outcome

SEED = 20
NUM_TRIALS = {
    "local": {"sweep": 40, "kills": 10, "writers": 1, "zombies": 4, "lost": 3, "disk": 5, "signals": 6},
    "stored": {"sweep": 8, "kills": 2, "writers": 1, "zombies": 1, "lost": 4, "faults": 5, "signals": 1},
}
CASES = [(where, name) for where, numbers in NUM_TRIALS.items() for name in numbers]


@pytest.mark.parametrize(("where", "name"), CASES)
def test_nothing_that_happens_to_a_conversion_harms_a_reader(request, where, name):
    result = run(name, request.getfixturevalue(where), SEED, NUM_TRIALS[where][name])
    assert len(result.outcomes) == NUM_TRIALS[where][name]
    assert [outcome.story for outcome in result.outcomes if outcome.wrongs] == []
    assert all(outcome.is_recovered for outcome in result.outcomes)


def test_every_campaign_has_a_short_form():
    assert {name for numbers in NUM_TRIALS.values() for name in numbers} == set(CAMPAIGNS)


def test_disks_are_real_ones_where_they_may_be(local):
    if not may_mount():
        pytest.skip("nothing may be mounted here")
    outcomes = run("disk", local, SEED, 4).outcomes
    assert {"old", "new"} == {outcome.state for outcome in outcomes}


def test_the_command_prints_its_seed_and_its_figures():
    command = [sys.executable, str(Path(__file__).parent / "campaign.py"), "kills", "--seed", "3", "--trials", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "seed 3"
    assert lines[-1].split()[:3] == ["kills", "local", "2"]


def test_a_campaign_without_trials_fails():
    command = [sys.executable, str(Path(__file__).parent / "campaign.py"), "kills", "--trials", "0"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_faults_that_end_more_than_a_hundredth_of_the_conversions_fail_the_campaign():
    good, given_up = (Outcome(state, (), True, 3, 40, "") for state in ("new", "old"))
    for num_given_up, num_all, is_wrong in ((1, 100, False), (2, 100, True), (1, 50, True), (0, 5, False)):
        outcomes = (given_up,) * num_given_up + (good,) * (num_all - num_given_up)
        result = Result("faults", "moto", outcomes, 1.0)
        assert has_failed(result) == is_wrong
        assert (gave_up(result) is not None) == is_wrong
    assert gave_up(Result("kills", "moto", (given_up,) * 10, 1.0)) is None
