"""Appending in every store: what comes is what a folder gets, and two that meet make two versions."""

from pathlib import Path

import pytest

from shardkit.dataset.open import list_versions, open_dataset
from shardkit.storage import files as storage
from shardkit.verify.shards import verify_dataset
from tests.support.campaign import in_campaign
from tests.support.commands import run_shardkit

pytestmark = pytest.mark.full


def write(path, first, num_rows=1500):
    path.write_text("x,y\n" + "".join(f"{i},{i / 8}\n" for i in range(first, first + num_rows)))


@pytest.mark.parametrize("server", ["moto", *in_campaign("fake-gcs", "azurite", "seaweedfs", "hdfs")], indirect=True)
@pytest.mark.slow
def test_what_is_appended_in_a_store_is_what_is_appended_in_a_folder(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url, folder = f"{server.url}/{tmp_path.name}", tmp_path / "out"
    raw = f"{server.url}/{tmp_path.name}-raw"

    def put(name, first):
        write(tmp_path / name, first)
        storage.put_file(tmp_path / name, f"{raw}/{name}")

    def both(*options):
        for destination in (url, folder):
            done = run_shardkit("convert", raw, destination, "--workers", "1", *options)
            assert done.returncode == 0, done.stderr
        return done

    put("day?1.csv", 0)
    both("--split", "train=0.8", "--split", "test=0.2")
    put("day?2.csv", 1500)
    both("--append")
    assert "Nothing to append: all 2 files are in version 2" in both("--append").stdout
    stored, local = open_dataset(url), open_dataset(folder)
    assert list(stored.shards) == list(local.shards)
    assert stored.manifest.splits == local.manifest.splits
    assert stored.manifest.accounting == local.manifest.accounting
    assert verify_dataset(stored).is_whole
    for shard in local.shards:
        assert storage.read_bytes(stored.shard_url(shard)) == Path(local.shard_url(shard)).read_bytes()
    assert run_shardkit("convert", url, tmp_path / "copy").returncode == 0
    assert open_dataset(tmp_path / "copy").manifest.features == local.manifest.features
    assert [(s.name, s.num_examples) for s in open_dataset(tmp_path / "copy").manifest.splits] == [
        (s.name, s.num_examples) for s in local.manifest.splits
    ]
    storage.delete_file(f"{raw}/day?2.csv")
    put("day?2.csv", 10_000)
    changed = run_shardkit("convert", raw, url, "--append")
    assert changed.returncode == 2, changed.stderr
    assert "a file changed since it was converted in day?2.csv" in changed.stderr
    assert list_versions(url) == [1, 2]
