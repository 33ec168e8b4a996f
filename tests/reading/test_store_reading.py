"""Datasets on a server that is slow, fails and lies: batches are those of the local folder, or an error says why."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.dataset import stored_blocks
from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import list_runs, map_blocks, read_block
from shardkit.dataset.open import open_dataset
from shardkit.errors import DamageError, StorageError, UnsafeError
from shardkit.features import arrow_schema
from shardkit.storage import files as storage
from shardkit.testing import write_dataset
from shardkit.units import MiB
from tests.support.forked import exit_codes, fork
from tests.support.stores.range_server import serve, some_requests
from tests.support.stores.stored_noise import FEATURES, NUM_ROWS, all_blocks, rows_of, write_noise


@pytest.fixture(scope="module", params=["gzip", "none"])
def folder(request, tmp_path_factory):
    return write_noise(tmp_path_factory.mktemp("stored") / "set", request.param)


@pytest.fixture
def server(folder):
    with serve(folder) as server:
        yield server


@pytest.fixture
def no_pauses(monkeypatch):
    """What is asked for again is asked for at once."""
    monkeypatch.setattr(stored_blocks, "_FIRST_PAUSE_S", 0.0)


def always(fault, ref):
    """What makes every request fail that has a byte in the middle of a block."""
    middle = ref.start + ref.num_bytes // 2

    def fault_of(path, first, last):
        is_it = path.name == Path(ref.path).name and first <= middle <= last
        return (middle if fault == "flip" else fault) if is_it else None

    return fault_of


@pytest.mark.full
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_batches_are_those_of_the_folder(folder, server, shuffle, num_threads):
    expected = rows_of(folder, shuffle=shuffle, num_epochs=2)
    assert rows_of(server.url, shuffle=shuffle, num_epochs=2, num_threads=num_threads) == expected


@pytest.mark.full
@pytest.mark.parametrize("shuffle", [True, False])
def test_faults_of_a_tenth_of_the_requests_change_no_batch(folder, server, no_pauses, shuffle, tmp_path):
    server.fault = some_requests(0.1, seed=3)
    options = {"shuffle": shuffle, "num_epochs": 2 if shuffle else 20}
    expected = rows_of(folder, **options)
    assert rows_of(server.url, **options) == expected
    assert sum(server.faults.values()) > 5
    assert rows_of(server.url, cache_dir=tmp_path / "cache", **options) == expected
    assert set(server.faults) == {"short", "flip", "busy", "close"} or not shuffle


@pytest.mark.full
def test_positions_are_read_through_faults(folder, server, no_pauses):
    server.fault = some_requests(0.3, seed=1)
    train, local = shardkit.open(server.url)["train"], shardkit.open(str(folder))["train"]
    for position in (0, 7, 600, NUM_ROWS - 1):
        assert train[position] == local[position]
    assert sum(server.faults.values()) > 0


@pytest.mark.full
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_block_that_is_always_damaged_is_named_in_its_place(folder, server, no_pauses, shuffle):
    ref = all_blocks(folder)[57]
    server.fault = always("flip", ref)
    reader = shardkit.open(server.url)["train"].batches(global_batch_size=60, shuffle=shuffle)
    found = []
    with pytest.raises(DamageError) as caught:
        found.extend(batch["id"].tolist() for batch in reader)
    assert found == [ids for ids, _ in rows_of(folder, shuffle=shuffle)][: len(found)]
    assert shuffle or len(found) == 57 * 10 // 60
    assert str(caught.value) == (
        f"a block is damaged in {server.url}/{ref.path}, block {ref.block_index}: its bytes do not have the CRC32C "
        f"that the shard table states. Run: shardkit verify {server.url}."
    )
    assert server.faults["flip"] == stored_blocks.NUM_TRIES


@pytest.mark.full
@pytest.mark.parametrize("fault", ["busy", "close", "short"])
def test_a_store_that_keeps_failing_is_named_and_says_what_to_do(folder, server, no_pauses, fault):
    ref = all_blocks(folder)[41]
    server.fault = always(fault, ref)
    dataset = open_dataset(server.url)
    with pytest.raises(StorageError) as caught:
        read_block(dataset, ref)
    text = str(caught.value)
    assert text.startswith(f"the store kept failing in {server.url}/{ref.path}, block {ref.block_index}: ")
    assert {"busy": "503", "close": "ayload", "short": f"{ref.num_bytes // 2} of {ref.num_bytes} bytes"}[fault] in text
    assert "asked 5 times" in text
    assert "Check the network" in text
    assert caught.value.exit_code == 5
    assert server.num_ranges == stored_blocks.NUM_TRIES


@pytest.mark.full
def test_a_server_that_does_not_answer_is_given_up(folder, server, no_pauses, monkeypatch):
    monkeypatch.setattr(stored_blocks, "TIMEOUT_S", 0.05)
    server.latency_s = 0.5
    with pytest.raises(StorageError, match="no answer in 0 s"):
        read_block(open_dataset(server.url), all_blocks(folder)[0])


@pytest.mark.full
def test_a_server_that_is_gone_is_named(folder, no_pauses):
    with serve(folder) as server:
        dataset = open_dataset(server.url)
        ref = list_blocks(dataset.shards[0])[0]
    with pytest.raises(StorageError, match=rf"kept failing in {server.url}/{ref.path}, block 0: Client"):
        read_block(dataset, ref)


@pytest.mark.full
def test_a_shard_that_is_cut_off_or_missing_is_damage(tmp_path, no_pauses):
    values = [pa.array(range(300)), pa.array([bytes([i % 256]) * 50 for i in range(300)])]
    batch = pa.record_batch(values, arrow_schema(FEATURES))
    local = write_dataset(tmp_path / "set", FEATURES, {"train": batch}, num_shards=2, block_examples=10)
    ref = list_blocks(local.shards[1])[3]
    path = Path(local.url, ref.path)
    whole = path.read_bytes()
    with serve(tmp_path / "set") as server:
        for num_bytes, there in ((ref.start + 5, 5), (ref.start, 0), (3, 0)):
            path.write_bytes(whole[:num_bytes])
            with pytest.raises(DamageError) as caught:
                read_block(open_dataset(server.url), ref)
            words = f"cut off in {server.url}/{ref.path}, block 3: {there} of {ref.num_bytes} bytes are there. Run:"
            assert words in str(caught.value)
        path.unlink()
        server.reset()
        with pytest.raises(DamageError, match=rf"missing in {server.url}/{ref.path}, block 3"):
            read_block(open_dataset(server.url), ref)
        assert server.num_ranges == 0


@pytest.mark.full
def test_a_server_that_knows_no_ranges_is_named(tmp_path, no_pauses, monkeypatch):
    batch = pa.record_batch([pa.array(range(100)), pa.array([b"x" * 50] * 100)], arrow_schema(FEATURES))
    write_dataset(tmp_path / "set", FEATURES, {"train": batch}, num_shards=1, block_examples=10)
    with serve(tmp_path / "set") as server:
        handler = server.RequestHandlerClass
        monkeypatch.setattr(handler, "answer_range", lambda self, path, *_: self.answer(200, path.read_bytes()))
        with pytest.raises(StorageError, match="kept failing") as caught:
            rows_of(server.url)
        assert "a server that knows no ranges" in caught.value.why
        assert "range requests" in caught.value.next_step


@pytest.mark.full
def test_neighbours_are_asked_for_together(folder, server):
    """Every shard fits in a request; shuffled blocks have no neighbours, and each is asked for once."""
    rows_of(server.url, shuffle=False)
    assert server.num_ranges == 3
    blocks = all_blocks(folder)
    assert server.num_bytes == sum(ref.num_bytes for ref in blocks)
    server.reset()
    train = open_dataset(server.url)
    refs = [ref for shard in train.shards for ref in list_blocks(shard)]
    assert len(list(map_blocks(train, refs, lambda ref, _: ref, num_threads=2, max_ahead=40))) == 120
    assert server.num_ranges == 6
    server.reset()
    rows_of(server.url, num_lanes=1)
    assert len(blocks) * 0.9 < server.num_ranges <= len(blocks)


def test_a_request_is_for_no_more_than_4_mib(folder):
    remote = open_dataset(str(folder))
    remote.url = "memory://anywhere"
    ref = all_blocks(folder)[0]
    refs = [
        msgspec.structs.replace(ref, start=i * MiB, num_bytes=MiB, num_uncompressed_bytes=size, block_index=i)
        for i, size in enumerate([MiB] * 9 + [3 * MiB] * 5 + [20 * MiB] * 2)
    ]
    assert [len(run) for run in list_runs(remote, refs)] == [4, 4, 3, 2, 1, 1, 1]
    assert [len(run) for run in list_runs(remote, refs[:3] + refs[4:6])] == [3, 2]
    assert [len(run) for run in list_runs(remote, refs[:4:-1])] == [1] * 11


@pytest.mark.full
@pytest.mark.parametrize("num_requests", [1, 3, 12])
def test_no_more_is_asked_at_once_than_allowed(folder, num_requests):
    with serve(folder, latency_s=0.005) as server:
        train = shardkit.open(server.url)["train"]
        reader = train.batches(global_batch_size=60)
        reader._reading = msgspec.structs.replace(reader._reading, num_requests=num_requests)
        assert len(list(reader)) == NUM_ROWS // 60
    assert server.most_at_once <= num_requests
    assert server.most_at_once > 1 or num_requests == 1


@pytest.mark.full
def test_no_more_is_loaded_ahead_than_allowed(folder, server):
    """Before the first batch is asked for twice, what was asked for is the lanes, the window and a batch."""
    train = shardkit.open(server.url)["train"]
    reader = train.batches(global_batch_size=10, num_lanes=4, num_ahead=0)
    reader._reading = msgspec.structs.replace(reader._reading, ahead_bytes=20_000)
    iterator = iter(reader)
    next(iterator)
    iterator.close()
    size = max(ref.num_uncompressed_bytes for ref in all_blocks(folder))
    assert 0 < server.num_bytes <= 20_000 + (4 + 4) * size


@pytest.mark.full
def test_an_epoch_is_asked_for_before_the_one_before_it_has_ended(folder, server):
    size, is_next_asked_for = sum(ref.num_bytes for ref in all_blocks(folder)), threading.Event()
    server.fault = lambda *_: is_next_asked_for.set() if server.num_bytes > size else None
    reader = shardkit.open(server.url)["train"].batches(global_batch_size=600, num_epochs=2, num_ahead=0)
    batches = iter(reader)
    next(batches)
    assert is_next_asked_for.wait(20)
    assert reader.state()["step"] == 1
    assert sorted(np.concatenate([batch["id"] for batch in batches]).tolist()[600:]) == list(range(NUM_ROWS))


@pytest.mark.full
def test_a_reader_that_is_closed_early_ends_its_threads(folder):
    others = set(threading.enumerate())
    with serve(folder, latency_s=0.02) as server:
        for shuffle in (True, False):
            reader = shardkit.open(server.url)["train"].batches(global_batch_size=60, shuffle=shuffle)
            next(iter(reader))
            reader.close()
            assert not [t for t in set(threading.enumerate()) - others if t.name.startswith("shardkit-batches")]


@pytest.mark.full
def test_a_reader_that_is_closed_does_not_wait_for_a_server_that_hangs(folder, server):
    """It would for a minute and more, five times."""
    is_over = threading.Event()
    last = open_dataset(str(folder)).shards[2].path
    server.fault = lambda path, *_: is_over.wait(100) and None if path.name == Path(last).name else None
    try:
        reader = shardkit.open(server.url)["train"].batches(global_batch_size=60, shuffle=False)
        assert next(iter(reader))["id"][0] == 0
        reader.close()
        blocks = map_blocks(open_dataset(server.url), all_blocks(folder), lambda r, _: r, num_threads=9, max_ahead=120)
        next(blocks)
        deadline = time.monotonic() + 60
        while server.num_ranges <= 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        blocks.close()
    finally:
        is_over.set()


# Processes


@pytest.mark.full
@pytest.mark.parametrize("is_reading", [True, False])
def test_forked_processes_read_for_themselves(folder, server, is_reading):
    """As the workers of a `DataLoader` do, after the parent asked the server, or while its threads do."""
    train = shardkit.open(server.url)["train"]
    assert train[0]["id"] == 0
    server.latency_s = 0.002
    running = iter(train.batches(global_batch_size=60)) if is_reading else None
    if running:
        next(running)
    expected = rows_of(folder)

    def reads_the_same():
        found = [(b["id"].tolist(), b["noise"].tolist()) for b in train.batches(global_batch_size=60)]
        return found == expected and train[700]["id"] == 700

    assert exit_codes([fork(reads_the_same) for _ in range(3)]) == [0] * 3
    assert rows_of(server.url) == expected


# Web servers


@pytest.mark.full
def test_a_web_server_is_read_and_never_written(server, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    assert storage.list_names(f"{server.url}/manifests") == [
        "00000001-0000000000000000.shards.parquet",
        "00000001.json",
    ]
    for refused in (
        lambda: storage.put_file(tmp_path / "x", f"{server.url}/x"),
        lambda: storage.commit_exclusive(f"{server.url}/x", b""),
        lambda: storage.expand_input(f"{server.url}/*.csv"),
    ):
        with pytest.raises(UnsafeError, match="is refused"):
            refused()


@pytest.mark.full
def test_a_missing_client_names_the_extra(server):
    code = f"""
import sys
sys.modules["aiohttp"] = None
import shardkit
from shardkit.errors import UsageError
try:
    shardkit.open({server.url!r})
except UsageError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == (
        "this needs the package aiohttp, which is not installed. Run: pip install 'shardkit[http]'."
    )
