"""What the campaigns found, each by itself."""

import re
import signal
from pathlib import Path

import pytest

from tests.faults.campaigns import wait_for_operation
from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.operations import join_meeting, read_log
from tests.faults.trials import disturb, disturb_one, operations_of, state_of
from tests.faults.worlds import SCENARIOS
from tests.support.campaign import in_campaign

pytestmark = pytest.mark.full

FRESH, NEXT = SCENARIOS["fresh"], SCENARIOS["next"]


def code_of(outcome):
    """Returns the exit code of the disturbed conversion."""
    return int(re.search(r"-> (-?\d+),", outcome.story).group(1))


@pytest.mark.parametrize("number", [signal.SIGTERM, *in_campaign(signal.SIGINT)])
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


@pytest.mark.parametrize("kind", ["short-read", *in_campaign("error", "timeout")])
def test_an_input_that_a_store_gives_late_or_in_part_is_read_whole(stored, kind):
    outcome = disturb_one(stored, FRESH, kind, "get", ".csv", index=-1, is_input_stored=True)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story


@pytest.mark.parametrize("kind", ["flip", *in_campaign("short-read")])
@pytest.mark.parametrize(("after", "index"), [("create", 0), *in_campaign(("create", -1))])
def test_a_manifest_that_is_answered_wrongly_once_is_asked_for_again(stored, kind, after, index):
    outcome = disturb_one(stored, FRESH, kind, "get", "manifests/00000001.json", after=after, index=index)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story


@pytest.mark.parametrize("at", [0, *in_campaign(-1)])
def test_a_manifest_that_is_cut_off_twice_at_the_same_byte_is_no_other_ones_and_not_damaged(stored, at):
    lines = [o for o in operations_of(stored, FRESH) if "manifests/00000001.json" in o["path"]]
    created = next(i for i, line in enumerate(lines) if line["name"] == "create")
    first = [line["number"] for line in lines[created:] if line["name"] == "get"][at]
    outcome = disturb(stored, FRESH, tuple(Fault(("short-read",), at=first + i, names=("get",)) for i in range(2)))
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 2), outcome.story


def test_a_shard_table_that_is_answered_wrongly_once_is_asked_for_again(stored):
    outcome = disturb_one(stored, FRESH, "flip", "get", ".parquet", index=-1)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story


def test_a_version_that_a_store_lists_late_is_there_for_the_conversion_that_committed_it(stored):
    outcome = disturb_one(stored, NEXT, "stale-listing", "list", "/manifests", index=-1, must_finish=True)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story


@pytest.mark.parametrize("index", [0, *in_campaign(1, 2, 3, 4)])
def test_an_append_asks_again_where_a_store_does_not_list_the_dataset(stored, index):
    append = SCENARIOS["append"]
    lists = [o["number"] for o in operations_of(stored, append) if o["name"] == "list" and "/manifests" in o["path"]]
    outcome = disturb(stored, append, (Fault(("stale-listing",), at=lists[index]),), must_finish=True)
    assert (code_of(outcome), outcome.state, outcome.num_faults) == (0, "new", 1), outcome.story


@pytest.mark.parametrize("pattern", [".tfrecord.gz", *in_campaign("/statistics-")])
@pytest.mark.parametrize("kind", ["flip", *in_campaign("short-read")])
def test_a_bit_that_turns_on_its_way_is_no_damage_for_verify(stored, kind, pattern):
    with stored.store.trial() as (place, folder):
        stored.prepare(place, NEXT)
        command = ("verify", place.url, "--workers", "1")
        calm = stored.plan(folder, log="calm")
        assert stored.start(command, calm).end().code == 0
        gets = [o for o in read_log(Path(calm.log)) if o["name"] == "get" and pattern in o["path"]]
        plan = stored.plan(folder, (Fault((kind,), at=gets[0]["number"]),))
        ended = stored.start(command, plan).end()
        assert (ended.code, "ok: 2 splits" in ended.said) == (0, True), ended.said
        assert [o["fault"] for o in read_log(Path(plan.log)) if o["fault"]] == [kind]


def test_verify_names_damage_in_a_store_that_is_there(stored):
    with stored.store.trial() as (place, _):
        stored.prepare(place, NEXT)
        name = next(name for name in place.names() if ".tfrecord" in name)
        content = bytearray(place.read(name))
        content[len(content) // 2] ^= 1
        place.write(name, bytes(content))
        ended = stored.start(("verify", place.url)).end()
        assert (ended.code, name in ended.said) == (1, True), ended.said


@pytest.mark.parametrize("where", ["stored", *in_campaign("local")])
def test_a_cleaning_that_dies_after_the_file_of_statistics_leaves_no_version_without_it(request, where):
    world = request.getfixturevalue(where)
    with world.store.trial() as (place, folder):
        before = world.prepare(place, NEXT)
        world.leave_data(place)
        held = Fault(("meet",), names=("open", "create"), path=r"\.shards\.parquet")
        plan = world.plan(folder, (held,), num_parties=2)
        command = world.command(world.new_input, place, folder / "work", "--overwrite")
        conversion = world.start(command, plan)
        assert wait_for_operation(conversion, Path(plan.log), re.compile('"fault": "meet"'))
        dies = world.plan(folder, (Fault(("kill-before",), names=("delete",), path="/data/.*/test-"),), log="cleaning")
        options = ("--older-than", "0", "--work-dir", str(folder / "elsewhere"))
        assert world.start(("clean", place.url, "--delete", *options), dies).end().code == -signal.SIGKILL
        assert not any("statistics-" in name and world.new_data in name for name in place.names())
        join_meeting(plan.log)
        ended = conversion.end()
        assert (ended.code, "statistics-" in ended.said) == (4, True), ended.said
        assert state_of(place, before, world.new_rows)[0] == "old"
        assert world.start(command).end().code == 0
        assert state_of(place, before, world.new_rows)[0] == "new"


@pytest.mark.parametrize("path", [r"\.shards\.parquet$", *in_campaign(r"\.json$")])
def test_a_cleaning_of_another_host_that_takes_a_temporary_file_ends_no_conversion(local, path):
    with local.store.trial() as (place, folder):
        before = local.prepare(place, NEXT)
        plan = local.plan(folder, (Fault(("meet",), names=("link",), path=path),), num_parties=2)
        conversion = local.start(local.command(local.new_input, place, folder / "work", "--overwrite"), plan)
        assert wait_for_operation(conversion, Path(plan.log), re.compile('"fault": "meet"'))
        options = ("--older-than", "0", "--work-dir", str(folder / "elsewhere"))
        cleaned = local.start(("clean", place.url, "--delete", *options)).end()
        assert "temporary files of writers that died" in cleaned.said
        join_meeting(plan.log)
        ended = conversion.end()
        assert ended.code in (0, 4), ended.said
        # Of the table, the cleaning has taken the data, too, which the conversion finds out.
        assert (ended.code, state_of(place, before, local.new_rows)[0]) in ((0, "new"), (4, "old"))
