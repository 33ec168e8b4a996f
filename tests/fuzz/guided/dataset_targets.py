"""Parsers of what a dataset holds: the manifest, the shard table, blocks, records and counts."""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import hashlib
import io
import random
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardkit import _kernel
from shardkit.conversion.commit import statistics_parts
from shardkit.dataset.append_info import appended_to, own_inputs, statistics_file
from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.documents import Accounting, RejectedFile
from shardkit.dataset.manifest import decode_manifest, describe_table, encode_manifest
from shardkit.dataset.open import Dataset
from shardkit.dataset.rejected_rows import RejectedRecord, encode_record, pack_files, read_rejected
from shardkit.dataset.shard_table import decode_shard_table
from shardkit.encoding.codec import compress_block, inflate_block
from shardkit.encoding.decoder import RecordDecoder, scan_whole
from shardkit.encoding.gzip_files import GzipStream, inflate_file
from shardkit.encoding.tfrecord import frame, iter_records
from shardkit.errors import DamageError
from shardkit.features import make_feature
from shardkit.statistics.collector import StatisticsCollector, merge_statistics
from tests.dataset.test_manifest import MANIFEST, TABLE, make_manifest
from tests.fuzz.guided.target import Target
from tests.support.wire.kernel_comparison import DifferenceFound, find_difference_alone, find_scan_difference
from tests.support.wire.wire_forms import NAMES, Writer

_FEATURES = (
    make_feature("a", "int64"),
    make_feature("b", "float32", (None,)),
    make_feature("ids", "string", nullable=True),
    make_feature("label", "bytes"),
    make_feature("x1", "bool", nullable=True),
    make_feature("x10", "int64", (3,), nullable=True),
)
_SPECS = [(name, 1 + i % 4, -1 if i % 3 else 1, i % 2 == 1) for i, name in enumerate(NAMES)]
_BLOCK_BYTES = 2000
_VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 0.5, -0.0, 1e308),
    *(
        "",
        "train",
        "../x",
        "a/b",
        "\0",
        "int64",
        "[0]",
        [],
        [0],
        [""],
        [[]],
        {},
        {"": 0},
        {"name": "x"},
        "\ud7ff" * 99,
    ),
]


def _records(count: int) -> list[bytes]:
    rng = random.Random(5)
    return [Writer(rng, 0.05 * (i % 3)).record() for i in range(count)]


def _decode_record(data: bytes) -> None:
    difference = find_difference_alone(_kernel, data, _SPECS)
    if difference is not None:
        raise DifferenceFound(difference)
    for features in (_FEATURES, _FEATURES[:1]):
        RecordDecoder(features).decode(frame(data), "here").validate(full=True)


def _scan_frames(data: bytes) -> None:
    difference = find_scan_difference(_kernel, data)
    if difference is not None:
        raise DifferenceFound(difference)
    scan_whole(data, "here")
    for record in iter_records(data, "here"):
        RecordDecoder(_FEATURES).find_problems(record, np.array([0], np.int64), np.array([len(record)], np.int64))


def _manifest_seeds() -> list[bytes]:
    extensions = {
        "statistics": {"path": "data/abc/statistics-1.zst", "sha256": "0" * 64},
        "appended_to": {"version": 1, "fingerprint": "abc", "num_inputs": 0},
    }
    accounting = Accounting(
        num_rows=91,
        num_examples=90,
        num_rejected=1,
        rejected_files=(RejectedFile(path="data/abc/r.gz", num_rows=1, num_bytes=9, sha256="0" * 64),),
    )
    appended = msgspec.structs.replace(MANIFEST, extensions=extensions, accounting=accounting)
    return [encode_manifest(manifest) for manifest in (MANIFEST, make_manifest([]), appended)]


def _sealed(tree: dict[str, Any]) -> bytes:
    """Returns a manifest with the right SHA-256, which no mutation hits."""
    tree.pop("sha256", None)
    tree["sha256"] = hashlib.sha256(msgspec.json.encode(tree, order="sorted")).hexdigest()
    return msgspec.json.encode(tree)


def _change_manifest(data: bytes) -> None:
    """Parses a manifest of which each two bytes replace one value: the place and the new value."""
    tree = msgspec.json.decode(_manifest_seeds()[2], type=dict[str, Any])
    for place, value in zip(data[0:40:2], data[1:40:2], strict=False):
        holders = list(_holders(tree))
        holder, key = holders[place % len(holders)]
        holder[key] = copy.deepcopy(_VALUES[value % len(_VALUES)])
    _parse_manifest(_sealed(tree))


def _holders(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yields a container and a key of it for every value of a document."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(pairs):
        yield tree, key
        yield from _holders(value)


def _parse_manifest(data: bytes) -> None:
    """Decodes the manifest with the right SHA-256, or as it is where it is no JSON object."""
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
        data = _sealed(msgspec.json.decode(data, type=dict[str, Any]))
    manifest = decode_manifest(data, "here")
    appended_to(manifest)
    statistics_file(manifest)
    own_inputs(manifest)
    encode_manifest(manifest)
    for split in manifest.splits:
        manifest.split(split.name)


def _parse_table(data: bytes) -> None:
    manifest = msgspec.structs.replace(MANIFEST, shard_table=describe_table(1, "0" * 32, data, 3))
    table = decode_shard_table(data, manifest, "here")
    table.block_examples()
    table.size_range()
    for shard in table:
        list_blocks(shard)


def _content() -> bytes:
    return b"".join(frame(record) for record in _records(20))


def _block_seeds() -> list[bytes]:
    content = _content()[:_BLOCK_BYTES]
    size = len(content).to_bytes(4, "little")
    return [size + bytes(compress_block(content, "gzip")), size + gzip.compress(content[:900]) * 2]


def _inflate(data: bytes) -> None:
    size = int.from_bytes(data[:4], "little")
    for inflate in (inflate_block, inflate_file):
        with contextlib.suppress(DamageError):
            inflate(data[4:], size, "here")
    stream = GzipStream(io.BytesIO(data[4:]))
    while stream.read(1000):
        pass


def _collected() -> bytes:
    collector = StatisticsCollector(_FEATURES[:4])
    collector.update(
        pa.RecordBatch.from_arrays(
            [pa.array([1, 2]), pa.array([[0.5], []], pa.list_(pa.float32())), pa.array(["x", None]),
             pa.array([b"y", b""], pa.binary())],
            names=[f.name for f in _FEATURES[:4]],
        )
    )  # fmt: skip
    return collector.to_bytes()


def _count_seeds() -> list[bytes]:
    content = msgspec.msgpack.encode({"train": _collected()})
    return [b"\0" + len(content).to_bytes(8, "little") + pa.compress(content, codec="zstd", asbytes=True),
            b"\1" + _collected()]  # fmt: skip


def _parse_counts(data: bytes) -> None:
    """Parses a file of counts where the first byte is even, the counts of a split where it is odd."""
    if data[:1] and data[0] % 2:
        merge_statistics([data[1:], _collected()], _FEATURES[:4])
    else:
        statistics_parts._decode(data[1:], hashlib.sha256(data[1:]).hexdigest())


def _rejected_seeds() -> list[bytes]:
    records = [
        RejectedRecord(file="a.csv", position="line 1", byte=5, reason="bad", raw=b"x,y"),
        RejectedRecord(file="b.csv", position="", byte=None, reason="damaged", raw=None),
    ]
    lines = [encode_record(record) for record in records]
    return [b"\0" + next(pack_files(lines))[0], b"\1" + b"".join(lines)]


class _OneFile(Dataset):
    """A dataset whose only file of rejected rows is given."""

    def __init__(self, folder: str, content: bytes) -> None:
        with open(f"{folder}/r.gz", "wb") as file:
            file.write(content)
        info = RejectedFile(path="r.gz", num_rows=2, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        accounting = Accounting(num_rows=2, num_examples=0, num_rejected=2, rejected_files=(info,))
        super().__init__(folder, 1, msgspec.structs.replace(MANIFEST, accounting=accounting))


def _parse_rejected(folder: str, data: bytes) -> None:
    """Reads a file as it is where the first byte is even, its lines where it is odd."""
    content = zlib.compress(data[1:], 1, 31) if data[:1] and data[0] % 2 else data[1:]
    for _ in read_rejected(_OneFile(folder, content)):
        pass


def dataset_targets(folder: str) -> list[Target]:
    """Returns the targets; some write a file into the folder."""
    return [
        Target("kernel-records", lambda: _records(12), _decode_record),
        Target("kernel-frames", lambda: [_content(), frame(b""), frame(_records(1)[0]) * 2], _scan_frames),
        Target("manifest", _manifest_seeds, _parse_manifest),
        Target("manifest-values", lambda: [bytes([i, i % 23]) for i in range(0, 90, 7)], _change_manifest),
        Target("shard-table", lambda: [TABLE], _parse_table),
        Target("blocks", _block_seeds, _inflate, (EOFError, zlib.error)),
        Target("counts", _count_seeds, _parse_counts),
        Target("rejected-rows", _rejected_seeds, functools.partial(_parse_rejected, folder)),
    ]
