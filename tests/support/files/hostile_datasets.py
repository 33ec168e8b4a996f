"""Datasets of an attacker: every hash is right, and what the manifest, the table and the shards say is made up."""

import hashlib
import struct
import zlib

import google_crc32c
import msgspec
import pyarrow.parquet as pq

from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import (
    Created,
    FeatureStatistics,
    Manifest,
    ShardInfo,
    SplitInfo,
    describe_table,
    manifest_path,
    shard_table_path,
)
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.encoding.codec import GZIP_HEADER, gzip_trailer
from shardkit.encoding.tfrecord import frame
from shardkit.features import make_feature
from tests.support.files.tfrecord_makers import field, varint

COMMIT_ID = "0" * 32


def example(**values):
    """Returns a `tf.train.Example` of lists of numbers, texts or bytes."""
    entries = b"".join(field(1, field(1, k.encode()) + field(2, _feature(v))) for k, v in values.items())
    return field(1, entries)


def _feature(values):
    if isinstance(values[0], int):
        return field(3, field(1, b"".join(varint(v % 2**64) for v in values)))
    return field(1, b"".join(field(1, v.encode() if isinstance(v, str) else v) for v in values))


XY = (make_feature("x", "int64"), make_feature("y", "int64"))
XY_RECORDS = [example(x=[i % 7], y=[i % 2]) for i in range(64)]
XY_STATISTICS = {
    "x": FeatureStatistics(count=64, num_nulls=0, num_values=64, min=0, max=6, mean=3.0, std=2.0, num_distinct=7),
    "y": FeatureStatistics(
        count=64, num_nulls=0, num_values=64, min=0, max=1, mean=0.5, std=0.5, num_distinct=2, vocabulary=(0, 1)
    ),
}


def forge(
    folder, *, features=XY, records=XY_RECORDS, statistics=XY_STATISTICS, compression="none", shard=None, edit=None
):
    """Writes a dataset of one split of one shard of one block.

    Args:
        records: Serialized examples, or the framed bytes of all of them.
        shard: Values of its row of the table, in place of the true ones.
        edit: Called with the manifest as a dictionary, before it is hashed.
    """
    framed = records if isinstance(records, bytes) else b"".join(map(frame, records))
    content = packed = framed
    if compression == "gzip":
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = deflate.compress(framed) + deflate.flush(zlib.Z_FULL_FLUSH)
        content = GZIP_HEADER + packed + gzip_trailer(zlib.crc32(framed), len(framed))
    number = 64 if isinstance(records, bytes) else len(records)
    facts = {
        "split": "train", "shard_index": 0, "path": "data/f/train-00000-of-00001.tfrecord", "num_examples": number,
        "num_bytes": len(content), "num_uncompressed_bytes": len(framed), "crc32c": google_crc32c.value(content),
        "sha256": hashlib.sha256(content).hexdigest(), "block_num_bytes": (len(packed),),
        "block_num_uncompressed_bytes": (len(framed),), "block_num_examples": (number,),
        "block_crc32c": (google_crc32c.value(packed),), **(shard or {}),
    }  # fmt: skip
    row = ShardInfo(**facts)
    (folder / "data" / "f").mkdir(parents=True)
    (folder / "data" / "f" / "train-00000-of-00001.tfrecord").write_bytes(content)
    (folder / "manifests").mkdir()
    table = encode_shard_table([row])
    split = SplitInfo(
        name="train",
        num_shards=1,
        num_examples=row.num_examples,
        num_bytes=row.num_bytes,
        num_uncompressed_bytes=row.num_uncompressed_bytes,
        statistics=statistics,
    )
    manifest = Manifest(
        format_version=1,
        name=folder.name,
        fingerprint="f",
        created=Created(at="2026-01-01T00:00:00Z", commit_id=COMMIT_ID, inputs=("a.csv",), tool_versions={}),
        recipe={},
        compression=compression,
        features=features,
        splits=(split,),
        accounting=Accounting(num_rows=row.num_examples, num_examples=row.num_examples),
        shard_table=describe_table(1, COMMIT_ID, table, 1),
    )
    document = msgspec.to_builtins(manifest)
    if edit is not None:
        edit(document)
    write_manifest(folder, document)
    (folder / shard_table_path(1, COMMIT_ID)).write_bytes(table)
    return folder


def write_manifest(folder, document):
    """Writes a manifest with the hash of what it says."""
    digest = hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()
    (folder / manifest_path(1)).write_bytes(msgspec.json.encode({**document, "sha256": digest}, order="sorted"))


def replace_table(folder, make):
    """Replaces the shard table by what a function makes of it, and corrects its hash in the manifest."""
    path = folder / shard_table_path(1, COMMIT_ID)
    raw = make(pq.read_table(path))
    path.write_bytes(raw)
    document = msgspec.json.decode((folder / manifest_path(1)).read_bytes())
    del document["sha256"]
    document["shard_table"]["sha256"] = hashlib.sha256(raw).hexdigest()
    write_manifest(folder, document)


def png_of_zeros(width, height):
    """Returns a black-and-white PNG that is black."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    deflate = zlib.compressobj(9)
    rows = b"".join(deflate.compress(bytes(width // 8 + 1)) for _ in range(height)) + deflate.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
