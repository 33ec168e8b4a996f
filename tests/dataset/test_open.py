"""Opening a dataset: the highest version, and what is said when there is none or it is damaged."""

import pytest

from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import (
    Created,
    Manifest,
    ShardInfo,
    SplitInfo,
    describe_table,
    encode_manifest,
    manifest_path,
    shard_table_path,
)
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.errors import DamageError, UsageError
from shardkit.storage import files as storage


def commit(root, version, splits=("train", "test")):
    """Writes a version with two shards a split, as a conversion does."""
    shards = [
        ShardInfo(
            split=split,
            shard_index=index,
            path=f"data/abc/{split}-{index:05d}-of-00002.tfrecord.gz",
            num_examples=version,
            num_bytes=30,
            num_uncompressed_bytes=40,
            crc32c=0,
            sha256="0" * 64,
            block_num_bytes=(12,),
            block_num_uncompressed_bytes=(40,),
            block_num_examples=(version,),
            block_crc32c=(0,),
        )
        for split in splits
        for index in range(2)
    ]
    table = encode_shard_table(shards)
    manifest = Manifest(
        format_version=1,
        name="set",
        fingerprint="abc",
        created=Created(at="2026-01-01T00:00:00Z", commit_id=str(version), inputs=(), tool_versions={}),
        recipe={},
        compression="gzip",
        features=(),
        splits=tuple(
            SplitInfo(name=s, num_shards=2, num_examples=2 * version, num_bytes=60, num_uncompressed_bytes=80)
            for s in splits
        ),
        accounting=Accounting(num_rows=4 * version, num_examples=4 * version),
        shard_table=describe_table(version, "0" * 32, table, len(shards)),
    )
    storage.commit_exclusive(storage.join(root, shard_table_path(version, "0" * 32)), table)
    storage.commit_exclusive(storage.join(root, manifest_path(version)), encode_manifest(manifest))


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "set")


def test_the_highest_version_is_the_dataset(root):
    for version in (1, 2, 10):
        commit(root, version)
    assert list_versions(root) == [1, 2, 10]
    dataset = open_dataset(root)
    assert (dataset.version, dataset.manifest.created.commit_id, dataset.url) == (10, "10", root)
    assert open_dataset(root, version=2).manifest.created.commit_id == "2"


def test_relative_paths_and_slashes_do_not_matter(root, tmp_path, monkeypatch):
    commit(root, 1)
    monkeypatch.chdir(tmp_path)
    for spelling in ("set", "set/", "./set", f"file://{root}"):
        assert open_dataset(spelling).url == root


def test_shards_by_split_and_where_they_lie(root):
    commit(root, 3)
    dataset = open_dataset(root)
    assert [(s.split, s.shard_index) for s in dataset.shards] == [("train", 0), ("train", 1), ("test", 0), ("test", 1)]
    assert [s.shard_index for s in dataset.split_shards("test")] == [0, 1]
    assert dataset.shard_url(dataset.shards[0]) == f"{root}/data/abc/train-00000-of-00002.tfrecord.gz"
    with pytest.raises(UsageError, match=r"no split 'val'\. It has: train, test"):
        dataset.split_shards("val")


@pytest.mark.parametrize(
    "leftover", [None, "manifests/00000001-0123456789abcdef.shards.parquet", "manifests/.00000001.json.ab12"]
)
def test_what_a_killed_conversion_leaves_is_no_dataset(root, leftover):
    if leftover:
        storage.commit_exclusive(f"{root}/{leftover}", b"{}")
    assert list_versions(root) == []
    with pytest.raises(UsageError, match="there is no dataset in") as caught:
        open_dataset(root)
    assert root in str(caught.value)
    assert "run the same `shardkit convert` again" in str(caught.value)


def test_an_unknown_version_names_the_known_ones(root):
    commit(root, 1)
    commit(root, 2)
    with pytest.raises(UsageError, match=r"there is no version 3 in .*It has: 1, 2"):
        open_dataset(root, version=3)


def test_a_damaged_version_is_never_passed_over_in_silence(root):
    commit(root, 4)
    storage.commit_exclusive(f"{root}/manifests/00000005.json", b'{"format_version": 1')
    with pytest.raises(DamageError, match=r"00000005\.json") as caught:
        open_dataset(root)
    assert "Nothing was changed. Version 4 may still be whole: use --version 4. Give version 5 up:" in str(caught.value)
    assert "--drop-broken-version" in str(caught.value)
    assert open_dataset(root, version=4).manifest.created.commit_id == "4"


def test_a_damaged_only_version_offers_no_other(root):
    storage.commit_exclusive(f"{root}/manifests/00000001.json", b"")
    with pytest.raises(DamageError) as caught:
        open_dataset(root)
    assert "--version" not in str(caught.value)


def test_a_newer_format_is_said_to_be_newer(root):
    commit(root, 1)
    storage.commit_exclusive(f"{root}/manifests/00000002.json", b'{"format_version": 2}')
    with pytest.raises(UsageError, match="Install a newer shardkit"):
        open_dataset(root)


@pytest.mark.parametrize("damage", [None, b"", b"other bytes"])
def test_a_missing_or_changed_shard_table_is_damage(root, tmp_path, damage):
    commit(root, 1)
    table = tmp_path / "set" / shard_table_path(1, "0" * 32)
    table.unlink() if damage is None else table.write_bytes(damage)
    dataset = open_dataset(root)
    with pytest.raises(DamageError, match=r"00000001-0{16}\.shards\.parquet") as caught:
        _ = dataset.shards
    assert caught.value.exit_code == 1


def test_secrets_in_a_location_are_not_shown(tmp_path):
    with pytest.raises(UsageError) as caught:
        open_dataset("memory://key:secret@bucket/none")
    assert "secret" not in str(caught.value)
