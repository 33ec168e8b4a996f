"""What lies where a file of a dataset is expected: nothing is waited for, and the message says what to run."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

import shardkit
from shardkit.dataset.manifest import manifest_path, shard_table_path
from shardkit.dataset.open import open_dataset
from shardkit.errors import DamageError
from shardkit.features import arrow_schema, make_feature
from shardkit.storage.files import read_bytes
from shardkit.testing import write_dataset
from shardkit.verify.shards import verify_dataset
from tests.support.stores.storage_makers import as_nobody

FEATURES = (make_feature("id", "int64"),)
TABLE, MANIFEST = shard_table_path(1, "0" * 32), manifest_path(1)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path):
    batch = pa.record_batch([pa.array(range(100))], arrow_schema(FEATURES))
    write_dataset(tmp_path / "set", FEATURES, {"train": batch}, num_shards=2, block_examples=5)
    return tmp_path / "set"


def second_shard(folder) -> Path:
    return next(folder.glob("data/*/train-00001-of-00002.*"))


def put_pipe(path):
    os.mkfifo(path)


def put_socket(path):
    # The path of a socket has at most 108 bytes.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


def put_device(path):
    path.symlink_to("/dev/zero")


def put_folder(path):
    path.mkdir()


OTHERS = {"pipe": put_pipe, "socket": put_socket, "device": put_device, "folder": put_folder}


def read_all(folder):
    return [i for batch in shardkit.open(folder)["train"].batches(global_batch_size=10) for i in batch["id"].tolist()]


@pytest.mark.parametrize("kind", OTHERS)
def test_in_place_of_a_shard_it_is_damage_for_readers_and_verify(folder, kind):
    shard = second_shard(folder)
    shard.unlink()
    OTHERS[kind](shard)
    with pytest.raises(DamageError, match=f"it is a {kind}, not a file") as caught:
        read_all(folder)
    assert str(shard) in caught.value.where
    assert caught.value.next_step == f"Run: shardkit verify {folder}"
    report = verify_dataset(open_dataset(folder))
    assert [str(damage.path) for damage in report.damages] == [str(shard.relative_to(folder))]
    assert f"it is a {kind}" in report.damages[0].problem


@pytest.mark.parametrize("kind", OTHERS)
def test_in_place_of_the_shard_table_it_is_damage_for_readers_and_verify(folder, kind):
    (folder / TABLE).unlink()
    OTHERS[kind](folder / TABLE)
    with pytest.raises(DamageError, match=rf"the shard table cannot be read in .*{TABLE}: it is a {kind}") as caught:
        read_all(folder)
    assert caught.value.next_step == f"Run: shardkit verify {folder}"
    assert [damage.path for damage in verify_dataset(open_dataset(folder)).damages] == [TABLE]


@pytest.mark.parametrize("kind", OTHERS)
def test_in_place_of_the_manifest_it_is_damage(folder, kind):
    (folder / MANIFEST).unlink()
    OTHERS[kind](folder / MANIFEST)
    with pytest.raises(DamageError, match=rf"the manifest cannot be read in .*{MANIFEST}: it is a {kind}") as caught:
        shardkit.open(folder)
    assert "shardkit convert" in caught.value.next_step


def test_a_file_in_place_of_the_folder_of_shards_is_a_missing_shard(folder):
    data = second_shard(folder).parent
    shutil.rmtree(data)
    data.write_bytes(b"")
    with pytest.raises(DamageError, match="a shard is missing") as caught:
        read_all(folder)
    assert caught.value.next_step == f"Run: shardkit verify {folder}"


def test_a_link_to_nowhere_in_place_of_the_manifest_is_damage(folder):
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to("nowhere")
    with pytest.raises(DamageError, match=MANIFEST):
        shardkit.open(folder)


@pytest.mark.full
@pytest.mark.parametrize("name", [TABLE, MANIFEST, "shard"])
def test_what_may_not_be_read_is_no_damage(folder, name):
    # Folders of pytest are closed to others.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        copy = Path(shutil.copytree(folder, Path(place, "set")))
        (second_shard(copy) if name == "shard" else copy / name).chmod(0)
        message = as_nobody(lambda: verify_dataset(open_dataset(str(copy))))
    assert message.startswith("StorageError")
    assert "permission denied" in message
    assert "may be read" in message


@pytest.mark.parametrize("name", [TABLE, MANIFEST])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_flipped_document_says_what_to_run(folder, name, place):
    content = bytearray((folder / name).read_bytes())
    content[int(len(content) * place)] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(DamageError, match=name) as caught:
        read_all(folder)
    command = f"shardkit verify {folder}" if name == TABLE else "shardkit convert"
    assert command in caught.value.next_step


def test_the_shard_table_of_another_dataset_says_what_to_run(folder, tmp_path):
    other = tmp_path / "other"
    batch = pa.record_batch([pa.array(range(90))], arrow_schema(FEATURES))
    write_dataset(other, FEATURES, {"train": batch}, num_shards=2, block_examples=5)
    shutil.copy(other / TABLE, folder / TABLE)
    with pytest.raises(DamageError, match="not the one that the manifest names") as caught:
        read_all(folder)
    assert caught.value.next_step == f"Run: shardkit verify {folder}"


def test_what_a_user_gives_may_be_a_pipe(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, b"name = 1")
    os.close(writing)
    assert read_bytes(f"/dev/fd/{reading}") == b"name = 1"
    os.close(reading)
