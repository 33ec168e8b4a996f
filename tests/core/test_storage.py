"""Stores: exclusive commits, files that appear whole, inputs that are all found, and messages that help."""

import contextlib
import errno
import importlib.util
import multiprocessing
import os
import socket
import stat
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit import storage
from shardkit.errors import ConflictError, OutOfSpaceError, StorageError, UnsafeError, UsageError

NUM_WRITERS = 8
NUM_ROUNDS = 60


@pytest.fixture
def memory():
    """Yields the URL of an empty folder of an object store that lives in this process."""
    url = "memory://shardkit-test"
    yield url
    filesystem = storage._filesystem(url)
    if filesystem.exists(url):
        filesystem.rm(url, recursive=True)


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


def test_of_eight_processes_exactly_one_commits(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(NUM_WRITERS), context.Queue()
    writers = [context.Process(target=compete, args=(str(tmp_path), i, barrier, results)) for i in range(NUM_WRITERS)]
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


def test_ranges_are_exact_or_an_error(root):
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
        (errno.EACCES, UsageError, ["cannot write there", "permission denied"]),
        (errno.EROFS, UsageError, ["read-only file system"]),
        (errno.ENAMETOOLONG, UsageError, ["file name too long"]),
        (errno.EIO, StorageError, ["writing failed", "input/output error"]),
        (errno.ESTALE, StorageError, ["stale file handle"]),
    ],
)
def test_write_errors_say_what_happened_and_where(tmp_path, number, kind, words):
    with pytest.raises(kind) as caught, storage.translate_os_errors(tmp_path / "out"):
        raise OSError(number, os.strerror(number))
    for word in (*words, str(tmp_path / "out")):
        assert word in str(caught.value)


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


# Inputs


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("b.csv", "a.csv", "c.txt", ".hidden.csv", "sub/d.csv", "sub/deep/e.csv", "sub/.git/f.csv", ".h/g.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ALL = ["a.csv", "b.csv", "c.txt", "sub/d.csv", "sub/deep/e.csv"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.csv", ["a.csv"]),
        ("./sub/../a.csv", ["sub/../a.csv"]),
        ("*.csv", ["a.csv", "b.csv"]),
        ("[ab].csv", ["a.csv", "b.csv"]),
        ("?.txt", ["c.txt"]),
        (".", ALL),
        ("sub", ["sub/d.csv", "sub/deep/e.csv"]),
        ("sub/", ["sub/d.csv", "sub/deep/e.csv"]),
        ("*", ALL),
        ("**", ALL),
        ("**/*.csv", ["a.csv", "b.csv", "sub/d.csv", "sub/deep/e.csv"]),
        ("s*", ["sub/d.csv", "sub/deep/e.csv"]),
        (".hidden.csv", [".hidden.csv"]),
        (".*.csv", [".hidden.csv"]),
        (".h", [".h/g.csv"]),
        ("sub/.git/*", ["sub/.git/f.csv"]),
    ],
)
def test_files_folders_and_globs(tree, pattern, names):
    for spelling in (pattern, str(tree / pattern), f"file://{tree}/{pattern}", f"FILE://{tree}/{pattern}"):
        found = storage.expand_input(spelling).files
        assert [f.path for f in found] == [str(tree / name) for name in names], spelling
        assert [f.num_bytes for f in found] == [os.path.getsize(f.path) for f in found]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tree):
    (tree / "x[1]*.csv").write_text("x")
    assert [f.path for f in storage.expand_input("x[1]*.csv").files] == [str(tree / "x[1]*.csv")]


def test_brackets_in_the_current_folder_are_no_pattern(tree, monkeypatch):
    (tree / "[2024]").mkdir()
    (tree / "[2024]" / "x.csv").write_text("x")
    monkeypatch.chdir(tree / "[2024]")
    assert [f.path for f in storage.expand_input("*.csv").files] == [str(tree / "[2024]" / "x.csv")]


def test_links_are_followed_and_circles_end(tree):
    (tree / "linked").symlink_to("sub")
    (tree / "sub" / "up").symlink_to("..")
    (tree / "sub" / "z.csv").symlink_to("../a.csv")
    assert [f.path for f in storage.expand_input("linked").files] == [
        str(tree / "linked" / name)
        for name in ("d.csv", "deep/e.csv", "up/a.csv", "up/b.csv", "up/c.txt", "z.csv")
    ]  # fmt: skip


def test_a_change_of_an_input_shows(tree):
    before = storage.stat_file("a.csv")
    assert storage.stat_file("a.csv") == before
    os.utime("a.csv", ns=(0, before_ns := int(before.version) + 1))
    assert storage.stat_file("a.csv").version == str(before_ns)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("missing.csv", "no such file or directory"),
        ("*.parquet", "no file matches"),
        ("missing/*.csv", "no file matches"),
        ("a.csv/x", "not a directory"),
        ("empty", "holds no files"),
        ("pipe", "not a regular file"),
        ("with-pipe", "not a regular file"),
        ("socket", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("broken", "no such file or directory"),
        ("brok*", "no such file or directory"),
        ("with-broken", "no such file or directory"),
        ("loop", "symbolic links"),
        ("x" * 300, "file name too long"),
        ("~nobody-has-this-name/x", "no such home folder"),
    ],
)
def test_inputs_that_are_none(tree, pattern, message):
    (tree / "empty" / ".hidden").mkdir(parents=True)
    os.mkfifo(tree / "pipe")
    (tree / "with-pipe").mkdir()
    os.mkfifo(tree / "with-pipe" / "pipe")
    (tree / "broken").symlink_to("nowhere")
    (tree / "with-broken").mkdir()
    (tree / "with-broken" / "x.csv").symlink_to("nowhere")
    (tree / "loop").symlink_to("loop")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("socket")
        with pytest.raises(UsageError) as caught:
            storage.expand_input(pattern)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def as_nobody(function, *args):
    """Returns what the function raises when someone without rights calls it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            function(*args)
            message = "nothing"
        except BaseException as error:  # noqa: BLE001
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    return message


@pytest.fixture
def locked(tmp_path_factory):
    """Yields a folder that everybody reaches, with a folder and a file in it that nobody may open."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "open.csv").write_text("x")
        (root / "sub").mkdir()
        (root / "sub" / "x.csv").write_text("x")
        (root / "closed.csv").write_text("x")
        (root / "closed.csv").chmod(0)
        (root / "sub").chmod(0)
        yield root
        (root / "sub").chmod(0o755)


@pytest.mark.parametrize("pattern", ["", "closed.csv", "sub", "sub/x.csv", "*", "*.csv"])
def test_what_may_not_be_read_is_an_error_and_not_left_out(locked, pattern):
    message = as_nobody(storage.expand_input, str(locked / pattern))
    assert message.startswith("UsageError: cannot read the input in")
    assert "permission denied" in message


def test_a_destination_without_permission(locked):
    for path in (locked / "out", locked / "sub" / "out"):
        message = as_nobody(storage.commit_exclusive, str(path / "00000001.json"), b"")
        assert message.startswith("UsageError: cannot write there in")
        assert "permission denied" in message


def test_inputs_in_an_object_store(memory):
    for name in ("a.csv", "b.csv", "sub/c.csv"):
        storage.commit_exclusive(f"{memory}/raw/{name}", b"xyz")
    assert [f.path for f in storage.expand_input(f"{memory}/raw/*.csv").files] == [
        "memory:///shardkit-test/raw/a.csv",
        "memory:///shardkit-test/raw/b.csv",
    ]
    assert [f.num_bytes for f in storage.expand_input(f"{memory}/raw").files] == [3, 3, 3]
    with pytest.raises(UsageError, match="no file matches"):
        storage.expand_input(f"{memory}/raw/*.parquet")


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


@pytest.mark.skipif(importlib.util.find_spec("adlfs") is not None, reason="the backend is installed")
def test_a_missing_backend_is_named():
    with pytest.raises(UsageError, match="abfss:// needs an fsspec backend that is not installed"):
        storage.exists("abfss://container@account/x")


def test_locations_in_their_one_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert storage.normalize("out/x/") == str(tmp_path / "out" / "x")
    assert storage.normalize("file:///out/x") == "/out/x"
    assert storage.normalize("~/x") == "/home/someone/x"
    assert storage.normalize("gs://bucket/x//") == "gs://bucket/x"
    assert storage.join("gs://bucket/x/", "data", "y") == "gs://bucket/x/data/y"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("https://user:p@ss@host/x", "https://***@host/x"),
        ("az://c/x?sig=abc&se=1 and gs://b/y?token=z", "az://c/x?*** and gs://b/y?***"),
        ("/local/a@b?c", "/local/a@b?c"),
        ("gs://bucket/a@b", "gs://bucket/a@b"),
    ],
)
def test_secrets_are_not_shown(text, shown):
    assert storage.redact(text) == shown


@given(st.text(alphabet="abc:@?/&=", max_size=20))
def test_nothing_before_an_at_sign_or_after_a_question_mark_is_shown(text):
    shown = storage.redact(f"s3://KEY:SECRET@host/{text}?sig=SECRET")
    assert "SECRET" not in shown
