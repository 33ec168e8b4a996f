"""Cleaning never removes what a manifest names, whatever happened before or happens meanwhile; what is dead goes."""

import os

import msgspec
import pytest

from shardkit.cleaning.decide import (
    DOCTOR,
    FOREIGN,
    LIVE,
    OLD_DATA,
    ORPHANS,
    TABLES,
    TEMPORARY,
    UNFINISHED,
    WORK,
    YOUNG,
    Upload,
    plan_cleaning,
    totals,
)
from shardkit.cleaning.inventory import take_inventory
from shardkit.cleaning.remove import remove
from shardkit.conversion.layout_math import shard_file_name
from shardkit.dataset.manifest import manifest_path
from shardkit.dataset.open import list_versions
from shardkit.errors import UnsafeError, UsageError
from shardkit.units import parse_duration
from tests.support.histories import DAY, FINGERPRINTS, NUM_SHARDS, WEEK, Place, shard_path


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "set")


def test_an_unfinished_conversion_goes_when_its_youngest_file_is_old(place):
    place.write(shard_path(FINGERPRINTS[0], 0))
    place.now += 3 * DAY
    place.write(shard_path(FINGERPRINTS[0], 1))
    place.now += 6 * DAY
    assert place.plan()[1].groups == ()
    assert place.plan()[1].kept == {YOUNG: (2, 10)}
    place.now += 1 * DAY
    plan, removed = place.clean()
    assert totals(plan.groups)[UNFINISHED][:2] == (2, 10)
    assert (removed.num_files, removed.num_bytes, removed.spared) == (2, 10, ())
    assert list(place.root.iterdir()) == []


def test_a_live_conversion_keeps_all_that_it_has(place):
    handle = place.hold(FINGERPRINTS[0])
    place.write_shards(FINGERPRINTS[0])
    place.now += 100 * DAY
    plan, removed = place.clean()
    assert removed.num_files == 0
    assert plan.kept == {LIVE: (4, 14)}
    os.close(handle)
    plan, _ = place.clean()
    assert set(totals(plan.groups)) == {UNFINISHED, WORK}
    assert place.left() == []


def test_a_live_conversion_keeps_the_tables_without_a_manifest(place):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0], is_torn=True)
    place.now += 100 * DAY
    handle = place.hold(FINGERPRINTS[0])
    plan, removed = place.clean()
    assert (plan.groups, removed.num_files) == ((), 0)
    os.close(handle)
    inventory, plan = place.plan()
    # The conversion goes on between the plan and the removal.
    handle = place.hold(FINGERPRINTS[0])
    removed = remove(plan, inventory, str(place.root), str(place.work_root), None)
    assert len(place.tables()) == 1
    assert "manifests" in removed.spared
    os.close(handle)


@pytest.mark.parametrize("folder", ["data", "manifests", "work", "work/queries"])
def test_nothing_behind_a_link_is_removed(place, tmp_path, folder):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    place.write_shards(FINGERPRINTS[1])
    os.close(place.hold(FINGERPRINTS[1]))
    place.write("work/queries/0.arrow")
    place.now += 100 * DAY
    (tmp_path / "elsewhere/work").mkdir(parents=True)
    (place.root / folder).rename(tmp_path / "elsewhere" / folder)
    (place.root / folder).symlink_to(tmp_path / "elsewhere" / folder)
    before = place.left(), sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsafeError, match=f"{folder.removeprefix('work/')} is a link"):
        place.clean()
    assert (place.left(), sorted(tmp_path.rglob("*"))) == before


def test_files_of_others_are_left_alone(place):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    mine = [
        "data/notes.txt",
        f"data/{FINGERPRINTS[1]}/notes.txt",
        "data/mine/train-00000-of-00001.tfrecord.gz",
        "x.csv",
    ]
    for path in [*mine, f"data/{FINGERPRINTS[1]}/deep/train-00000-of-00001.tfrecord.gz", "manifests/notes"]:
        place.write(path)
    place.now += 100 * DAY
    before = place.left()
    plan, _ = place.clean()
    assert plan.kept[FOREIGN][0] == 5
    assert place.left() == before


def test_files_that_were_indexed_are_never_removed(place):
    for fingerprint in FINGERPRINTS[:2]:
        place.write_shards(fingerprint)
        place.commit(fingerprint, source="index")
    place.write(f"data/{FINGERPRINTS[0]}/{shard_file_name('other', 0, 1, '.tfrecord.gz')}")
    place.now += 100 * DAY
    place.clean(keep_versions=1)
    assert list_versions(place.root) == [2]
    assert len([path for path in place.left() if path.startswith("data/")]) == 5


def test_what_lies_beside_committed_data_goes(place):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[1], is_torn=True)
    place.write(f"data/{FINGERPRINTS[0]}/train-00007-of-00009.tfrecord.gz")
    place.write(f"data/{FINGERPRINTS[0]}/.train-00000-of-00002.tfrecord.gz.{'a' * 16}")
    place.write(f"manifests/.00000002.json.{'b' * 16}")
    place.write(".shardkit-doctor-0123456789abcdef/race-0")
    place.now += WEEK
    plan, _ = place.clean()
    assert {kind: found[0] for kind, found in totals(plan.groups).items()} == {
        ORPHANS: 1,
        TEMPORARY: 2,
        TABLES: 1,
        DOCTOR: 1,
    }
    assert len(place.left()) == 4
    assert place.missing() == []


def test_the_table_of_a_commit_that_was_cut_off_goes(place):
    for fingerprint in FINGERPRINTS[:2]:
        place.write_shards(fingerprint)
    place.commit(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[1], is_torn=True)
    place.commit(FINGERPRINTS[1])
    assert len(place.tables()) == 3
    place.now += WEEK
    plan, removed = place.clean()
    assert {kind: found[0] for kind, found in totals(plan.groups).items()} == {TABLES: 1}
    assert (removed.num_files, removed.spared) == (1, ())
    assert len(place.tables()) == 2
    assert place.missing() == []


def test_uploads_of_a_live_conversion_go_on(place):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    handle = place.hold(FINGERPRINTS[1])
    uploads = tuple(Upload(shard_path(f, 0), f"upload {f}", place.now - 100 * DAY) for f in FINGERPRINTS[1:3])
    inventory = msgspec.structs.replace(take_inventory(str(place.root), str(place.work_root)), uploads=uploads)
    plan = plan_cleaning(inventory, now=place.now, older_than_s=WEEK)
    assert [group.upload for group in plan.groups] == [uploads[1]]
    assert plan.kept[LIVE][0] == 3
    os.close(handle)


def test_old_versions_go_when_they_were_replaced_long_ago(place):
    for fingerprint in FINGERPRINTS[:3]:
        place.write_shards(fingerprint)
        place.commit(fingerprint)
        place.now += 5 * DAY
    assert [g.version for g in place.plan(keep_versions=1)[1].groups if g.version] == [1]
    place.now += 2 * DAY
    plan, removed = place.clean(keep_versions=1)
    assert list_versions(place.root) == [3]
    assert removed.num_files == 2 * (NUM_SHARDS + 2)
    assert totals(plan.groups)[OLD_DATA][0] == 2 * (NUM_SHARDS + 1)
    assert place.missing() == []
    assert list_versions(place.root) == [3]


def test_manifests_go_before_data_and_the_oldest_first(place):
    for fingerprint in FINGERPRINTS[:3]:
        place.write_shards(fingerprint)
        place.commit(fingerprint)
    place.now += WEEK
    deleted = []

    def delete(path):
        deleted.append(os.path.relpath(path, place.root))
        os.unlink(path)

    place.clean(keep_versions=1, delete=delete)
    assert deleted[:2] == [manifest_path(1), manifest_path(2)]
    assert len(deleted) == 2 * (NUM_SHARDS + 2)


def test_data_that_a_kept_version_also_takes_stays(place):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    place.now += WEEK
    place.clean(keep_versions=1)
    assert list_versions(place.root) == [2]
    assert place.missing() == []


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 99}', b"\xff"])
@pytest.mark.parametrize("name", ["00000001.json", "00000002.json", "1.json"])
def test_a_manifest_that_cannot_be_read_ends_it(place, content, name):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    place.write_shards(FINGERPRINTS[1])
    place.write(f"manifests/{name}", content)
    place.now += 100 * DAY
    before = place.left()
    with pytest.raises(UnsafeError, match="it is unknown which files are needed") as caught:
        place.clean(keep_versions=1)
    assert caught.value.exit_code == 7
    assert place.left() == before


def test_a_shard_table_that_is_missing_ends_it(place):
    place.write_shards(FINGERPRINTS[0])
    place.commit(FINGERPRINTS[0])
    place.tables()[0].unlink()
    with pytest.raises(UnsafeError):
        place.clean()


def test_where_there_is_nothing_there_is_nothing_to_clean(place):
    with pytest.raises(UsageError, match="there is no dataset"):
        place.plan()


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", WEEK), ("12h", 43_200), ("1.5 m", 90), ("90s", 90), ("0", 0), ("2W", 14 * DAY)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1y", "1d2h", "inf"])
def test_no_durations(text):
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


def test_a_version_that_was_replaced_too_recently_stays_and_it_is_said(place):
    for fingerprint in FINGERPRINTS[:2]:
        place.write_shards(fingerprint)
        place.commit(fingerprint)
    _, plan = place.plan(keep_versions=1)
    assert plan.groups == ()
    assert set(plan.kept) == {"named by version 1, replaced too recently", "named by version 2"}
    place.now += WEEK
    _, plan = place.plan(keep_versions=1)
    assert set(plan.kept) == {"named by version 2"}
