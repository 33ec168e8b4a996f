"""The trials can fail: each planted bug is found by one that passes without it."""

import random
from functools import partial

import pytest

from tests.faults.campaign import finishing, has_failed, run
from tests.faults.fault_plan import Fault
from tests.faults.planted_bugs import BUGS
from tests.faults.races import outlive, race
from tests.faults.trials import disturb, disturb_one, flip_a_bit, kinds_of
from tests.faults.worlds import SCENARIOS
from tests.support.campaign import in_campaign

FRESH, NEXT, SAME = SCENARIOS["fresh"], SCENARIOS["next"], SCENARIOS["same"]


def damage(place, folder):
    flip_a_bit(place, random.Random(1))


def fault(kind, name, path):
    return (Fault((kind,), names=(name,), path=path),)


def tried(scenario, faults=(), **more):
    return lambda world: disturb(world, scenario, faults, **more)


def at_one(*what, **more):
    return lambda world: disturb_one(world, FRESH, *what, **more)


CLEAN = tried(FRESH)
CUT_OFF = tried(FRESH, fault("kill-before", "link", r"manifests/.*\.json$"))
# Of each bug: where it is looked for, how, and what is found.
LOOKED_FOR = {
    "commit_by_rename": ("local", partial(race, scenario=FRESH), "LIE"),
    "commit_after_a_look": ("local", partial(race, scenario=FRESH), "LIE"),
    "manifest_before_shards": ("local", tried(FRESH, fault("kill-before", "rename", "/data/")), "TORN"),
    "old_deleted_first": ("local", tried(NEXT, fault("kill-before", "link", r"manifests/.*\.json$")), "LOST"),
    "cleanup_after_an_unknown_answer": ("stored", tried(FRESH, fault("lost-answer", "create", r"\.json$")), "TORN"),
    "existing_is_a_conflict": ("stored", tried(FRESH, fault("asked-again", "create", r"\.json$")), "LIE"),
    "first_answer_is_believed": ("stored", at_one("short-read", "get", ".json", after="create"), "LIE"),
    "nothing_is_asked_again": ("stored", at_one("error", "put", "/data/", must_finish=True), "GAVE"),
    "short_put_is_believed": ("stored", at_one("short-put", "put", "/data/"), "TORN"),
    "stored_size_is_not_compared": ("stored", at_one("short-put", "put", "/data/"), "TORN"),
    "no_length_check": ("stored", at_one("short-read", "get", ".csv", index=-1, is_input_stored=True), "LIE"),
    "no_checksum_check": ("local", tried(FRESH, fault("kill-before", "link", r"\.json$"), meddle=damage), "RERUN"),
    "off_by_one": ("local", CLEAN, "TORN"),
    "swallowed_put": ("stored", at_one("error", "put", "/data/"), "LIE"),
    "put_in_place": ("local", tried(SAME, fault("torn", "write", "/data/")), "TORN"),
    "one_folder_for_all": ("local", partial(outlive, scenario=FRESH, moment=0.1, is_twin=False), "TORN"),
    "exit_code_0": ("local", tried(FRESH, fault("full", "open", "/spool/")), "LIE"),
    "no_fsync": ("local", CLEAN, "UNSYNCED"),
    "no_fsync_of_folders": ("local", CLEAN, "UNSYNCED"),
    "leftovers_stay": ("local", CUT_OFF, "LEFT"),
    "nothing_was_committed": ("local", tried(FRESH, fault("error", "rename", r"/committed\.msgpack")), "LIE"),
}


def test_every_bug_is_looked_for():
    assert set(LOOKED_FOR) == set(BUGS)


CI_BUGS = ["commit_by_rename", "existing_is_a_conflict", "manifest_before_shards", "off_by_one", "no_fsync"]


@pytest.mark.full
@pytest.mark.parametrize("bug", [*CI_BUGS, *in_campaign(*(bug for bug in LOOKED_FOR if bug not in CI_BUGS))])
def test_a_planted_bug_is_found_where_nothing_is_without_it(request, bug):
    where, trial, expected = LOOKED_FOR[bug]
    world = request.getfixturevalue(where)
    sound = trial(world)
    assert sound.wrongs == (), sound.story
    found = trial(world.with_bug(bug))
    assert expected in kinds_of([found]), (found.wrongs, found.story)


@pytest.mark.full
def test_conversions_that_ask_nothing_again_fail_the_campaign_of_faults(stored):
    result = run("faults", stored.with_bug("nothing_is_asked_again"), 20, 3)
    assert finishing(result).num_finished < 3
    assert has_failed(result)
