"""A commit and a cleaning that know nothing of each other's locks, as on two hosts: what is committed is whole."""

import os
import threading
from pathlib import Path

import msgspec
import pytest

from shardkit.cleaning import inventory as inventory_module
from shardkit.cleaning.decide import LIVE, TABLES, plan_cleaning
from shardkit.cleaning.inventory import take_inventory
from shardkit.cleaning.remove import marked, remove
from shardkit.dataset import commit as commit_module
from shardkit.dataset.commit import commit_version
from shardkit.dataset.manifest import decode_manifest, manifest_path
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import ConflictError, StorageError
from shardkit.runtime.owner import Owner, this_process
from shardkit.storage import files as storage
from tests.support.histories import FINGERPRINTS, NUM_SHARDS, Place, describe, shard_path

NEEDED = {shard_path(FINGERPRINTS[0], index): 5 for index in range(NUM_SHARDS)}


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "set")
    place.write_shards(FINGERPRINTS[0])
    return place


def commit(place, **hooks):
    manifest, table = describe(FINGERPRINTS[0], 1, "5" * 32)
    commit_version(str(place.root), 1, decode_manifest(manifest, "here"), table, NEEDED, **hooks)


def clean(place, delete=None):
    """Removes all that no version names, however young, and knows no lock of the other."""
    root, work_root = str(place.root), str(place.root.parent / "elsewhere")
    with marked(root) as mark:
        inventory = take_inventory(root, work_root)
        plan = plan_cleaning(inventory, now=mark.now, older_than_s=0)
        remove(plan, inventory, root, work_root, mark, **({} if delete is None else {"delete": delete}))
        return plan


def test_a_cleaning_between_table_and_manifest_takes_nothing(place):
    plans = []
    commit(place, before_manifest=lambda: plans.append(clean(place)))
    assert plans[0].groups == ()
    assert plans[0].kept[LIVE][0] == NUM_SHARDS + 1
    assert len(open_dataset(place.root).shards) == NUM_SHARDS
    assert place.missing() == []


def test_a_commit_waits_for_a_cleaning_and_finds_out_what_is_gone(place, monkeypatch):
    monkeypatch.setattr(commit_module, "_LOOK_S", 0.01)
    # On another machine, so that the process number tells nothing.
    monkeypatch.setattr("shardkit.cleaning.remove.this_process", lambda: elsewhere(1))
    raised = []

    def commit_elsewhere():
        with pytest.raises(ConflictError) as caught:
            commit(place)
        raised.append(caught.value)

    writer = threading.Thread(target=commit_elsewhere)

    def delete(path):
        if not writer.ident:
            writer.start()
            # It has withdrawn its table when it waits.
            waits.wait(30)
        Path(path).unlink()

    waits = threading.Event()
    wait = commit_module._wait_for_end
    monkeypatch.setattr(commit_module, "_wait_for_end", lambda *args: (waits.set(), wait(*args)))
    clean(place, delete)
    writer.join(30)
    assert "is not there any more" in str(raised[0])
    assert raised[0].exit_code == 4
    assert list_versions(place.root) == []


def elsewhere(pid):
    return Owner(host="other", machine="another", pid=pid)


def dead():
    # The number of the process is higher than any that Linux gives.
    return msgspec.structs.replace(this_process(), pid=2**22 + 1)


@pytest.mark.parametrize("owner", [dead, None])
def test_the_mark_of_a_dead_cleaning_holds_no_commit_up(place, monkeypatch, owner):
    monkeypatch.setattr(commit_module, "_wait_for_end", lambda *args: pytest.fail("it waits"))
    if owner is None:
        place.now -= commit_module.SIGN_S + 1
    content = msgspec.json.encode(elsewhere(1) if owner is None else owner())
    place.write("manifests/.cleaning-0123456789abcdef", content)
    commit(place)
    assert place.missing() == []
    assert list_versions(place.root) == [1]


def test_a_commit_waits_until_the_mark_of_another_host_is_gone(place, monkeypatch):
    monkeypatch.setattr(commit_module, "_LOOK_S", 0.01)
    name = "manifests/.cleaning-0123456789abcdef"
    place.write(name, msgspec.json.encode(elsewhere(1)))
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        assert place.tables() == []
        if len(looks) == 3:
            (place.root / name).unlink()

    monkeypatch.setattr(commit_module.time, "sleep", sleep)
    commit(place)
    assert len(looks) == 3
    assert list_versions(place.root) == [1]


def test_a_commit_that_took_longer_than_its_table_is_spared_does_not_happen(place, monkeypatch):
    clock = iter([0.0, commit_module.COMMIT_S + 1, commit_module.COMMIT_S + 1, commit_module.COMMIT_S + 1])
    monkeypatch.setattr(commit_module.time, "monotonic", lambda: next(clock))
    with pytest.raises(StorageError, match="the commit took too long"):
        commit(place)
    assert list_versions(place.root) == []


@pytest.mark.parametrize("gone", ["table", "shard", "size"])
def test_what_a_version_names_is_there_when_it_is_committed(place, gone):
    def remove_one():
        if gone == "table":
            place.tables()[0].unlink()
        elif gone == "shard":
            (place.root / shard_path(FINGERPRINTS[0], 1)).unlink()
        else:
            place.write(shard_path(FINGERPRINTS[0], 0), b"other bytes")

    with pytest.raises(ConflictError, match="is not there any more"):
        commit(place, before_manifest=remove_one)
    assert list_versions(place.root) == []


def test_a_table_that_was_put_again_stays(place):
    manifest, table = describe(FINGERPRINTS[0], 1, "5" * 32)
    path = place.root / decode_manifest(manifest, "here").shard_table.path
    place.write(str(path.relative_to(place.root)), table)
    # Of a conversion that waits for a cleaning since.
    os.utime(path, (path.stat().st_mtime - 1000, path.stat().st_mtime - 1000))
    root, work_root = str(place.root), str(place.root.parent / "elsewhere")
    with marked(root) as mark:
        inventory = take_inventory(root, work_root)
        plan = plan_cleaning(inventory, now=mark.now, older_than_s=0)
        assert [group.kind for group in plan.groups if group.folder == "manifests"] == [TABLES]
        path.unlink()
        place.write(str(path.relative_to(place.root)), table)
        removed = remove(plan, inventory, root, work_root, mark)
    assert "manifests" in removed.spared
    assert path.exists()


def test_a_mark_is_renewed_under_another_name_and_leaves_nothing(place):
    with marked(str(place.root)) as mark:
        first = sorted(place.root.glob("manifests/*"))
        assert not mark.is_old
        mark.renew()
        second = sorted(place.root.glob("manifests/.*"))
        assert (len(first), len(second)) == (1, 1)
        assert first != second
    assert not (place.root / "manifests").exists()


def test_a_mark_counts_its_age_by_the_clock_of_the_store(place, monkeypatch):
    monkeypatch.setattr("shardkit.cleaning.remove.time.time", lambda: 0.0)
    with marked(str(place.root)) as mark:
        assert mark.now == pytest.approx((place.root / shard_path(FINGERPRINTS[0], 0)).stat().st_mtime, abs=60)


@pytest.mark.parametrize("num_renewals", [0, 1])
def test_a_mark_that_is_there_although_it_failed_to_be_put_is_removed(place, monkeypatch, num_renewals):
    """As where the folder cannot be synced after the link. Writers would wait for it for a quarter of an hour."""
    put = storage.commit_exclusive
    marks = []

    def fail_behind(path, content):
        put(path, content)
        marks.append(path)
        if len(marks) > num_renewals:
            raise StorageError("writing failed", where=path)

    monkeypatch.setattr(storage, "commit_exclusive", fail_behind)
    with pytest.raises(StorageError, match="writing failed"), marked(str(place.root)) as mark:
        mark.renew()
    assert len(marks) == num_renewals + 1
    assert not (place.root / "manifests").exists()


def test_a_version_that_another_cleaning_drops_meanwhile_is_no_longer_there(place, monkeypatch):
    commit(place)
    place.write_shards(FINGERPRINTS[1])
    place.commit(FINGERPRINTS[1])
    find = inventory_module.find_versions

    def find_and_drop(root):
        found = find(root)
        (place.root / manifest_path(1)).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(inventory_module, "find_versions", find_and_drop)
    assert [version.version for version in take_inventory(str(place.root), str(place.root / "work")).versions] == [2]
    assert list_versions(place.root) == [2]


def test_a_table_that_a_dropped_version_named_keeps_nothing(place):
    commit(place)
    place.write_shards(FINGERPRINTS[1])
    place.commit(FINGERPRINTS[1])
    root, work_root = str(place.root), str(place.root.parent / "elsewhere")
    with marked(root) as mark:
        inventory = take_inventory(root, work_root)
        plan = plan_cleaning(inventory, now=mark.now + 1, older_than_s=0, keep_versions=1)
        removed = remove(plan, inventory, root, work_root, mark)
    assert (removed.num_files, removed.spared) == (NUM_SHARDS + 2, ())
    assert list_versions(place.root) == [2]
    assert place.missing() == []
