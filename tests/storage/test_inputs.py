"""Inputs: files, folders and patterns, all found, in one order; what cannot be one says why."""

import contextlib
import os
import socket

import pytest

from shardkit.errors import UsageError
from shardkit.storage import files as storage
from tests.support.stores.storage_makers import as_nobody, locked_folder, memory_store


@pytest.fixture
def memory():
    with memory_store() as url:
        yield url


@pytest.fixture
def locked():
    with locked_folder() as folder:
        yield folder


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


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["", "closed.csv", "sub", "sub/x.csv", "*", "*.csv"])
def test_what_may_not_be_read_is_an_error_and_not_left_out(locked, pattern):
    message = as_nobody(storage.expand_input, str(locked / pattern))
    assert message.startswith("UsageError: cannot read the input in")
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
