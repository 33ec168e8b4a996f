"""Blocks of a server that are kept on the disk of a host: asked for once, within a limit, and checked when read."""

from pathlib import Path

import pyarrow as pa
import pytest

import shardkit
from shardkit.dataset.block_cache import open_cache
from shardkit.errors import UsageError
from shardkit.features import arrow_schema
from shardkit.testing import write_dataset
from tests.support.forked import FORK, ForkedProcess
from tests.support.stores.range_server import serve
from tests.support.stores.stored_noise import FEATURES, NUM_ROWS, all_blocks, rows_of, write_noise


@pytest.fixture(scope="module", params=["gzip", "none"])
def folder(request, tmp_path_factory):
    return write_noise(tmp_path_factory.mktemp("stored") / "set", request.param)


@pytest.fixture
def server(folder):
    with serve(folder) as server:
        yield server


@pytest.mark.full
def test_what_is_kept_is_not_asked_for_again(folder, server, tmp_path):
    cache = tmp_path / "cache"
    expected = rows_of(folder)
    assert rows_of(server.url, cache_dir=cache) == expected
    server.reset()
    assert rows_of(server.url, cache_dir=cache) == expected
    assert rows_of(server.url, cache_dir=cache, shuffle=False) == rows_of(folder, shuffle=False)
    assert server.num_ranges == 0


@pytest.mark.full
def test_two_datasets_share_a_cache(folder, server, tmp_path):
    batch = pa.record_batch([pa.array(range(500)), pa.array([b"other"] * 500)], arrow_schema(FEATURES))
    write_dataset(tmp_path / "other", FEATURES, {"train": batch}, num_shards=3, block_examples=10)
    with serve(tmp_path / "other") as other:
        for _ in range(2):
            for url, local in ((server.url, folder), (other.url, tmp_path / "other")):
                server.reset()
                assert rows_of(url, cache_dir=tmp_path / "cache") == rows_of(local)
    assert server.num_ranges == 0


@pytest.mark.full
def test_bits_that_flip_in_the_cache_are_not_delivered(folder, server, tmp_path):
    cache = tmp_path / "cache"
    expected = rows_of(folder)
    assert rows_of(server.url, cache_dir=cache) == expected
    files = [path for path in cache.rglob("*") if path.is_file() and path.name != "usage"]
    damaged = files[::10]
    for number, path in enumerate(damaged):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes([bytes(content), content[:-1], content + b"x", b""][number % 4])
    server.reset()
    assert rows_of(server.url, cache_dir=cache) == expected
    assert server.num_ranges == len(damaged) > 5
    server.reset()
    assert rows_of(server.url, cache_dir=cache) == expected
    assert server.num_ranges == 0


def read_shared(url, cache, limit, worker, results):
    most = 0
    try:
        for epoch in range(3):
            train = shardkit.open(url, cache_dir=cache, cache_bytes=limit)["train"]
            reader = train.batches(global_batch_size=60, worker_index=worker, num_workers=4, epoch=epoch)
            ids = []
            for batch in reader:
                ids += batch["id"].tolist()
                with open_cache(cache, limit)._lock():
                    files = [path for path in Path(cache).rglob("*") if path.is_file() and path.name != "usage"]
                    most = max(most, sum(path.stat().st_size for path in files))
            results.put((epoch, ids, most))
    except BaseException as error:  # noqa: BLE001
        results.put(repr(error))


@pytest.mark.full
@pytest.mark.parametrize("share", [0.3, 2.0])
def test_processes_share_a_cache_within_its_limit(folder, server, tmp_path, share):
    limit = int(sum(-(-ref.num_bytes // 4096) * 4096 for ref in all_blocks(folder)) * share)
    results = FORK.Queue()
    shardkit.open(server.url)["train"][0]
    arguments = [(server.url, str(tmp_path / "cache"), limit, worker, results) for worker in range(4)]
    processes = [ForkedProcess(target=read_shared, args=a) for a in arguments]
    for process in processes:
        process.start()
    found = [results.get(timeout=100) for _ in range(12)]
    for process in processes:
        process.join(timeout=30)
    assert not [error for error in found if isinstance(error, str)]
    for epoch in range(3):
        ids = sorted(i for number, some, _ in found if number == epoch for i in some)
        assert ids == list(range(NUM_ROWS))
    assert max(most for _, _, most in found) <= limit
    # Blocks that lie across two workers' lanes may be asked for by both, before either keeps them.
    num_blocks = len(all_blocks(folder))
    assert server.num_ranges >= 2 * num_blocks if share < 1 else server.num_ranges < 1.5 * num_blocks + 1


def test_a_cache_means_nothing_to_a_local_dataset(folder, tmp_path):
    assert rows_of(folder, cache_dir=tmp_path / "cache") == rows_of(folder)
    assert not (tmp_path / "cache").exists()


@pytest.mark.full
def test_a_cache_that_cannot_be_used_is_refused_at_once(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cache folder cannot be used"):
        shardkit.open(server.url, cache_dir=tmp_path / "file")
    with pytest.raises(UsageError, match="is not a size"):
        shardkit.open(server.url, cache_dir=tmp_path, cache_bytes="much")
