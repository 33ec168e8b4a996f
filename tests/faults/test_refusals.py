"""Places that may not be written end a conversion with a code of the table, and the same command succeeds later."""

import pytest

from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.full_disk import fill_at, may_mount, with_large_input
from tests.faults.refusals import STORAGE, USAGE, can_forbid, forbid, remount
from tests.faults.worlds import SCENARIOS

pytestmark = pytest.mark.full

MIB = 2**20


@pytest.mark.parametrize(("folder", "has_old"), [("", False), ("set", True), ("set/manifests", True), ("work", True)])
def test_a_folder_without_rights_is_named_and_nothing_changes(local, folder, has_old):
    if not can_forbid():
        pytest.skip("root has no setpriv, which takes its rights over files")
    outcome = forbid(local, folder, has_old=has_old)
    assert (outcome.wrongs, outcome.state, outcome.code) == ((), "old", USAGE), outcome.story


# Before the shards, the table and the manifest are there, and behind the commit.
@pytest.mark.parametrize(
    ("name", "path", "state"),
    [
        ("make-folder", "/disk/set/data", "old"),
        ("open", r"\.shards\.parquet\.", "old"),
        ("open", r"/\.00000002\.json\.", "old"),
        ("delete", r"/\.00000002\.json", "new"),
    ],
)
def test_a_file_system_that_becomes_read_only_leaves_one_whole_version(local, name, path, state):
    if not may_mount():
        pytest.skip("nothing may be mounted here")
    outcome = remount(local, Fault(("meet",), names=(name,), path=path), has_old=True)
    assert (outcome.wrongs, outcome.state, outcome.num_faults) == ((), state, 1), outcome.story
    assert outcome.code in ((USAGE, STORAGE) if state == "old" else (0, USAGE, STORAGE))


@pytest.mark.campaign
@pytest.mark.parametrize("stage", ["none", "data", "table", "manifest"])
def test_a_disk_that_others_fill_in_mid_write_loses_nothing(local, stage):
    if not may_mount():
        pytest.skip("nothing may be mounted here")
    outcome = fill_at(with_large_input(local), SCENARIOS["next"], (8 if stage == "none" else 40) * MIB, stage, 0)
    assert (outcome.wrongs, outcome.state, outcome.num_faults) == ((), "old", 1), outcome.story
