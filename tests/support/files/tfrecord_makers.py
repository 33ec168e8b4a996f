"""What the tests of TFRecords write and read."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from shardkit.encoding.tfrecord import frame
from shardkit.errors import BadInputError
from shardkit.sources.tfrecord.source import TfrecordSource
from tests.support.files.source_makers import parts_of


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
    # Without the notes, which refuse a bad record of the head in words of their own.
    known, _, parts = parts_of(source or TfrecordSource(), *inputs, features=features, **options)
    for part in parts:
        part.batch.validate(full=True)
        assert [c.type for c in part.batch.columns] == [f.arrow_type for f in known]
    rows = [row for part in parts for row in part.batch.to_pylist()]
    assert len({identity for part in parts for identity in part.identities.tolist()}) == len(rows)
    return {f.name: f for f in known}, rows, [row for part in parts for row in part.rejected]


def fails(*inputs: Path, kind=BadInputError, **options) -> str:
    with pytest.raises(kind) as caught:
        read(*inputs, **options)
    return str(caught.value)
