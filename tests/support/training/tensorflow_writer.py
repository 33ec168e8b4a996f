"""Datasets written by stock TensorFlow: an independent writer of what the trainer reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import (
    Created,
    FeatureStatistics,
    Manifest,
    ShardInfo,
    SplitInfo,
    TopValue,
    describe_table,
    encode_manifest,
    manifest_path,
    shard_table_path,
)
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.features import Feature, Features

Row = dict[str, Any]


def encode_row(row: Row, features: Features) -> bytes:
    """Returns a row as TensorFlow's own `tf.train.Example`; None means that the key is absent."""
    import tensorflow as tf

    stored = {}
    for feature in features:
        value = row[feature.name]
        if value is None:
            continue
        values = list(value) if isinstance(value, list | tuple) else [value]
        if feature.stored_as == "int64_list":
            stored[feature.name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(v) for v in values]))
        elif feature.stored_as == "float_list":
            stored[feature.name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        elif feature.stored_as == "little_endian_bytes":
            packed = np.array(values, np.dtype(feature.dtype).newbyteorder("<")).tobytes()
            stored[feature.name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[packed]))
        else:
            encoded = [v.encode() if isinstance(v, str) else v for v in values]
            stored[feature.name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
    return tf.train.Example(features=tf.train.Features(feature=stored)).SerializeToString(deterministic=True)


def describe_column(rows: Sequence[Row], feature: Feature) -> FeatureStatistics:
    """Returns the statistics of one column, by plain Python."""
    present = [r[feature.name] for r in rows if r[feature.name] is not None]
    values = [v for p in present for v in (p if isinstance(p, list | tuple) else [p])]
    settings: dict[str, Any] = {}
    if values and not isinstance(values[0], str | bytes):
        finite = [float(v) for v in values if v == v and abs(v) != float("inf")]
        settings["num_nans"] = sum(v != v for v in values)
        if finite:
            mean = sum(finite) / len(finite)
            std = (sum((v - mean) ** 2 for v in finite) / len(finite)) ** 0.5
            settings |= {"min": min(finite), "max": max(finite), "mean": mean, "std": std}
    if None in feature.shape and present:
        settings["mean_length"] = len(values) / len(present)
    if values and isinstance(values[0], str | bool | int):
        counts = {v: values.count(v) for v in set(values)}
        order = sorted(counts, key=lambda v: (-counts[v], v))
        settings["num_distinct"] = len(order)
        settings["top_values"] = tuple(TopValue(value=v, count=counts[v]) for v in order[:20])
    return FeatureStatistics(count=len(present), num_nulls=len(rows) - len(present), num_values=len(values), **settings)


def write_dataset(
    root: Path, features: Features, splits: dict[str, list[Row]], num_shards: int = 3, compression: str = "gzip"
) -> Path:
    """Writes a dataset with stock TensorFlow's writer and returns its folder."""
    import tensorflow as tf

    shards: list[ShardInfo] = []
    infos: list[SplitInfo] = []
    (root / "data" / "f").mkdir(parents=True)
    (root / "manifests").mkdir()
    for name, rows in splits.items():
        for i in range(num_shards):
            own = [encode_row(r, features) for r in rows[i::num_shards]]
            path = f"data/f/{name}-{i:05}-of-{num_shards:05}.tfrecord" + (".gz" if compression == "gzip" else "")
            with tf.io.TFRecordWriter(str(root / path), "GZIP" if compression == "gzip" else "") as writer:
                for record in own:
                    writer.write(record)
            raw = (root / path).read_bytes()
            framed = sum(len(r) + 16 for r in own)
            shards.append(
                ShardInfo(
                    split=name,
                    shard_index=i,
                    path=path,
                    num_examples=len(own),
                    num_bytes=len(raw),
                    num_uncompressed_bytes=framed,
                    crc32c=google_crc32c.value(raw),
                    sha256=hashlib.sha256(raw).hexdigest(),
                    block_num_bytes=(len(raw),),
                    block_num_uncompressed_bytes=(framed,),
                    block_num_examples=(len(own),),
                    block_crc32c=(google_crc32c.value(raw),),
                )
            )
        own_shards = [s for s in shards if s.split == name]
        infos.append(
            SplitInfo(
                name=name,
                num_shards=num_shards,
                num_examples=len(rows),
                num_bytes=sum(s.num_bytes for s in own_shards),
                num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in own_shards),
                statistics={f.name: describe_column(rows, f) for f in features},
            )
        )
    table = encode_shard_table(shards)
    num_rows = sum(map(len, splits.values()))
    manifest = Manifest(
        format_version=1,
        name=root.name,
        fingerprint="f",
        created=Created(at="2026-01-01T00:00:00Z", commit_id="c", inputs=("x.csv",), tool_versions={}),
        recipe={},
        compression=compression,
        features=features,
        splits=tuple(infos),
        accounting=Accounting(num_rows=num_rows, num_examples=num_rows),
        shard_table=describe_table(1, "0" * 32, table, len(shards)),
    )
    (root / shard_table_path(1, "0" * 32)).write_bytes(table)
    (root / manifest_path(1)).write_bytes(encode_manifest(manifest))
    return root
