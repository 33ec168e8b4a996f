"""One shard while it is made: blocks in a temporary file, checksums on the way, put whole at the end."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np

from shardkit.conversion.extract.runs import write_all
from shardkit.conversion.layout_math import Int64s, SplitLayout, shard_file_name
from shardkit.conversion.plan import Plan, write_whole
from shardkit.dataset.manifest import ShardInfo
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.codec import FILE_SUFFIX, GZIP_HEADER, Compression, crc32_combine, gzip_trailer
from shardkit.encoding.kernel import crc32c
from shardkit.encoding.tfrecord import index_lines
from shardkit.errors import ConflictError
from shardkit.storage import files as storage


class PackedBlock(NamedTuple):
    """One block as it is stored.

    Attributes:
        num_uncompressed_bytes: Framed bytes.
        record_sizes: Framed size of each record.
    """

    data: bytes | memoryview
    num_uncompressed_bytes: int
    crc32: int
    record_sizes: Int64s


class ShardFile:
    """One shard while it grows in a temporary file of the work folder."""

    def __init__(self, plan: Plan, split: SplitLayout, shard_index: int) -> None:
        self._plan = plan
        self._split = split
        self._shard_index = shard_index
        self._compression: Compression = plan.recipe.compression
        self._path = plan.work_path("tmp", f"{split.name}-{shard_index}.{secrets.token_hex(4)}")
        self._sha256 = hashlib.sha256()
        self._crc32c = 0
        self._crc32 = 0
        self._num_bytes = 0
        self._blocks: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        self._record_sizes: list[Int64s] = []
        self._file: io.RawIOBase

    def __enter__(self) -> Self:
        with storage.translate_os_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb", buffering=0)
            if self._compression == "gzip":
                self._write(GZIP_HEADER)
        return self

    def __exit__(self, *unused: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, block: PackedBlock) -> None:
        """Appends a block."""
        with storage.translate_os_errors(self._path):
            self._write(block.data)
        self._crc32 = crc32_combine(self._crc32, block.crc32, block.num_uncompressed_bytes)
        self._blocks[0].append(len(block.data))
        self._blocks[1].append(block.num_uncompressed_bytes)
        self._blocks[2].append(len(block.record_sizes))
        self._blocks[3].append(crc32c(block.data))
        if self._compression == "none":
            self._record_sizes.append(block.record_sizes)

    def publish(self) -> ShardInfo:
        """Ends the shard, puts it (and its index of records, where uncompressed) and returns its row."""
        suffix = FILE_SUFFIX[self._compression]
        name = shard_file_name(self._split.name, self._shard_index, self._split.num_shards, suffix)
        path = f"{self._plan.data_path}/{name}"
        with storage.translate_os_errors(self._path):
            if self._compression == "gzip":
                self._write(gzip_trailer(self._crc32, sum(self._blocks[1])))
            os.fsync(self._file.fileno())
        info = ShardInfo(
            split=self._split.name,
            shard_index=self._shard_index,
            path=path,
            num_examples=sum(self._blocks[2]),
            num_bytes=self._num_bytes,
            num_uncompressed_bytes=sum(self._blocks[1]),
            crc32c=self._crc32c,
            sha256=self._sha256.hexdigest(),
            block_num_bytes=tuple(self._blocks[0]),
            block_num_uncompressed_bytes=tuple(self._blocks[1]),
            block_num_examples=tuple(self._blocks[2]),
            block_crc32c=tuple(self._blocks[3]),
        )
        _check_committed(self._plan, info)
        destination = storage.join(self._plan.destination, path)
        storage.put_file(self._path, destination)
        if self._compression == "none":
            self._publish_record_index(f"{destination}.idx")
        write_whole(_shard_record(self._plan, self._split, self._shard_index), msgspec.msgpack.encode(info))
        return info

    def _publish_record_index(self, destination: str) -> None:
        sizes = np.concatenate(self._record_sizes)
        lines = index_lines(np.cumsum(sizes) - sizes, sizes)
        index_path = self._path.with_suffix(".idx")
        try:
            write_whole(index_path, lines)
            storage.put_file(index_path, destination)
        finally:
            index_path.unlink(missing_ok=True)

    def _write(self, data: bytes | memoryview) -> None:
        write_all(self._file, data)
        self._sha256.update(data)
        self._crc32c = crc32c(data, self._crc32c)
        self._num_bytes += len(data)


def find_shard(plan: Plan, split: SplitLayout, shard_index: int) -> ShardInfo | None:
    """Returns the row of a shard that an earlier run finished, None if there is none that is still right."""
    try:
        raw = _shard_record(plan, split, shard_index).read_bytes()
        shard = msgspec.msgpack.decode(raw, type=ShardInfo)
    except (FileNotFoundError, *DECODE_ERRORS):
        return None
    return shard if is_right(plan, shard) else None


def shard_record_name(split: SplitLayout, shard_index: int) -> str:
    """Returns where the row of a finished shard is kept, relative to the work folder."""
    return f"shards/{split.name}-{shard_index}.msgpack"


def _shard_record(plan: Plan, split: SplitLayout, shard_index: int) -> Path:
    return plan.work_path(shard_record_name(split, shard_index))


def is_right(plan: Plan, shard: ShardInfo) -> bool:
    """Whether a shard is in the destination with the bytes that its row states."""
    url = storage.join(plan.destination, shard.path)
    return storage.exists(url) and storage.hash_file(url) == shard.sha256


def _check_committed(plan: Plan, shard: ShardInfo) -> None:
    committed = plan.work_path("committed.json")
    if not committed.exists():
        return
    known: dict[str, str] = msgspec.json.decode(committed.read_bytes(), type=dict[str, str])
    if known.get(shard.path, shard.sha256) != shard.sha256:
        raise ConflictError(
            "an input changed but kept its name and size",
            where=storage.redact(plan.destination),
            why=f"{shard.path} of a committed version would change",
            state="The committed versions are untouched",
            next_step="Write to another destination",
        )
