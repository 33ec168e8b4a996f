"""The counts behind the statistics of a version, kept beside its shards for later appends.

The file has 8 bytes with the size of a MessagePack and that, compressed by zstd: a map from the names of splits to what
`StatisticsCollector.to_bytes` gave. Its name has a part of its SHA-256, so no other content ever takes its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from shardkit.conversion.plan import Plan, write_whole
from shardkit.dataset.append_info import StatisticsFile, statistics_file
from shardkit.dataset.block_index import SplitBlocks
from shardkit.dataset.block_loader import BlockLoader
from shardkit.dataset.open import Dataset
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.decoder import RecordDecoder
from shardkit.errors import DamageError
from shardkit.statistics.collector import StatisticsCollector
from shardkit.storage import files as storage
from shardkit.units import format_size

_NAME_DIGITS = 16
_SIZE_BYTES = 8
_MAX_BYTES = 2**31
_DECODER = msgspec.msgpack.Decoder(dict[str, bytes])


def write_statistics(plan: Plan, packed_statistics: Mapping[str, bytes]) -> tuple[StatisticsFile, int]:
    """Stores the counts of every split, and returns where, and in how many bytes.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    content = msgspec.msgpack.encode(packed_statistics, order="sorted")
    stored = len(content).to_bytes(_SIZE_BYTES, "little") + pa.compress(content, codec="zstd", asbytes=True)
    digest = hashlib.sha256(stored).hexdigest()
    name = f"statistics-{digest[:_NAME_DIGITS]}.zst"
    local = plan.work_path("tmp", name)
    write_whole(local, stored)
    storage.put_file(local, storage.join(plan.destination, plan.data_path, name))
    return StatisticsFile(path=f"{plan.data_path}/{name}", sha256=digest), len(stored)


def read_statistics(dataset: Dataset) -> dict[str, bytes]:
    """Returns the counts of every split of a version; reads its shards where they are not stored.

    Raises:
        DamageError: If a shard that must be read is damaged.
        StorageError: If the store kept failing.
    """
    try:
        info = statistics_file(dataset.manifest)
        if info is not None:
            path = storage.join(dataset.url, info.path)
            found = storage.read_decoded(path, lambda raw: _decode(raw, info.sha256))
            return {s.name: found[s.name] for s in dataset.manifest.splits}
    except (FileNotFoundError, KeyError, DamageError):
        pass
    return {s.name: _count(dataset, s.name) for s in dataset.manifest.splits}


def _decode(raw: bytes, sha256: str) -> dict[str, bytes]:
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise DamageError("what was counted for the statistics is damaged")
    size = int.from_bytes(raw[:_SIZE_BYTES], "little")
    if size > _MAX_BYTES:
        raise DamageError("what was counted for the statistics cannot be read", why=f"it claims {format_size(size)}")
    try:
        return _DECODER.decode(pa.decompress(raw[_SIZE_BYTES:], size, codec="zstd", asbytes=True))
    except (pa.ArrowException, OSError, MemoryError, *DECODE_ERRORS) as error:
        raise DamageError("what was counted for the statistics cannot be read", why=str(error)) from error


def _count(dataset: Dataset, split: str) -> bytes:
    """Returns the counts of the examples of a split, all of which are read."""
    features = dataset.manifest.features
    collector = StatisticsCollector(features)
    decoder = RecordDecoder(features)
    blocks = SplitBlocks(dataset, split)
    loader = BlockLoader(dataset, blocks)
    for index in range(len(blocks.num_examples)):
        block = loader.load(index, None)
        collector.update(decoder.decode(block.frames, block.where))
    # Rounding before an example was made cannot be seen in the example.
    known = dataset.manifest.split(split).statistics
    collector.add_rounded({name: statistics.num_rounded for name, statistics in known.items()})
    return collector.to_bytes()
