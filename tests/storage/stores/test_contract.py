"""What every store has to do, asked through the one door: the same on a folder, in memory, and on five servers."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardkit.errors import ConflictError, StorageError, UsageError
from shardkit.storage import files as storage
from shardkit.storage import objects
from shardkit.storage.clients import client_of
from tests.support.campaign import in_campaign
from tests.support.stores.contenders import NUM_ROUNDS, race
from tests.support.stores.servers import use

pytestmark = pytest.mark.full

NUM_WRITERS = 8


def put(path, content, tmp_path):
    local = tmp_path / "content"
    local.write_bytes(content)
    storage.put_file(local, path)


def test_what_was_put_is_read_whole_and_in_ranges(place, tmp_path):
    content = bytes(range(256)) * 1000
    path = storage.join(place, "data", "a.bin")
    put(path, content, tmp_path)
    assert storage.exists(path)
    assert storage.stat_file(path).num_bytes == len(content)
    assert storage.read_bytes(path) == content
    for start, num_bytes in ((0, 1), (0, len(content)), (255, 3), (len(content) - 7, 7)):
        assert storage.read_range(path, start, num_bytes) == content[start : start + num_bytes]
    with storage.open_read(path) as file:
        file.seek(1000)
        assert file.read(5) == content[1000:1005]


def test_an_open_file_is_one_like_any_other(place, tmp_path):
    content = bytes(range(256)) * 10_000
    path = storage.join(place, "a")
    put(path, content, tmp_path)
    with storage.open_read(path) as file:
        assert file.read(3) + file.read(7) == content[:10]
        assert file.seek(-5, os.SEEK_END) == len(content) - 5
        assert file.read() == content[-5:]
        assert file.read() == b""
        assert file.seek(100) == file.tell() == 100
        assert file.seek(20, os.SEEK_CUR) == 120
        buffer = bytearray(2_000_000)
        assert file.readinto(buffer) == len(buffer)
        assert buffer == content[120 : 120 + len(buffer)]
        assert file.read() == content[120 + len(buffer) :]
        with pytest.raises((ValueError, OSError)):
            file.seek(-1)
        assert file.seek(len(content) + 9) == len(content) + 9
        assert file.read(1) == b""


def test_an_empty_file_is_a_file(place, tmp_path):
    path = storage.join(place, "empty")
    put(path, b"", tmp_path)
    assert storage.stat_file(path).num_bytes == 0
    assert storage.read_bytes(path) == b""


def test_a_file_of_many_parts_arrives_whole(place, tmp_path):
    content = b"".join(i.to_bytes(4, "little") for i in range(10 * 2**20 + 1))
    path = storage.join(place, "large.bin")
    put(path, content, tmp_path)
    assert storage.stat_file(path).num_bytes == len(content)
    for start in (0, 16 * 2**20 - 2, len(content) - 4):
        assert storage.read_range(path, start, 4) == content[start : start + 4]


def test_a_put_that_is_given_up_leaves_no_upload_behind(servers_by_name, tmp_path, monkeypatch):
    server = servers_by_name("moto")
    use(server, monkeypatch)
    path = f"{server.url}/{tmp_path.name}/large"
    (tmp_path / "content").write_bytes(bytes(80 * 2**20))
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "0.1")
    with monkeypatch.context() as hasty:
        hasty.setattr(objects, "TIMEOUT_S", 0.1)
        hasty.setattr(objects, "_SLOWEST", float("inf"))
        with pytest.raises(StorageError, match="no answer in"):
            storage.put_file(tmp_path / "content", path)
    assert not storage.exists(path)
    bucket, _, key = path.removeprefix("s3://").partition("/")
    assert "Uploads" not in client_of(path).call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)


def test_a_range_that_is_not_there_is_no_short_answer(place, tmp_path, monkeypatch):
    path = storage.join(place, "a")
    put(path, b"abc", tmp_path)
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "0.3")
    with pytest.raises(StorageError):
        storage.read_range(path, 1, 5)


def test_damage_is_put_right_by_the_next_one_who_puts_it(place, tmp_path):
    path = storage.join(place, "a")
    put(path, b"damaged", tmp_path)
    (tmp_path / "content").unlink()
    put(path, b"right", tmp_path)
    assert storage.read_bytes(path) == b"right"


def test_what_is_missing_is_missing(place):
    path = storage.join(place, "nothing")
    assert not storage.exists(path)
    assert storage.list_names(path) == []
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(path)
    storage.delete_file(path)


def test_names_are_listed_as_they_are_now(place, tmp_path):
    for name in ("b", "a", "c/d"):
        put(storage.join(place, name), b"x", tmp_path)
    assert storage.list_names(place) == ["a", "b", "c"]
    put(storage.join(place, "e"), b"x", tmp_path)
    storage.delete_file(storage.join(place, "a"))
    assert storage.list_names(place) == ["b", "c", "e"]
    assert not storage.exists(storage.join(place, "a"))


def test_what_another_process_wrote_is_listed(server, tmp_path):
    folder = f"{server.url}/{tmp_path.name}"
    put(f"{folder}/00000001.json", b"1", tmp_path)
    assert storage.list_names(folder) == ["00000001.json"]
    code = f"from shardkit.storage import files; files.commit_exclusive({f'{folder}/00000002.json'!r}, b'2')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert storage.list_names(folder) == ["00000001.json", "00000002.json"]


def test_a_commit_of_another_process_since_the_last_listing_is_a_conflict(server, tmp_path):
    folder = f"{server.url}/{tmp_path.name}"
    storage.commit_exclusive(f"{folder}/00000001.json", b"1")
    assert storage.list_names(folder) == ["00000001.json"]
    code = f"from shardkit.storage import files; files.commit_exclusive({f'{folder}/00000002.json'!r}, b'other')"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ConflictError):
        storage.commit_exclusive(f"{folder}/00000002.json", b"own")
    assert storage.read_bytes(f"{folder}/00000002.json") == b"other"


def test_inputs_are_found_by_name_folder_and_glob(place, tmp_path):
    for name in ("raw/a.csv", "raw/b.csv", "raw/deep/c.csv", "raw/d.txt"):
        put(storage.join(place, name), b"x,y\n1,2\n", tmp_path)
    raw = storage.join(place, "raw")

    def names(pattern):
        return [file.path.partition("raw/")[2] for file in storage.expand_input(pattern).files]

    assert names(raw) == ["a.csv", "b.csv", "d.txt", "deep/c.csv"]
    assert names(f"{raw}/*.csv") == ["a.csv", "b.csv"]
    assert names(f"{raw}/**/*.csv") == ["a.csv", "b.csv", "deep/c.csv"]
    assert names(f"{raw}/a.csv") == ["a.csv"]
    with pytest.raises(UsageError):
        names(f"{raw}/*.parquet")


TREE = [
    "b.csv", "a.csv", "c.txt", ".hid.csv", "sub/d.csv", "sub/deep/e.csv", "sub/.git/f.csv", ".h/g.csv", "y=1/h.csv",
    "q/r[1].csv", "q/r1.csv", "q/day?1.csv", "q/day#2.csv", "q/day 3%20+ü&=.csv", "q/in[0]/x.csv",
]  # fmt: skip
PATTERNS = [
    "", "a.csv", "*.csv", "[ab].csv", "sub", "*", "**", "**/*.csv", "s*", "y=*", "y=*/*.csv", ".hid.csv", ".*.csv",
    ".h", "sub/.git/*", "**/s*", "**/deep", "**/.git", "s*/**", "**/*",
    "q/r[1].csv", "q/r[[]1].csv", "q/day?*", "q/day?[0-9].csv", "q/*#*", "q/?*#*", "q/?*[#]*", "q/in[0]", "q/day ?%*",
    "q", "q/**/*.csv", "**/*1.csv",
]  # fmt: skip


def test_hidden_files_and_folders_are_inputs_only_if_they_are_named(place, tmp_path):
    local = tmp_path / "local"
    # A repository takes no folder of that name.
    git = ".g" if place.startswith("hf://") else ".git"
    tree, patterns = ([name.replace(".git", git) for name in names] for names in (TREE, PATTERNS))
    for name in tree:
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_text(name)
        storage.put_file(local / name, f"{place}/in/{name}")

    def below(root, pattern):
        found = storage.expand_input(f"{root}/{pattern}".rstrip("/")).files
        return sorted(file.path.partition(f"{root}/")[2] for file in found)

    root = str(place).replace("memory://", "memory:///")
    for pattern in patterns:
        assert below(f"{root}/in", pattern) == below(local, pattern), pattern
    with pytest.raises(UsageError, match="no file matches"):
        storage.expand_input(f"{place}/in/sub/*/.git")


def test_a_file_below_a_folder_without_a_name_is_read_whole(server, tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    if server.name in ("hdfs", "hub"):
        pytest.skip("it takes no folder without a name")
    folder = f"{server.url}/{tmp_path.name}"
    storage.put_file(tmp_path / "a.csv", f"{folder}/sub//a.csv")
    (found,) = storage.expand_input(folder).files
    with storage.open_read(found.path) as file:
        assert file.read() == b"x\n1\n"
    assert found.num_bytes == 4


def test_what_changed_has_another_version(place, tmp_path):
    path = storage.join(place, "a")
    put(path, b"one", tmp_path)
    before = storage.stat_file(path).version
    assert before
    assert storage.stat_file(path).version == before
    storage.delete_file(path)
    (tmp_path / "content").unlink()
    put(path, b"two", tmp_path)
    assert storage.stat_file(path).version != before


def test_a_commit_is_made_once(place):
    path = storage.join(place, "manifests", "00000001.json")
    storage.commit_exclusive(path, b"mine")
    # As when the first answer was lost.
    storage.commit_exclusive(path, b"mine")
    with pytest.raises(ConflictError, match="another conversion committed first"):
        storage.commit_exclusive(path, b"theirs")
    assert storage.read_bytes(path) == b"mine"


@pytest.mark.parametrize(
    "server", ["moto", "hdfs", "hub", *in_campaign("fake-gcs", "azurite", "seaweedfs")], indirect=True
)
def test_of_many_processes_that_commit_one_wins(server, tmp_path):
    context = multiprocessing.get_context("spawn")
    folder = f"{server.url}/{tmp_path.name}"
    barrier, results = context.Barrier(NUM_WRITERS), context.Queue()
    writers = [context.Process(target=race, args=(folder, i, barrier, results)) for i in range(NUM_WRITERS)]
    for writer in writers:
        writer.start()
    winners = [results.get(timeout=100) for _ in range(NUM_ROUNDS)]
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [0] * NUM_WRITERS
    assert results.empty()
    assert sorted(round_number for round_number, _ in winners) == list(range(NUM_ROUNDS))
    for round_number, number in winners:
        assert storage.read_bytes(f"{folder}/{round_number}") == f"writer {number}".encode()


def test_many_threads_put_and_read(place, tmp_path):
    def work(number):
        path = storage.join(place, f"{number:03}")
        local = Path(tmp_path, f"{number}")
        local.write_bytes(str(number).encode() * 1000)
        storage.put_file(local, path)
        return storage.read_bytes(path)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == [str(i).encode() * 1000 for i in range(40)]
    assert len(storage.list_names(place)) == 40


def test_a_bucket_that_is_not_there_is_named(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "2")
    if server.name in ("seaweedfs", "hdfs"):
        pytest.skip("it makes each bucket that is named")
    nowhere = server.url + "-that-is-missing"
    for pattern in ("*.csv", "**/*.csv", "a.csv"):
        with pytest.raises(UsageError, match="no file matches"):
            storage.expand_input(f"{nowhere}/{pattern}")
    for write in (lambda: put(f"{nowhere}/a", b"x", tmp_path), lambda: storage.commit_exclusive(f"{nowhere}/a", b"x")):
        with pytest.raises(UsageError, match=rf"there is no bucket or container '{nowhere.partition('://')[2]}'"):
            write()
