"""The first examples of a split, read through the block index: no more blocks than they fill."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO

from shardkit import storage
from shardkit.codec import GZIP_HEADER_BYTES, inflate_block
from shardkit.dataset import Dataset
from shardkit.errors import DamageError
from shardkit.example import decode_record
from shardkit.manifest import ShardInfo
from shardkit.tfrecord import iter_records

_CHUNK_BYTES = 4 * 1024 * 1024


def first_examples(dataset: Dataset, split: str, num_examples: int) -> Iterator[dict[str, Any]]:
    """Yields at most so many examples in their stored order, as Python values by feature name, None where absent.

    Raises:
        UsageError: If there is no such split.
        DamageError: If a shard does not fit the manifest; names the place.
    """
    return itertools.islice(_examples(dataset, split), num_examples)


def _examples(dataset: Dataset, split: str) -> Iterator[dict[str, Any]]:
    for shard in dataset.split_shards(split):
        for block in range(len(shard.block_num_bytes)):
            where = f"{shard.path}, block {block}"
            for record in iter_records(_read_block(dataset, shard, block, where), where):
                yield decode_record(record, dataset.manifest.features, where)


def _read_block(dataset: Dataset, shard: ShardInfo, block: int, where: str) -> bytes:
    is_gzip = dataset.manifest.compression == "gzip"
    start = (GZIP_HEADER_BYTES if is_gzip else 0) + sum(shard.block_num_bytes[:block])
    num_bytes = shard.block_num_bytes[block]
    url = dataset.shard_url(shard)
    try:
        with storage.open_read(url) as file:
            file.seek(start)
            data = _read_at_most(file, num_bytes)
    except FileNotFoundError as error:
        raise DamageError("a shard is missing", where=storage.redact(url)) from error
    if len(data) != num_bytes:
        raise DamageError("a shard is cut off", where=where, why=f"{len(data)} of {num_bytes} bytes are there")
    return inflate_block(data, shard.block_num_uncompressed_bytes[block], where) if is_gzip else data


def _read_at_most(file: BinaryIO, num_bytes: int) -> bytes:
    # In pieces: a size that lies must not be allocated.
    parts = []
    while num_bytes > 0 and (part := file.read(min(num_bytes, _CHUNK_BYTES))):
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
