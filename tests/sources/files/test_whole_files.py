"""Files read whole: the same bytes whether or not the system holds them in memory, and no handle left open."""

import os
import random
from pathlib import Path

import pytest

from shardkit.errors import DamagedFileError
from shardkit.sources.files import whole_files
from shardkit.sources.files.whole_files import read_heads, read_whole_files
from shardkit.sources.listing import list_inputs

SIZES = (0, 1, 15, 16, 17, 4095, 4096, 4097, 70_000, 300_000)
NUM_FILES = 150


def make_files(folder):
    folder.mkdir()
    rng = random.Random(3)
    for number in range(NUM_FILES):
        path = folder / f"{number:03}.bin"
        path.write_bytes(rng.randbytes(SIZES[number % len(SIZES)]))
    return list_inputs([str(folder)]).files


def forget(files):
    """Asks the system to hold none of the files any more, and of every third one only the first page."""
    for number, file in enumerate(files):
        with Path(file.path).open("rb", buffering=0) as raw:
            os.fsync(raw.fileno())  # What was not written yet cannot be forgotten.
            os.posix_fadvise(raw.fileno(), 4096 * (number % 3 == 0), 0, os.POSIX_FADV_DONTNEED)


def num_handles():
    return len(os.listdir("/proc/self/fd"))


def check(files):
    contents = [Path(f.path).read_bytes() for f in files]
    for change in (lambda: None, lambda: forget(files)):
        change()
        whole = read_whole_files(files)
        assert bytes(whole.data) == b"".join(contents)
        assert whole.offsets.tolist() == [sum(map(len, contents[:i])) for i in range(len(files) + 1)]
        change()
        assert list(read_heads(files, 16)) == [content[:16] for content in contents]
        change()
        assert list(read_heads(files, 5000)) == [content[:5000] for content in contents]


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="nothing can be evicted here")
def test_files_are_read_whole_whether_or_not_they_are_in_memory(tmp_path):
    files = make_files(tmp_path / "a")
    before = num_handles()
    check(files)
    assert num_handles() == before


@pytest.mark.parametrize("missing", ["_read_at", "_NO_WAITING", "_advise"])
def test_files_are_read_where_the_system_knows_less(tmp_path, monkeypatch, missing):
    files = make_files(tmp_path / "a")
    monkeypatch.setattr(whole_files, missing, None)
    check(files)


@pytest.mark.parametrize("content", [b"", b"shorter", bytes(70_001)])
@pytest.mark.parametrize("is_held", [True, False])
def test_a_file_that_changed_is_named_and_no_handle_stays_open(tmp_path, content, is_held):
    files = make_files(tmp_path / "a")
    changed = next(f for f in files if f.num_bytes == 70_000)
    Path(changed.path).write_bytes(content)
    before = num_handles()
    if not is_held:
        forget(files)
    with pytest.raises(DamagedFileError, match=changed.name):
        read_whole_files(files)
    assert num_handles() == before


def test_the_head_of_a_file_that_shrank_is_what_is_left(tmp_path):
    files = make_files(tmp_path / "a")
    shrunk = next(i for i, f in enumerate(files) if f.num_bytes == 4096)
    Path(files[shrunk].path).write_bytes(b"abc")
    assert list(read_heads(files, 16))[shrunk] == b"abc"


def test_a_file_that_has_gone_is_named(tmp_path):
    files = make_files(tmp_path / "a")
    Path(files[40].path).unlink()
    before = num_handles()
    for read in (read_whole_files, lambda some: list(read_heads(some, 16))):
        with pytest.raises(DamagedFileError, match=files[40].name):
            read(files)
        assert num_handles() == before
