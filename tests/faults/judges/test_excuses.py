"""An excuse names the fault, or the command beside, that explains how a command ended; all else has none."""

from collections import Counter

import pytest

from tests.faults.faulty.conversion_process import Ended
from tests.faults.judges.excuses import Pair, Ran, Side, excuse, excuse_of_mark
from tests.faults.judges.oracle import Version
from tests.faults.trials import KILLED

SHARD = "/place/set/data/3e/train-00000-of-00001.tfrecord.gz"
MARK = "/place/set/manifests/.cleaning-5e"


def rows(first):
    return Counter({(("id", (first,)),): 1})


def version(number, *firsts):
    return Version(number, "c", sum(map(rows, firsts), Counter()), {}, {})


OLD = version(1, 0)
APPEND = Side("convert", ("convert", "--append", "--work-dir", "/work"), rows(1), is_append=True)
OTHER = Side("convert", ("convert", "--append", "--work-dir", "/work-2"), rows(2), is_append=True)
OVERWRITE = Side("convert", ("convert", "--overwrite", "--work-dir", "/work"), rows(1))
CLEAN = Side("clean", ("clean", "--delete", "--work-dir", "/work"), Counter())
CLEAN_ELSEWHERE = Side("clean", ("clean", "--delete", "--work-dir", "/elsewhere"), Counter())
GONE = f"a file of this version is not there any more in {SHARD}"
LOCKED = "the same conversion is running already"
CHANGED = "the dataset changed meanwhile"


def fault(kind, path, name="put"):
    return {"number": 7, "name": name, "path": path, "fault": kind}


def excused(side, code, said="", *faults, beside=(), versions=(OLD,), **more):
    pair = Pair((side, *(one.side for one in beside)), OLD, **more)
    return excuse(Ran(side, Ended(code, said), faults), pair, beside, {v.number: v for v in versions})


@pytest.mark.parametrize(
    ("side", "code", "kind", "is_excused"),
    [
        (APPEND, 5, "error", True),
        (APPEND, 5, "timeout", True),
        (APPEND, 5, "lag", False),
        (APPEND, 5, "full", False),
        (APPEND, 6, "full", True),
        (APPEND, 6, "error", False),
        (CLEAN, 7, "stale-listing", True),
        (CLEAN, 7, "error", False),
        (APPEND, KILLED, "torn", True),
        (APPEND, KILLED, "error", False),
        (APPEND, 4, "error", False),
        (CLEAN, 4, "error", False),
        (APPEND, 1, "flip", False),
        (APPEND, 70, "error", False),
    ],
)
def test_a_fault_explains_the_codes_that_it_leads_to(side, code, kind, is_excused):
    found = excused(side, code, f"failed in {SHARD}", fault(kind, SHARD))
    assert found == (f"{kind} at 7 put {SHARD}" if is_excused else None)


def test_a_fault_elsewhere_explains_nothing():
    assert excused(APPEND, 5, "failed in /place/set/manifests", fault("error", SHARD)) is None
    assert excused(APPEND, 5, f"failed in {SHARD}") is None


def test_a_refusal_has_a_winner():
    twin = Ran(APPEND, Ended(0, ""))
    assert excused(APPEND, 4, CHANGED, beside=[twin], versions=[OLD, version(2, 0, 1)], are_twins=True)
    assert excused(APPEND, 4, CHANGED, beside=[twin], are_twins=True) is None
    # Appends of different files go behind each other.
    other = Ran(OTHER, Ended(0, ""))
    assert excused(APPEND, 4, CHANGED, beside=[other], versions=[OLD, version(2, 0, 2)]) is None
    assert excused(OVERWRITE, 4, CHANGED, beside=[other], versions=[OLD, version(2, 0, 2)])


def test_a_refusal_for_a_lock_has_a_holder_of_that_lock():
    assert excused(APPEND, 4, LOCKED, beside=[Ran(CLEAN, Ended(0, ""))]) == "clean held the lock"
    assert excused(APPEND, 4, LOCKED, beside=[Ran(CLEAN_ELSEWHERE, Ended(0, ""))]) is None


def test_a_file_that_is_gone_was_deleted_by_a_cleaning():
    deletion = {"number": 3, "name": "delete", "path": SHARD, "fault": None}
    assert excused(APPEND, 4, GONE, beside=[Ran(CLEAN, Ended(0, ""), [deletion])]) == f"a cleaning deleted {SHARD}"
    assert excused(APPEND, 4, GONE, beside=[Ran(CLEAN, Ended(0, ""))]) is None
    assert excused(APPEND, 4, GONE, fault("stale-listing", "/place/set/data/3e", "list")) is None


def test_an_append_is_refused_by_a_version_that_was_broken():
    said = "Give version 2 up: shardkit clean set --drop-broken-version --delete"
    assert excused(APPEND, 1, said, broken=(2, b"{")) == "version 2 cannot be read"
    assert excused(APPEND, 1, said) is None
    assert excused(OVERWRITE, 1, said, broken=(2, b"{")) is None


def test_that_there_is_no_dataset_is_said_only_where_a_listing_lacks_its_manifest():
    said = "there is no dataset"
    assert excused(CLEAN, 2, said) is None
    assert excused(CLEAN, 2, said, fault("stale-listing", "place/set/data/3e", "list")) is None
    assert excused(CLEAN, 2, said, fault("stale-listing", "place/set/manifests", "list"))


def test_the_mark_of_a_cleaning_is_left_where_that_cleaning_was_killed_or_could_not_remove_it():
    name = "manifests/.cleaning-5e"
    put, removed = fault(None, MARK, "create"), fault("error", MARK, "delete")
    assert excuse_of_mark(name, [Ran(CLEAN, Ended(KILLED, ""), [put])]) == "clean was killed"
    assert excuse_of_mark(name, [Ran(CLEAN, Ended(5, ""), [put, removed])]) == f"error at 7 delete {MARK}"
    assert excuse_of_mark(name, [Ran(CLEAN, Ended(5, ""), [fault("error", MARK, "create")])]) is None
    assert excuse_of_mark(name, [Ran(CLEAN, Ended(KILLED, ""), [fault(None, SHARD)])]) is None
