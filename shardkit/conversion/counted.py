"""What was counted for the statistics of a version, kept beside its shards for who appends to it.

`data/<fingerprint>/statistics.zst`: the SHA-256 of the rest, 8 bytes with the size of the MessagePack, and that,
compressed by zstd: a map from the names of splits to what `StatisticsCollector.to_bytes` gave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from shardkit import storage
from shardkit.conversion.plan import Plan, write_whole
from shardkit.dataset import Dataset
from shardkit.decoder import RecordDecoder
from shardkit.errors import DamageError
from shardkit.manifest import STATISTICS_FILE, statistics_path
from shardkit.reading.blocks import BlockLoader
from shardkit.reading.split_blocks import SplitBlocks
from shardkit.statistics import StatisticsCollector

_SHA256_BYTES = 32
_SIZE_BYTES = 8
_DECODER = msgspec.msgpack.Decoder(dict[str, bytes])


def put_counted(plan: Plan, counted: Mapping[str, bytes]) -> None:
    """Stores what was counted of every split.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    content = msgspec.msgpack.encode(counted, order="sorted")
    body = len(content).to_bytes(_SIZE_BYTES, "little") + pa.compress(content, codec="zstd", asbytes=True)
    local = plan.work_path("tmp", STATISTICS_FILE)
    write_whole(local, hashlib.sha256(body).digest() + body)
    storage.put_file(local, storage.join(plan.destination, statistics_path(plan.fingerprint)))


def find_counted(dataset: Dataset) -> dict[str, bytes]:
    """Returns what was counted of every split of a version; reads its shards where that is not stored.

    Raises:
        DamageError: If a shard that must be read is damaged.
        StorageError: If the store kept failing.
    """
    path = storage.join(dataset.url, statistics_path(dataset.manifest.fingerprint))
    try:
        found = storage.read_decoded(path, _decode)
        for name in (s.name for s in dataset.manifest.splits):
            StatisticsCollector(dataset.manifest.features).merge(found[name])
    except (FileNotFoundError, KeyError, DamageError):
        return {s.name: _count(dataset, s.name) for s in dataset.manifest.splits}
    return found


def _decode(raw: bytes) -> dict[str, bytes]:
    digest, body = raw[:_SHA256_BYTES], raw[_SHA256_BYTES:]
    if hashlib.sha256(body).digest() != digest or len(body) < _SIZE_BYTES:
        raise DamageError("what was counted for the statistics is damaged")
    size = int.from_bytes(body[:_SIZE_BYTES], "little")
    try:
        return _DECODER.decode(pa.decompress(body[_SIZE_BYTES:], size, codec="zstd", asbytes=True))
    except (pa.ArrowException, OSError, msgspec.DecodeError) as error:
        raise DamageError("what was counted for the statistics cannot be read", why=str(error)) from error


def _count(dataset: Dataset, split: str) -> bytes:
    """Returns what is counted of the examples of a split, all of which are read."""
    features = dataset.manifest.features
    collector = StatisticsCollector(features)
    decoder = RecordDecoder(features)
    blocks = SplitBlocks(dataset, split)
    loader = BlockLoader(dataset, blocks)
    for index in range(len(blocks.num_examples)):
        block = loader.load(index, None)
        collector.update(decoder.decode(block.frames, block.where))
    # What was lost before an example was made can no longer be seen in it.
    known = dataset.manifest.split(split).statistics
    collector.add_rounded({name: statistics.num_rounded for name, statistics in known.items()})
    return collector.to_bytes()
