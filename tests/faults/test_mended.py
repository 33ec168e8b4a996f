"""What the campaigns found, each by itself."""

import re
import signal

import pytest

from tests.faults.campaigns import wait_for_operation
from tests.faults.fault_plan import Fault
from tests.faults.trials import disturb, disturb_one, operations_of
from tests.faults.worlds import SCENARIOS

pytestmark = pytest.mark.full

FRESH, NEXT = SCENARIOS["fresh"], SCENARIOS["next"]


def code_of(outcome):
    """Returns the exit code of the disturbed conversion."""
    return int(re.search(r"-> (-?\d+),", outcome.story).group(1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_behind_the_commit_does_not_say_that_nothing_was_committed(local, number):
    held = Fault(("meet",), names=("open",), path=r"/committed\.msgpack")

    def interfere(conversion, log):
        assert wait_for_operation(conversion, log, re.compile(r'"fault": "meet"'))
        conversion.signal(number)

    outcome = disturb(local, NEXT, (held,), interfere=interfere)
    assert (code_of(outcome), outcome.state, outcome.wrongs) == (128 + number, "new", ()), outcome.story


def test_an_error_behind_the_commit_says_that_there_is_a_version(local):
    outcome = disturb(local, NEXT, (Fault(("error",), names=("rename",), path=r"/committed\.msgpack"),))
    assert (code_of(outcome), outcome.state, outcome.wrongs) == (5, "new", ()), outcome.story


def test_a_disk_that_fails_is_no_bug(local):
    outcome = disturb(local, FRESH, (Fault(("error",), names=("make-folder",), path="/attempts$"),))
    assert (code_of(outcome), outcome.state, outcome.wrongs) == (5, "old", ()), outcome.story


def test_what_a_dataset_holds_is_not_put_again(stored):
    outcome = disturb(stored, SCENARIOS["same"], (Fault(("torn",), names=("put",), path="/data/"),))
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 0), outcome.story


@pytest.mark.parametrize("kind", ["error", "timeout", "short-read"])
def test_an_input_that_a_store_gives_late_or_in_part_is_read_whole(stored, kind):
    outcome = disturb_one(stored, FRESH, kind, "get", ".csv", index=-1, is_input_stored=True)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story


@pytest.mark.parametrize("kind", ["short-read", "flip"])
@pytest.mark.parametrize(("after", "index"), [("create", 0), ("create", -1)])
def test_a_manifest_that_is_answered_wrongly_once_is_asked_for_again(stored, kind, after, index):
    outcome = disturb_one(stored, FRESH, kind, "get", "manifests/00000001.json", after=after, index=index)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story


@pytest.mark.parametrize("at", [0, -1])
def test_a_manifest_that_is_cut_off_twice_at_the_same_byte_is_no_other_ones_and_not_damaged(stored, at):
    lines = [o for o in operations_of(stored, FRESH) if "manifests/00000001.json" in o["path"]]
    created = next(i for i, line in enumerate(lines) if line["name"] == "create")
    first = [line["number"] for line in lines[created:] if line["name"] == "get"][at]
    outcome = disturb(stored, FRESH, tuple(Fault(("short-read",), at=first + i, names=("get",)) for i in range(2)))
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 2), outcome.story


def test_a_shard_table_that_is_answered_wrongly_once_is_asked_for_again(stored):
    outcome = disturb_one(stored, FRESH, "flip", "get", ".parquet", index=-1)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story
