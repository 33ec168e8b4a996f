"""Cleaning in every store: what no manifest names goes when it is old, and the dataset stays whole."""

import json

import pytest

from shardkit.dataset.commit import commit_version
from shardkit.dataset.manifest import decode_manifest, manifest_path, shard_table_path
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.storage import files as storage
from shardkit.storage.clients import client_of
from shardkit.verify.shards import verify_dataset
from tests.support.commands import run_shardkit
from tests.support.histories import FINGERPRINTS, NUM_SHARDS, describe, shard_path

pytestmark = pytest.mark.full

DEAD = f"data/{'d' * 32}/train-00000-of-00002.tfrecord.gz"


def names(url):
    return sorted(file.path.removeprefix(f"{url}/") for file in storage.list_files(url))


@pytest.fixture
def dataset(server, tmp_path, monkeypatch):
    """A dataset of two versions, with what dead conversions left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"{server.url}/{tmp_path.name}"
    rows = tmp_path / "rows.csv"
    rows.write_text("x,y\n" + "".join(f"{i},{i / 8}\n" for i in range(2000)))
    for seed in ("1", "2"):
        done = run_shardkit("convert", rows, url, "--num-shards", "2", "--seed", seed, "--overwrite", "--workers", "1")
        assert done.returncode == 0, done.stderr
    for name in (DEAD, ".shardkit-doctor-0123456789abcdef/race-0"):
        (tmp_path / "dead").write_bytes(name.encode())
        storage.put_file(tmp_path / "dead", f"{url}/{name}")
    return url


@pytest.mark.slow
def test_what_is_dead_goes_and_what_is_named_stays(dataset, tmp_path):
    before = names(dataset)
    assert "too young" in run_shardkit("clean", dataset, "--delete").stdout
    listed = run_shardkit("clean", dataset, "--older-than", "0")
    assert listed.returncode == 0, listed.stderr
    assert "would remove: 2 files" in listed.stdout
    assert names(dataset) == before
    removed = run_shardkit("clean", dataset, "--older-than", "0", "--delete", "--json")
    assert removed.returncode == 0, removed.stderr
    assert json.loads(removed.stdout)["removed"]["num_files"] == 2
    assert len(names(dataset)) == len(before) - 2
    for version in (1, 2):
        assert verify_dataset(open_dataset(dataset, version)).is_whole
    gone = run_shardkit("clean", dataset, "--older-than", "0", "--keep-versions", "1", "--delete")
    assert gone.returncode == 0, gone.stderr
    assert list_versions(dataset) == [2]
    assert len(names(dataset)) == 5
    assert verify_dataset(open_dataset(dataset)).is_whole
    assert "ok: there is nothing to remove" in run_shardkit("clean", dataset, "--older-than", "0").stdout
    assert list((tmp_path / "cache" / "shardkit").iterdir()) == []


@pytest.mark.slow
def test_a_manifest_that_is_damaged_ends_it(dataset, tmp_path):
    storage.delete_file(f"{dataset}/manifests/00000001.json")
    storage.commit_exclusive(f"{dataset}/manifests/00000001.json", b"{}")
    before = names(dataset)
    done = run_shardkit("clean", dataset, "--older-than", "0", "--delete")
    assert done.returncode == 7
    assert "it is unknown which files are needed" in done.stderr
    assert "Nothing was removed." in done.stderr
    assert names(dataset) == before


def test_a_cleaning_of_another_host_takes_nothing_that_is_about_to_be_committed(server, tmp_path, monkeypatch):
    url = f"{server.url}/{tmp_path.name}"
    fingerprint = FINGERPRINTS[0]
    needed = {shard_path(fingerprint, index): 5 for index in range(NUM_SHARDS)}
    for path in needed:
        storage.commit_exclusive(f"{url}/{path}", b"shard")
    manifest, table = describe(fingerprint, 1, "5" * 32)
    # Another folder for locks is another host.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    answers = []

    def clean():
        answers.append(run_shardkit("clean", url, "--older-than", "0", "--delete"))

    commit_version(url, 1, decode_manifest(manifest, "here"), table, needed, before_manifest=clean)
    assert answers[0].returncode == 0, answers[0].stderr
    assert "of a live conversion" in answers[0].stdout
    assert names(url) == sorted([*needed, manifest_path(1), shard_table_path(1, "5" * 32)])
    assert len(open_dataset(url).shards) == NUM_SHARDS


@pytest.mark.parametrize("server", ["moto", "seaweedfs"], indirect=True)
def test_unfinished_uploads_of_the_dataset_are_aborted(server, tmp_path):
    url = f"{server.url}/{tmp_path.name}"
    client = client_of(url)
    bucket, _, prefix = url.removeprefix("s3://").partition("/")

    def begin(key):
        made = client.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        client.call_s3("upload_part", Bucket=bucket, Key=key, PartNumber=1, UploadId=made["UploadId"], Body=b"x")

    begin(f"{prefix}/{DEAD}")
    begin(f"{prefix}/manifests/00000001.json")
    begin(f"{prefix}-another/{DEAD}")
    begin(f"{prefix}/raw/mine.bin")
    storage.commit_exclusive(f"{url}/{DEAD}", b"x")
    assert len(storage.list_uploads(url)) == 3
    assert run_shardkit("clean", url, "--delete").returncode == 0
    # moto says of every upload that it began in 2010.
    assert len(storage.list_uploads(url)) == (1 if server.name == "moto" else 3)
    done = run_shardkit("clean", url, "--older-than", "0", "--delete")
    assert done.returncode == 0, done.stderr
    assert ("unfinished uploads" in done.stdout) == (server.name != "moto")
    assert [upload.path for upload in storage.list_uploads(url)] == [f"{url}/raw/mine.bin"]
    assert len(storage.list_uploads(f"{url}-another")) == 1
    assert not storage.exists(f"{url}/{DEAD}")
