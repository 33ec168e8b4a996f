"""Rejected rows at rest: gzip files of JSON Lines, one object a row, beside the shards.

    {"file": "a.csv", "position": "line 17", "byte": 410, "reason": "...", "raw": "<base64>"}

A file that was rejected as a whole is listed once, without position and bytes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator

import msgspec
from isal import igzip
from zlib_ng import zlib_ng

from shardkit.dataset.documents import RejectedFile
from shardkit.dataset.open import Dataset
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.gzip_files import DAMAGED
from shardkit.errors import DamageError
from shardkit.storage import files as storage
from shardkit.storage.regular_files import NotRegularError
from shardkit.units import MiB

MAX_FILE_BYTES = 64 * MiB
_LEVEL = 2
_GZIP_WINDOW = 31
# A record holds at most 1 MiB of a row.
_MAX_LINE_BYTES = 16 * MiB
_UNREADABLE = (OSError, EOFError, DAMAGED, *DECODE_ERRORS)


class RejectedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rejected row, or one file that was rejected as a whole.

    Attributes:
        position: Where in the file, for people; empty for a whole file.
        byte: Where the row starts in the decompressed file, if the format has such places.
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
    # Not ISA-L: its bytes would depend on where it lies in memory (shardkit/encoding/codec.py).
    parts: list[bytes] = []
    num_bytes = num_rows = 0
    compressor = zlib_ng.compressobj(_LEVEL, zlib_ng.DEFLATED, _GZIP_WINDOW)
    for line in lines:
        if num_rows and num_bytes + len(line) > MAX_FILE_BYTES:
            yield b"".join((*parts, compressor.flush())), num_rows
            parts, num_bytes, num_rows = [], 0, 0
            compressor = zlib_ng.compressobj(_LEVEL, zlib_ng.DEFLATED, _GZIP_WINDOW)
        parts.append(compressor.compress(line))
        num_bytes += len(line)
        num_rows += 1
    if num_rows:
        yield b"".join((*parts, compressor.flush())), num_rows


def read_rejected(dataset: Dataset, first: int = 0) -> Iterator[RejectedRecord]:
    """Yields all rows that were quarantined, in the order of the inputs.

    Args:
        first: The file of them to begin with.

    Raises:
        DamageError: If a file of them is not what the manifest states.
    """
    for info in dataset.manifest.accounting.rejected_files[first:]:
        problem, content = check_file(dataset, info)
        if problem is not None:
            raise DamageError(problem, where=info.path, next_step="Run: shardkit verify")
        try:
            yield from _records(content)
        except _UNREADABLE as error:
            raise DamageError("a file of rejected rows cannot be read", where=info.path, why=str(error)) from error


def _records(content: bytes) -> Iterator[RejectedRecord]:
    with igzip.open(io.BytesIO(content)) as lines:
        # A longer line is cut, and is no JSON then.
        while line := lines.readline(_MAX_LINE_BYTES):
            yield msgspec.json.decode(line, type=RejectedRecord)


def check_file(dataset: Dataset, info: RejectedFile) -> tuple[str | None, bytes]:
    """Returns what is wrong with a file of rejected rows, None if nothing is, and its bytes."""
    try:
        return None, read_hashed(storage.join(dataset.url, info.path), info.sha256)
    except FileNotFoundError:
        return "a file of rejected rows is missing", b""
    except NotRegularError as error:
        return f"a file of rejected rows cannot be read: {error.strerror}", b""
    except DamageError:
        return "a file of rejected rows is damaged: its SHA-256 is not the one that the manifest states", b""


def read_hashed(path: str, sha256: str) -> bytes:
    """Returns a whole file of a dataset. A store that gives other bytes is asked again.

    Raises:
        DamageError: If the file has another SHA-256.
        FileNotFoundError, NotRegularError: If there is no such file.
        StorageError: If the store gave another answer every time.
    """

    def check(content: bytes) -> bytes:
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DamageError("the SHA-256 is another one", where=storage.redact(path))
        return content

    return storage.read_decoded(path, check)
