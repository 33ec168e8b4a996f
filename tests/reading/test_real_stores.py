"""Readers, mixtures and length buckets from servers that speak a store's protocol: the batches of the local files.

S3 is what moto serves to s3fs, where both are installed: pip install 'moto[server]' s3fs.
"""

import itertools
import logging
from contextlib import contextmanager

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.dataset import stored_blocks
from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import read_block
from shardkit.dataset.open import open_dataset
from shardkit.errors import DamageError
from shardkit.features import arrow_schema, make_feature
from shardkit.storage import files as storage
from shardkit.storage.clients import client_of
from shardkit.testing import write_dataset
from tests.support.campaign import in_campaign
from tests.support.stores.range_server import serve

pytestmark = pytest.mark.full

FEATURES = (make_feature("id", "int64"), make_feature("words", "int64", (None,)))


NUMBERS = itertools.count()


def write(folder, ids, compression):
    lengths = 1 + np.random.default_rng(0).zipf(1.5, len(ids)) % 100
    values = [pa.array(list(ids)), pa.array([list(range(n)) for n in lengths.tolist()])]
    batch = pa.record_batch(values, arrow_schema(FEATURES))
    write_dataset(folder, FEATURES, {"train": batch}, num_shards=3, block_examples=16, compression=compression)


@pytest.fixture(scope="module", params=["gzip", "none"])
def folder(request, tmp_path_factory):
    """Two datasets, `one` and `two`."""
    path = tmp_path_factory.mktemp("local")
    write(path / "one", range(900), request.param)
    write(path / "two", range(10_000, 10_400), request.param)
    return path


@contextmanager
def served_by_s3(folder):
    """Yields the address of a bucket with what lies in a folder, and what ends the server."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    settings = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        forget_clients("s3")
        # All servers of a process serve the same buckets.
        bucket = f"bucket-{next(NUMBERS)}"
        client_of("s3://").mkdir(bucket)
        for path in folder.rglob("*"):
            if path.is_file():
                storage.put_file(path, f"s3://{bucket}/{path.relative_to(folder)}")
        try:
            yield f"s3://{bucket}", server.stop
        finally:
            server.stop()
            forget_clients("s3")


@contextmanager
def served_by_http(folder):
    with serve(folder) as server:
        yield server.url, server.shutdown


def forget_clients(protocol):
    """A client of a server before must not be asked for this one."""
    type(client_of(f"{protocol}://")).clear_instance_cache()


SERVED = {"s3": served_by_s3, "http": served_by_http}


@pytest.fixture
def no_pauses(monkeypatch):
    """What is asked for again is asked for at once."""
    monkeypatch.setattr(stored_blocks, "_FIRST_PAUSE_S", 0.0)


@pytest.fixture(scope="module", params=list(SERVED))
def store(request, folder):
    with SERVED[request.param](folder) as (url, _):
        yield url


def open_both(url, **cache):
    return [shardkit.open(f"{url}/{name}", **cache)["train"] for name in ("one", "two")]


def batches_of(splits):
    """Returns what is read in the ways there are, row by row."""
    one, two = splits
    buckets = shardkit.LengthBuckets(feature="words", tokens_per_batch=1000)
    readers = [
        *(one.batches(global_batch_size=60, shuffle=shuffle, num_epochs=2) for shuffle in (True, False)),
        shardkit.mix({one: 0.7, two: 0.3}).batches(global_batch_size=50, num_steps=30),
        *(one.batches(buckets=buckets, shuffle=shuffle, remainder="pad") for shuffle in (True, False)),
    ]
    return [
        [
            (batch["id"].tolist(), batch["words"].row_lengths().tolist(), batch["words"].values.tolist())
            for batch in reader
        ]
        for reader in readers
    ]


def test_batches_are_those_of_the_local_files(folder, store):
    assert batches_of(open_both(store)) == batches_of(open_both(str(folder)))


def test_positions_are_those_of_the_local_files(folder, store):
    (remote, _), (local, _) = open_both(store), open_both(str(folder))
    assert remote.take([899, 0, 450])["id"].tolist() == local.take([899, 0, 450])["id"].tolist() == [899, 0, 450]


@pytest.mark.parametrize("share", [0.3, *in_campaign(2.0)])
def test_batches_by_way_of_a_cache_are_those_of_the_local_files(folder, store, tmp_path, share):
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*.tfrecord*"))
    expected = batches_of(open_both(str(folder)))
    splits = open_both(store, cache_dir=tmp_path, cache_bytes=int(num_bytes * share) + 100 * 4096)
    assert [batches_of(splits) for _ in range(2)] == [expected, expected]


@pytest.mark.parametrize("kind", ["s3", *in_campaign("http")])
def test_what_a_cache_holds_is_read_without_the_store(folder, tmp_path, kind):
    with SERVED[kind](folder) as (url, end):
        splits = open_both(url, cache_dir=tmp_path / "cache", cache_bytes="100MB")
        expected = batches_of(splits)
        end()
        assert batches_of(splits) == expected


def test_absence_and_an_end_before_its_time_are_named(store, no_pauses):
    dataset = open_dataset(f"{store}/one")
    shard = dataset.shards[1]
    ref = list_blocks(shard)[-1]
    with pytest.raises(DamageError, match=rf"missing in {store}/one/{ref.path}x, block {ref.block_index}"):
        read_block(dataset, msgspec.structs.replace(ref, path=f"{ref.path}x"))
    beyond = msgspec.structs.replace(ref, start=shard.num_bytes - 5)
    with pytest.raises(DamageError, match=rf"cut off in {store}/one/{ref.path}, block .*: 5 of {ref.num_bytes} bytes"):
        read_block(dataset, beyond)
