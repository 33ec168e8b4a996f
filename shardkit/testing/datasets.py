"""Small datasets for tests, written straight from Arrow batches, without an engine."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from pathlib import Path

import google_crc32c
import pyarrow as pa

from shardkit.dataset.documents import Accounting, InputInfo
from shardkit.dataset.manifest import (
    FORMAT_VERSION,
    Created,
    Manifest,
    ShardInfo,
    SplitInfo,
    describe_table,
    encode_manifest,
    manifest_path,
    shard_table_path,
)
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.encoding.codec import FILE_SUFFIX, GZIP_HEADER, Compression, compress_block, crc32, gzip_trailer
from shardkit.encoding.example import encode_batch
from shardkit.features import Features
from shardkit.statistics.collector import StatisticsCollector, merge_statistics

FINGERPRINT = "0123456789abcdef0123456789abcdef"


def write_dataset(
    folder: Path,
    features: Features,
    splits: Mapping[str, pa.RecordBatch],
    *,
    num_shards: int = 2,
    block_examples: int = 4,
    compression: Compression = "gzip",
    version: int = 1,
) -> Dataset:
    """Writes rows as a dataset and opens it.

    Args:
        splits: Rows by name of the split.
        num_shards: Of each split; rows are cut into runs of equal length.
        block_examples: Records in a block.
    """
    infos: list[SplitInfo] = []
    shards: list[ShardInfo] = []
    for name, batch in splits.items():
        cuts = [batch.num_rows * i // num_shards for i in range(num_shards + 1)]
        own = []
        for i, (first, stop) in enumerate(itertools.pairwise(cuts)):
            records = _records(batch.slice(first, stop - first), features)
            groups = [records[j : j + block_examples] for j in range(0, len(records), block_examples)]
            own.append(_write_shard(folder, name, f"{name}-{i:05d}-of-{num_shards:05d}", i, groups, compression))
        collector = StatisticsCollector(features)
        collector.update(batch)
        infos.append(
            SplitInfo(
                name=name,
                num_shards=num_shards,
                num_examples=batch.num_rows,
                num_bytes=sum(s.num_bytes for s in own),
                num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in own),
                statistics=merge_statistics([collector.to_bytes()], features),
            )
        )
        shards += own
    return _commit(folder, features, infos, shards, compression, version)


def _records(batch: pa.RecordBatch, features: Features) -> list[bytes]:
    data, sizes = encode_batch(batch, features)
    ends = list(itertools.accumulate(sizes.tolist(), initial=0))
    return [bytes(data[a:b]) for a, b in itertools.pairwise(ends)]


def _write_shard(
    folder: Path, split: str, stem: str, index: int, groups: list[list[bytes]], compression: Compression
) -> ShardInfo:
    records = [record for group in groups for record in group]
    blocks = [b"".join(group) for group in groups]
    packed = [compress_block(block, compression) for block in blocks]
    content = b"".join(packed)
    if compression == "gzip":
        whole = b"".join(blocks)
        content = GZIP_HEADER + content + gzip_trailer(crc32(whole), len(whole))
    path = f"data/{FINGERPRINT}/{stem}{FILE_SUFFIX[compression]}"
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    if compression == "none":
        starts = itertools.accumulate(map(len, records), initial=0)
        lines = (f"{start} {len(record)}\n" for start, record in zip(starts, records, strict=False))
        Path(f"{target}.idx").write_text("".join(lines))
    return ShardInfo(
        split=split,
        shard_index=index,
        path=path,
        num_examples=len(records),
        num_bytes=len(content),
        num_uncompressed_bytes=sum(map(len, blocks)),
        crc32c=google_crc32c.value(content),
        sha256=hashlib.sha256(content).hexdigest(),
        block_num_bytes=tuple(map(len, packed)),
        block_num_uncompressed_bytes=tuple(map(len, blocks)),
        block_num_examples=tuple(map(len, groups)),
        block_crc32c=tuple(map(google_crc32c.value, packed)),
    )


def _commit(
    folder: Path,
    features: Features,
    splits: list[SplitInfo],
    shards: list[ShardInfo],
    compression: Compression,
    version: int,
) -> Dataset:
    table = encode_shard_table(shards)
    num_examples = sum(s.num_examples for s in splits)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=folder.name,
        fingerprint=FINGERPRINT,
        created=Created(at="2025-01-02T03:04:05Z", commit_id="0" * 32, inputs=("rows.csv",), tool_versions={}),
        recipe={},
        compression=compression,
        features=features,
        splits=tuple(splits),
        accounting=Accounting(
            num_rows=num_examples,
            num_examples=num_examples,
            inputs=(InputInfo(name="rows.csv", num_bytes=1, num_rows=num_examples, num_examples=num_examples),),
        ),
        shard_table=describe_table(version, "0" * 32, table, len(shards)),
    )
    (folder / "manifests").mkdir(parents=True, exist_ok=True)
    (folder / shard_table_path(version, "0" * 32)).write_bytes(table)
    (folder / manifest_path(version)).write_bytes(encode_manifest(manifest))
    return open_dataset(str(folder), version)
