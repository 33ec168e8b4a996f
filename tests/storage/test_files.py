"""Stores: exclusive commits, files that appear whole, and messages that help."""

import contextlib
import errno
import os
import re
import stat
import sys
import traceback
from pathlib import Path
from subprocess import run

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import ConflictError, OutOfSpaceError, StorageError, UnsafeError, UsageError
from shardkit.storage import files as storage
from tests.support.forked import FORK, ForkedProcess
from tests.support.stores.storage_makers import as_nobody, locked_folder, memory_store

NUM_WRITERS = 8
NUM_ROUNDS = 60


@pytest.fixture
def memory():
    with memory_store() as url:
        yield url


@pytest.fixture
def locked():
    with locked_folder() as folder:
        yield folder


@pytest.fixture(params=["local", "memory"])
def root(request):
    return str(request.getfixturevalue("tmp_path")) if request.param == "local" else request.getfixturevalue("memory")


def compete(folder, writer, barrier, results):
    for round_ in range(NUM_ROUNDS):
        barrier.wait()
        try:
            storage.commit_exclusive(f"{folder}/{round_}/00000001.json", f"writer {writer}".encode() * 100)
            results.put((round_, writer))
        except ConflictError:
            pass
        except BaseException:  # noqa: BLE001
            results.put((round_, traceback.format_exc()))


@pytest.mark.full
def test_of_eight_processes_exactly_one_commits(tmp_path):
    barrier, results = FORK.Barrier(NUM_WRITERS), FORK.Queue()
    writers = [ForkedProcess(target=compete, args=(str(tmp_path), i, barrier, results)) for i in range(NUM_WRITERS)]
    for writer in writers:
        writer.start()
    # Reading before joining: a process that still has to hand over what it put cannot be joined.
    winners = dict(results.get(timeout=60) for _ in range(NUM_ROUNDS))
    for writer in writers:
        writer.join(timeout=60)
    assert results.empty()
    assert [writer.exitcode for writer in writers] == [0] * NUM_WRITERS
    assert sorted(winners) == list(range(NUM_ROUNDS))
    for round_, winner in winners.items():
        folder = tmp_path / str(round_)
        assert os.listdir(folder) == ["00000001.json"]
        assert (folder / "00000001.json").read_bytes() == f"writer {winner}".encode() * 100


def test_a_commit_is_taken_as_done_if_it_is_there_already(root):
    path = f"{root}/manifests/00000001.json"
    storage.commit_exclusive(path, b"mine")
    storage.commit_exclusive(path, b"mine")
    with pytest.raises(ConflictError, match="another conversion committed first") as caught:
        storage.commit_exclusive(path, b"theirs")
    assert "--overwrite" in str(caught.value)
    assert storage.read_bytes(path) == b"mine"
    assert storage.list_names(f"{root}/manifests") == ["00000001.json"]


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_published_files_get_the_permissions_that_the_user_wants(tmp_path):
    storage.commit_exclusive(str(tmp_path / "a" / "manifest"), b"x")
    assert stat.S_IMODE((tmp_path / "a" / "manifest").stat().st_mode) == 0o640


def test_a_file_is_put_whole_and_a_right_one_is_kept(tmp_path):
    source, target = tmp_path / "source", tmp_path / "deep" / "er" / "target"
    source.write_bytes(b"right")
    storage.put_file(source, str(target))
    assert target.read_bytes() == b"right"
    before = target.stat()
    again = tmp_path / "again"
    again.write_bytes(b"right")
    storage.put_file(again, str(target))
    assert target.stat().st_ino == before.st_ino


@pytest.mark.parametrize("damage", [b"wrong", b"", b"right and more"])
def test_a_damaged_file_is_replaced(tmp_path, damage):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"right")
    target.write_bytes(damage)
    storage.put_file(source, str(target))
    assert target.read_bytes() == b"right"
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]
    assert source.read_bytes() == b"right"


@pytest.mark.skipif(
    not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev,
    reason="needs two file systems",
)
@pytest.mark.parametrize("there", [None, b"wrong", b"right"])
def test_files_cross_file_systems(tmp_path, there):
    with contextlib.ExitStack() as stack:
        source = Path(f"/dev/shm/shardkit-test-{os.getpid()}")
        stack.callback(source.unlink)
        source.write_bytes(b"right")
        target = tmp_path / "target"
        if there is not None:
            target.write_bytes(there)
        storage.put_file(source, str(target))
        assert target.read_bytes() == b"right"
        assert os.listdir(tmp_path) == ["target"]


def test_a_file_reaches_an_object_store(memory, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    storage.put_file(source, f"{memory}/data/x")
    assert storage.read_bytes(f"{memory}/data/x") == b"0123456789"
    assert storage.exists(f"{memory}/data/x")
    assert not storage.exists(f"{memory}/data/y")


def test_ranges_are_exact_or_an_error(root, monkeypatch):
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "0.3")
    path = f"{root}/x"
    storage.commit_exclusive(path, b"0123456789")
    assert storage.read_range(path, 2, 3) == b"234"
    assert storage.read_range(path, 10, 0) == b""
    with pytest.raises(StorageError, match=r"4 of 5 bytes"):
        storage.read_range(path, 6, 5)
    with storage.open_read(path) as file:
        file.seek(7)
        assert file.read() == b"789"
    assert storage.hash_file(path) == "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"


def test_names_in_a_folder(root):
    assert storage.list_names(f"{root}/none") == []
    for name in ("b", "a"):
        storage.commit_exclusive(f"{root}/some/{name}", b"")
    assert storage.list_names(f"{root}/some") == ["a", "b"]


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, OutOfSpaceError, ["no space left", "free there", "run the same command again"]),
        (errno.EDQUOT, OutOfSpaceError, ["no space left"]),
        (errno.EFBIG, OutOfSpaceError, ["a file is too large", "its file system takes no larger ones"]),
        (errno.EACCES, UsageError, ["cannot write there", "permission denied"]),
        (errno.EROFS, UsageError, ["read-only file system"]),
        (errno.ENAMETOOLONG, UsageError, ["file name too long"]),
        (errno.EIO, StorageError, ["cannot write in", "input/output error"]),
        (errno.ESTALE, StorageError, ["stale file handle"]),
    ],
)
def test_write_errors_say_what_happened_and_where(tmp_path, number, kind, words):
    with pytest.raises(kind) as caught, storage.translate_os_errors(tmp_path / "out"):
        raise OSError(number, os.strerror(number))
    for word in (*words, str(tmp_path / "out")):
        assert word in str(caught.value)


def test_a_link_that_may_not_be_made_is_named_by_its_new_place(tmp_path):
    source, target = tmp_path / "source", tmp_path / "missing" / "target"
    source.write_text("content")
    with pytest.raises(StorageError) as caught, storage.translate_os_errors(tmp_path):
        os.link(source, target)
    assert str(target) in str(caught.value)
    assert str(source) not in str(caught.value)


def test_other_errors_pass_through():
    with pytest.raises(ValueError, match="mine"), storage.translate_os_errors("x"):
        raise ValueError("mine")


def test_a_file_in_the_way_of_a_folder_is_the_users_mistake(tmp_path):
    (tmp_path / "out").write_text("a file")
    for act in (storage.make_folder, lambda path: storage.commit_exclusive(f"{path}/m/1.json", b"")):
        with pytest.raises(UsageError, match="cannot write there"):
            act(str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "a file"


def test_free_space_is_known_for_folders_that_are_not_there_yet(tmp_path, memory):
    assert storage.free_bytes(str(tmp_path / "not" / "yet")) > 0
    assert storage.free_bytes(memory) is None


@pytest.mark.full
def test_a_destination_without_permission(locked):
    for path in (locked / "out", locked / "sub" / "out"):
        message = as_nobody(storage.commit_exclusive, str(path / "00000001.json"), b"")
        assert message.startswith("UsageError: cannot write there in")
        assert "permission denied" in message
    assert as_nobody(storage.list_files, str(locked)).startswith("UsageError: cannot read there in")


# Locations


@pytest.mark.parametrize(
    "path",
    [
        "http://host/x",
        "https://host/x",
        "ftp://host/x",
        "ssh://host/x",
        "github://a:b@c/d",
        "reference://x",
        "simplecache::s3://bucket/x",
        "zip://x.csv::s3://bucket/x.zip",
        "s3://bucket/x::file:///etc/passwd",
        "file:///x::s3://bucket/y",
    ],
)
def test_protocols_that_nobody_needs_are_refused(path):
    with pytest.raises(UnsafeError) as caught:
        storage.protocol_of(path)
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("x", "file"),
        ("/x", "file"),
        ("C:/x", "file"),
        ("a::b", "file"),
        ("file:///x", "file"),
        ("S3://bucket/x", "s3"),
        ("gs://bucket/x", "gs"),
        ("abfss://container@account/x", "abfss"),
    ],
)
def test_protocols(path, protocol):
    assert storage.protocol_of(path) == protocol
    assert storage.is_local(path) == (protocol == "file")


@pytest.mark.full
def test_a_missing_backend_is_named():
    program = "import sys; sys.modules['hdfs_native'] = None; from shardkit.storage import files; files.exists({!r})"
    ended = run([sys.executable, "-c", program.format("hdfs://namenode:8020/x")], capture_output=True, text=True)
    assert re.search(r"UsageError: .*needs the package hdfs_native.*shardkit\[hdfs\]", ended.stderr, re.DOTALL)


def test_locations_in_their_one_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert storage.normalize("out/x/") == str(tmp_path / "out" / "x")
    assert storage.normalize("file:///out/x") == "/out/x"
    assert storage.normalize("~/x") == "/home/someone/x"
    assert storage.normalize("gs://bucket/x//") == "gs://bucket/x"
    assert storage.normalize("hdfs:///x/") == "hdfs:///x"
    assert storage.join("gs://bucket/x/", "data", "y") == "gs://bucket/x/data/y"


@pytest.mark.parametrize("path", ["s3://", "s3:", "gs:///", "S3:/bucket/x", "az:bucket", "hdfs://", "abfs:/x"])
def test_a_url_without_a_bucket_is_no_local_folder(path):
    for use in (storage.normalize, storage.expand_input):
        with pytest.raises(UsageError, match="names no bucket"):
            use(path)


def test_a_location_that_is_no_whole_url_is_not_repeated():
    with pytest.raises(UsageError) as caught:
        storage.expand_input("s3:/key:secret@bucket/x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("https://user:p@ss@host/x", "https://***@host/x"),
        ("az://c/x?sig=abc&se=1 and gs://b/y?token=z", "az://c/x?*** and gs://b/y?***"),
        ("/local/a@b?c", "/local/a@b?c"),
        ("gs://bucket/a@b", "gs://bucket/a@b"),
        ("s3://b/day?[0-9].csv or az://c/y=?/day?1", "s3://b/day?[0-9].csv or az://c/y=?/day?1"),
        ("az://c/day?1.csv?sig=abc", "az://c/day?1.csv?***"),
        ("https://host/x?abc", "https://host/x?***"),
        ("'https://host/x?***': no answer", "'https://host/x?***': no answer"),
        ("f.py?token=***: nothing", "f.py?token=***: nothing"),
        ("f.py:f?token=abc", "f.py:f?token=***"),
        ("with url: /tokeninfo?access_token=ya29.x%2Fy (Caused", "with url: /tokeninfo?access_token=*** (Caused"),
    ],
)
def test_secrets_are_not_shown(text, shown):
    assert storage.redact(text) == shown


@given(st.text(alphabet="abc:@?/&=", max_size=20))
def test_nothing_before_an_at_sign_or_after_a_question_mark_is_shown(text):
    shown = storage.redact(f"s3://KEY:SECRET@host/{text}?sig=SECRET")
    assert "SECRET" not in shown
