"""What the tests of TFRecords write and read."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from shardkit.encoding.tfrecord import frame
from shardkit.errors import BadInputError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.tfrecord.source import TfrecordSource


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values) -> bytes:
    """Returns a feature as its writers write it; None is one without a kind."""
    if values is None:
        return b""
    values = values if isinstance(values, list) else [values]
    if values and isinstance(values[0], (bytes, str)):
        return field(1, b"".join(field(1, v.encode() if isinstance(v, str) else v) for v in values))
    if values and isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(3, field(1, b"".join(varint(v % 2**64) for v in values)))


def features(row: dict) -> bytes:
    return b"".join(field(1, field(1, k.encode()) + field(2, feature(v))) for k, v in row.items())


def example(**row) -> bytes:
    return field(1, features(row))


def sequence(context: dict, **lists) -> bytes:
    entries = (
        field(1, field(1, k.encode()) + field(2, b"".join(field(1, feature(s)) for s in v))) for k, v in lists.items()
    )
    return field(1, features(context)) + field(2, b"".join(entries))


def write(folder: Path, records, name: str = "a.tfrecord", pack=bytes) -> Path:
    path = folder / name
    path.write_bytes(pack(b"".join(map(frame, records))))
    return path


def read(*inputs: Path, source=None, features=None, **options):
    """Returns features by name, rows, and what was rejected."""
    source, settings_ = source or TfrecordSource(), SourceOptions(**options)
    files = list_inputs([str(p) for p in inputs]).files
    features = features or source.infer(files, settings_)
    rows, rejected, identities = [], [], []
    for split in source.split(files, settings_):
        for part in source.read(split, files, features, settings_):
            part.batch.validate(full=True)
            assert [c.type for c in part.batch.columns] == [f.arrow_type for f in features]
            assert len(part.identities) == part.batch.num_rows
            rows += part.batch.to_pylist()
            rejected += part.rejected
            identities += part.identities.tolist()
    assert len(set(identities)) == len(rows)
    return {f.name: f for f in features}, rows, rejected


def fails(*inputs: Path, kind=BadInputError, **options) -> str:
    with pytest.raises(kind) as caught:
        read(*inputs, **options)
    return str(caught.value)
