"""Rejected rows at rest: gzip files of JSON Lines, one object a row, beside the shards.

    {"file": "a.csv", "position": "line 17", "byte": 410, "reason": "...", "raw": "<base64>"}

A file that was rejected as a whole stands there once, without position and bytes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator

import msgspec
from isal import igzip

from shardkit import storage
from shardkit.accounting import RejectedFile
from shardkit.dataset import Dataset
from shardkit.errors import DamageError
from shardkit.units import MiB

MAX_FILE_BYTES = 64 * MiB
_LEVEL = 2


class RejectedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rejected row, or one file that was rejected as a whole.

    Attributes:
        file: Name of the input.
        position: Where in the file, for people; empty for a whole file.
        byte: Where the row starts in the decompressed file, if the format has such places.
        reason: What is wrong.
        raw: The bytes of the row, None for a whole file.
    """

    file: str
    position: str
    byte: int | None
    reason: str
    raw: bytes | None


def encode_record(record: RejectedRecord) -> bytes:
    """Returns one line, with its end."""
    return msgspec.json.encode(record) + b"\n"


def pack_files(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yields gzip files of about MAX_FILE_BYTES of lines, and how many each has; the same for the same lines."""
    sink, num_bytes, num_rows = io.BytesIO(), 0, 0
    writer = _open_writer(sink)
    for line in lines:
        if num_rows and num_bytes + len(line) > MAX_FILE_BYTES:
            writer.close()
            yield sink.getvalue(), num_rows
            sink, num_bytes, num_rows = io.BytesIO(), 0, 0
            writer = _open_writer(sink)
        writer.write(line)
        num_bytes += len(line)
        num_rows += 1
    writer.close()
    if num_rows:
        yield sink.getvalue(), num_rows


def read_rejected(dataset: Dataset) -> Iterator[RejectedRecord]:
    """Yields all rows that were quarantined, in the order of the inputs.

    Raises:
        DamageError: If a file of them is not what the manifest states.
    """
    for info in dataset.manifest.accounting.rejected_files:
        problem, content = check_file(dataset, info)
        if problem is not None:
            raise DamageError(problem, where=info.path, next_step="Run: shardkit verify")
        with igzip.open(io.BytesIO(content)) as lines:
            for line in lines:
                yield msgspec.json.decode(line, type=RejectedRecord)


def check_file(dataset: Dataset, info: RejectedFile) -> tuple[str | None, bytes]:
    """Returns what is wrong with a file of rejected rows, None if nothing is, and its bytes."""
    try:
        content = storage.read_bytes(storage.join(dataset.url, info.path))
    except FileNotFoundError:
        return "a file of rejected rows is missing", b""
    if hashlib.sha256(content).hexdigest() != info.sha256:
        return "a file of rejected rows is damaged: its SHA-256 is not the one that the manifest states", content
    return None, content


def _open_writer(sink: io.BytesIO) -> igzip.IGzipFile:
    return igzip.IGzipFile("", "wb", _LEVEL, sink, mtime=0)
