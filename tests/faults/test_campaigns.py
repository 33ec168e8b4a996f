"""The campaigns in short: what a reader never may see is not there, and the same command ends well."""

import random
import subprocess
import sys

import pytest

from tests.faults.campaign import CAMPAIGNS, Result, finishing, has_failed, run
from tests.faults.campaigns import sweep
from tests.faults.faulty.full_disk import may_mount
from tests.faults.trials import Outcome
from tests.support.campaign import in_campaign

SEED = 20
NUM_TRIALS = {
    "local": {"sweep": 40, "kills": 10, "writers": 1, "zombies": 4, "lost": 3, "disk": 5, "signals": 6}
    | {"pairs": 4, "sizes": 8, "refusals": 4},
    "stored": {"sweep": 11, "kills": 2, "writers": 1, "zombies": 1, "lost": 2, "faults": 3, "signals": 1, "pairs": 4},
}
CI_CASES = [
    *(("local", name) for name in ("kills", "writers", "pairs", "refusals")),
    *(("stored", name) for name in ("faults", "lost")),
]
CASES = [(where, name) for where, numbers in NUM_TRIALS.items() for name in numbers if (where, name) not in CI_CASES]


@pytest.mark.full
@pytest.mark.parametrize(("where", "name"), [*CI_CASES, *in_campaign(*CASES)])
def test_nothing_that_happens_to_a_conversion_harms_a_reader(request, where, name):
    result = run(name, request.getfixturevalue(where), SEED, NUM_TRIALS[where][name])
    assert len(result.outcomes) == NUM_TRIALS[where][name]
    assert [outcome.story for outcome in result.outcomes if outcome.wrongs] == []
    assert all(outcome.is_recovered for outcome in result.outcomes)


def test_every_campaign_has_a_short_form():
    assert {name for numbers in NUM_TRIALS.values() for name in numbers} == set(CAMPAIGNS)


@pytest.mark.full
def test_disks_are_real_ones_where_they_may_be(local):
    if not may_mount():
        pytest.skip("nothing may be mounted here")
    outcomes = run("disk", local, SEED, 4).outcomes
    assert {"old", "new"} == {outcome.state for outcome in outcomes}


@pytest.mark.full
def test_the_command_prints_its_seed_and_its_figures():
    command = [sys.executable, "-m", "tests.faults.campaign", "kills", "--seed", "3", "--trials", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "seed 3"
    assert lines[-1].split()[:3] == ["kills", "local", "2"]


@pytest.mark.full
def test_a_campaign_without_trials_fails():
    command = [sys.executable, "-m", "tests.faults.campaign", "kills", "--trials", "0"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def ended(code, seconds=2.0):
    return Outcome("new" if code == 0 else "old", (), True, 3, 40, "", code, seconds)


@pytest.mark.parametrize(
    ("num_given_up", "num_all", "is_wrong"),
    [(0, 5, False), (1, 5, True), (1, 49, True), (1, 99, True), (1, 100, False), (2, 100, True), (20, 2_000, False)],
)
def test_faults_that_end_more_than_a_hundredth_of_the_conversions_fail_the_campaign(num_given_up, num_all, is_wrong):
    outcomes = (ended(5),) * num_given_up + (ended(0),) * (num_all - num_given_up)
    result = Result("faults", "moto", outcomes, 1.0, 1.0)
    assert has_failed(result) == is_wrong
    found = finishing(result)
    assert f"{num_all - num_given_up} of {num_all} finished" in found.summary
    assert finishing(Result("kills", "moto", outcomes, 1.0, 1.0)) is None


def test_an_error_behind_the_commit_is_no_conversion_that_finished():
    outcomes = (ended(0)._replace(code=5),)
    assert has_failed(Result("faults", "moto", outcomes, 1.0, 1.0))


@pytest.mark.parametrize(("seconds", "is_wrong"), [(3.0, False), (9.0, False), (11.0, True)])
def test_faults_that_cost_many_times_the_time_fail_the_campaign(seconds, is_wrong):
    result = Result("faults", "moto", (ended(0, seconds),) * 5, 1.0, 1.0)
    assert f"{seconds:.1f} times the time" in finishing(result).summary
    assert has_failed(result) == is_wrong


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", ["short-put", *in_campaign("timeout", "lost-answer", "asked-again", "short-read", "flip")]
)
def test_a_short_sweep_has_faults_of_every_kind(stored, kind):
    # Each trial is `disturb` with its arguments.
    trials = list(sweep(stored, random.Random(SEED), 11))
    swept = [trial for trial in trials if trial.args[2][0].kinds == (kind,)]
    assert [trial.keywords["must_finish"] for trial in swept] == [True]
