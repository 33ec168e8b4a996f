"""The cache of blocks: what was put comes back, within the limit whoever writes, and it never fails the reading."""

import os
import resource
import signal
import tempfile
import warnings
from itertools import count
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardkit
from shardkit.dataset.block_cache import BlockCache, open_cache
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from tests.support.examples import draws
from tests.support.forked import FORK, ForkedProcess
from tests.support.stores.range_server import serve
from tests.support.stores.storage_makers import as_nobody, locked_folder

PAGE = 4096


def files_in(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file() and path.name != "usage"]


def bytes_in(folder):
    return sum(path.stat().st_size for path in files_in(folder))


def stated(folder):
    return int(Path(folder, "usage").read_bytes() or b"0")


def get(cache, key, num_bytes):
    found = cache.get(key, num_bytes, b"tail")
    if found is None:
        return None
    data, crc = found
    assert data[-4:] == b"tail"
    assert crc == google_crc32c.value(bytes(data[:-4]))
    return bytes(data[:-4])


def content_of(number, size):
    return bytes([number % 251]) * size


@given(
    puts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3 * PAGE)), max_size=60),
    max_pages=st.integers(1, 12),
)
@settings(max_examples=draws(60), deadline=None)
def test_the_limit_holds_after_every_put(puts, max_pages):
    with tempfile.TemporaryDirectory() as folder:
        cache = open_cache(folder, max_pages * PAGE)
        sizes = {}
        for number, size in puts:
            sizes.setdefault(number, size)
            cache.put(str(number), content_of(number, sizes[number]))
            assert bytes_in(folder) <= stated(folder) <= max_pages * PAGE
            found = get(cache, str(number), sizes[number])
            assert found == (content_of(number, sizes[number]) if sizes[number] <= max_pages * PAGE else None)
        for number, size in sizes.items():
            assert get(cache, str(number), size) in (None, content_of(number, size))


def test_the_least_recently_used_make_room(tmp_path):
    cache = open_cache(tmp_path, 10 * PAGE)
    for number in range(10):
        cache.put(str(number), content_of(number, PAGE))
        os.utime(cache._path(str(number)), ns=(number, number))
    assert get(cache, "0", PAGE) == content_of(0, PAGE)
    cache.put("10", content_of(10, PAGE))
    kept = [number for number in range(11) if get(cache, str(number), PAGE) is not None]
    assert kept == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_what_is_larger_than_the_limit_is_not_kept_and_removes_nothing(tmp_path):
    cache = open_cache(tmp_path, "8KiB")
    cache.put("small", b"x" * 100)
    cache.put("large", b"x" * 8193)
    assert get(cache, "large", 8193) is None
    assert get(cache, "small", 100) == b"x" * 100


def test_a_count_that_is_wrong_or_gone_is_made_anew(tmp_path):
    cache = open_cache(tmp_path, 4 * PAGE)
    for number, text in enumerate((b"", b"nonsense", b"%020d" % 10**15, b"-" * 20)):
        (tmp_path / "usage").write_bytes(text)
        cache.put(str(number), content_of(number, PAGE))
        assert get(cache, str(number), PAGE) == content_of(number, PAGE)
        assert stated(tmp_path) == bytes_in(tmp_path) == PAGE * (number + 1)


def test_a_folder_that_somebody_empties_is_filled_again(tmp_path):
    folder = tmp_path / "cache"
    cache = open_cache(folder, 4 * PAGE)
    cache.put("a", b"1")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    assert get(cache, "a", 1) is None
    cache.put("a", b"1")
    assert get(cache, "a", 1) == b"1"


def test_what_is_no_file_is_not_waited_for_and_what_an_index_states_is_not_allocated(tmp_path):
    cache = BlockCache(tmp_path, 9 * PAGE)
    cache.put("a", b"kept")
    assert get(cache, "a", 2**60) == b"kept"
    (path,) = files_in(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert get(cache, "a", 4) is None
    cache.remove("a")
    cache.put("a", b"kept")
    assert get(cache, "a", 4) == b"kept"


def put_for_ever(folder, number):
    cache = BlockCache(Path(folder), 40 * PAGE)
    while True:
        for i in range(100):
            cache.put(f"{number % 2} {i}", content_of(i, i * 97 % (3 * PAGE)))


@pytest.mark.full
def test_processes_that_are_killed_leave_no_more_than_the_limit(tmp_path):
    """Two write the same blocks each; all are killed in the middle, again and again."""
    open_cache(tmp_path, 40 * PAGE)
    for _ in range(6):
        writers = [ForkedProcess(target=put_for_ever, args=(str(tmp_path), number)) for number in range(4)]
        for writer in writers:
            writer.start()
        most = max(bytes_in_while_written(tmp_path) for _ in range(30))
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join(timeout=30)
        assert most <= 40 * PAGE
        assert bytes_in(tmp_path) <= stated(tmp_path) <= 40 * PAGE
    cache = open_cache(tmp_path, 40 * PAGE)
    for i in range(100):
        size = i * 97 % (3 * PAGE)
        assert get(cache, f"0 {i}", size) in (None, content_of(i, size))
        cache.put("last", b"x")
    assert all(path.name != "unfinished" for path in files_in(tmp_path))


def read_for_ever(url, cache, limit, shuffle, pipe):
    """Tells after each batch what the cache held at most, and after each epoch its number and what was read."""
    for epoch in count():
        rows = []
        train = shardkit.open(url, cache_dir=cache, cache_bytes=limit)["train"]
        for batch in train.batches(global_batch_size=60, shuffle=shuffle, epoch=epoch):
            rows += zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True)
            pipe.send(bytes_in_while_written(cache))
        pipe.send((epoch, rows))


@pytest.mark.full
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_readers_that_are_killed_leave_the_others_reading(tmp_path, share):
    """Two read on while others are killed in the middle of an epoch, all through one cache that holds a part."""
    noise = np.random.default_rng(0).bytes(500 * 1200)
    values = [pa.array(range(1200)), pa.array([noise[i * 500 :][:500] for i in range(1200)])]
    features = (make_feature("id", "int64"), make_feature("noise", "bytes"))
    batch = pa.record_batch(values, arrow_schema(features))
    # Blocks of a page and a bit, and of two.
    local = write_dataset(tmp_path / "set", features, {"train": batch}, num_shards=3, block_examples=11).url
    limit, cache = int(1200 * 500 * share), tmp_path / "cache"

    def start(shuffle):
        ours, theirs = FORK.Pipe()
        process = ForkedProcess(target=read_for_ever, args=(server.url, cache, limit, shuffle, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def kill(process):
        os.kill(process.pid, signal.SIGKILL)
        process.join(timeout=30)
        assert process.exitcode == -signal.SIGKILL

    open_cache(cache, limit)
    most, epochs = [], {False: {}, True: {}}
    with serve(tmp_path / "set") as server:
        readers = {shuffle: start(shuffle) for shuffle in (False, True)}
        for number in range(8):
            victim, pipe = start(number % 2 == 0)
            most += [pipe.recv() for _ in range(number + 1)]
            kill(victim)
            for shuffle, (_, pipe) in readers.items():
                # Each goes on to the end of an epoch that began before the kill, or after it.
                while isinstance(found := pipe.recv(), int):
                    most.append(found)
                epochs[shuffle][found[0]] = found[1]
        for process, _ in readers.values():
            kill(process)
    train = shardkit.open(local)["train"]
    for shuffle, found in epochs.items():
        assert sorted(found) == list(range(8))
        for epoch, rows in found.items():
            batches = train.batches(global_batch_size=60, shuffle=shuffle, epoch=epoch)
            assert rows == [row for b in batches for row in zip(b["id"].tolist(), b["noise"].tolist(), strict=True)]
    assert limit // 2 < max(most) <= limit
    assert bytes_in(cache) <= stated(cache) <= limit


def bytes_in_while_written(folder):
    """A listing is no snapshot: what is renamed or replaced meanwhile may be counted twice, so no lock, no verdict."""
    with BlockCache(folder, 1)._lock():
        return bytes_in(folder)


def test_a_full_disk_is_one_warning(tmp_path):
    """A limit on the size of files stands for it: the system refuses to write more in the same way."""
    cache = open_cache(tmp_path, 100 * PAGE)
    cache.put("before", b"x" * 50)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, limits[1]))
    try:
        with pytest.warns(UserWarning, match=rf"cannot be kept in {tmp_path}: file too large; reading goes on"):
            cache.put("a", b"x" * 2 * PAGE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.put("b", b"x" * 2 * PAGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert get(cache, "a", 2 * PAGE) is None
    assert stated(tmp_path) == PAGE
    cache.put("a", b"x" * 2 * PAGE)
    assert get(cache, "a", 2 * PAGE) == b"x" * 2 * PAGE


@pytest.mark.full
def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=rf"cache folder cannot be used in {folder}"):
            open_cache(folder, 1000)
    with pytest.raises(UsageError, match="lies in a store"):
        open_cache("s3://bucket/cache", 1000)
    with locked_folder() as locked:
        assert "permission denied" in as_nobody(open_cache, str(locked / "cache"), 1000)


@pytest.mark.parametrize(("size", "words"), [("many", "is not a size"), (0, "keeps nothing"), (-1, "keeps nothing")])
def test_a_limit_that_is_no_size_is_refused(tmp_path, size, words):
    with pytest.raises(UsageError, match=words):
        open_cache(tmp_path, size)
