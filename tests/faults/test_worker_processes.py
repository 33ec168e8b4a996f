"""Faults reach the processes that a conversion starts, too, which are told of them by their environment alone."""

import pytest

from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.operations import read_log
from tests.faults.trials import disturb
from tests.faults.worlds import SCENARIOS

pytestmark = pytest.mark.full

NUM_WORKERS = 6


@pytest.mark.slow
def test_a_conversion_of_many_processes_is_killed_in_one_of_them(local):
    pids = {}

    def read(conversion, log):
        while not conversion.has_ended(1.0):
            pass
        found = read_log(log)
        pids.update(planner=found[0]["pid"], writer=found[-1]["pid"])

    fault = Fault(("kill-before",), names=("link",), path="/data/")
    outcome = disturb(local.with_workers(NUM_WORKERS), SCENARIOS["next"], (fault,), interfere=read)
    assert (outcome.state, outcome.wrongs) == ("old", ()), outcome.story
    # A second worker may reach its fault before the first one's death stops it.
    assert 1 <= outcome.num_faults <= NUM_WORKERS
    assert pids["planner"] != pids["writer"]
