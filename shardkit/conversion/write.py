"""Write: the segments of a group become whole shards, or pieces of the shards that span groups; joins of pieces."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import google_crc32c
import msgspec
import numpy as np

from shardkit import storage
from shardkit.codec import (
    BLOCK_BYTES,
    FILE_SUFFIX,
    GZIP_HEADER,
    Compression,
    compress_block,
    crc32,
    crc32_combine,
    gzip_trailer,
)
from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.progress import Progress
from shardkit.conversion.spool import LoadedSegment, Segment, load_segment
from shardkit.errors import ConflictError
from shardkit.manifest import ShardInfo
from shardkit.planning import Int64s, SplitLayout, block_bounds, shard_file_name, shard_of_starts

_COPY_BYTES = 4 * 1024 * 1024


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Compressed blocks of a part of one shard, in a file of the work folder.

    Attributes:
        shard_index: The shard it belongs to.
        order: Position of its group in the split; pieces are joined in this order.
        path: Of the blocks.
        crc32: Of the framed records.
        block_num_bytes, block_num_uncompressed_bytes, block_num_examples: See `ShardInfo`.
        record_sizes: Framed sizes as bytes of uint32, for the index of uncompressed shards; empty with gzip.
    """

    shard_index: int
    order: int
    path: str
    crc32: int
    block_num_bytes: tuple[int, ...]
    block_num_uncompressed_bytes: tuple[int, ...]
    block_num_examples: tuple[int, ...]
    record_sizes: bytes = b""


class WrittenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one group."""

    shards: tuple[ShardInfo, ...]
    pieces: tuple[Piece, ...]


class OrderedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Records in their final order.

    Attributes:
        data: All records, in the order of the segments.
        offsets: Where each record starts in `data`, in the final order.
        sizes: Framed size of each record, in the final order.
    """

    data: bytes
    offsets: Int64s
    sizes: Int64s

    def join(self, first: int, stop: int) -> bytes:
        """Returns records `[first, stop)` of the final order."""
        data = self.data
        spans = zip(self.offsets[first:stop].tolist(), self.sizes[first:stop].tolist(), strict=True)
        return b"".join([data[o : o + s] for o, s in spans])


def order_group(segments: Sequence[LoadedSegment], *, shuffle: bool) -> OrderedGroup:
    """Brings the records of a group into their final order: by key, equal keys by the order of the segments."""
    sizes = np.concatenate([s.sizes for s in segments])
    offsets = np.cumsum(sizes) - sizes
    if shuffle:
        order = np.argsort(np.concatenate([s.keys for s in segments]), kind="stable")
        sizes, offsets = sizes[order], offsets[order]
    return OrderedGroup(data=b"".join([s.data for s in segments]), offsets=offsets, sizes=sizes)


def write_group(
    plan: Plan, split: SplitLayout, group_index: int, segments: Sequence[Segment], progress: Progress | None = None
) -> WrittenGroup:
    """Writes one group; does nothing if an earlier run did and its shards are still right.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If a shard cannot be written.
        ConflictError: If it would change a committed shard.
    """
    record_path = plan.work_path("groups", f"{split.name}-{group_index}.msgpack")
    group = split.groups[group_index]
    done = _find_written(plan, record_path)
    if done is None:
        loaded = [load_segment(s) for s in sorted(segments, key=lambda s: s.order)]
        ordered = order_group(loaded, shuffle=plan.recipe.shuffle)
        del loaded
        done = _write_ordered(plan, split, group_index, ordered, progress)
        write_whole(record_path, msgspec.msgpack.encode(done))
    elif progress is not None:
        progress.add(num_framed_bytes=group.num_bytes)
    return done


def join_pieces(plan: Plan, split: SplitLayout, pieces: Sequence[Piece]) -> ShardInfo:
    """Makes one shard of the pieces that groups left of it; does nothing if an earlier run did.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If the shard cannot be written.
        ConflictError: If it would change a committed shard.
    """
    ordered = sorted(pieces, key=lambda p: p.order)
    shard_index = ordered[0].shard_index
    done = _find_shard(plan, split, shard_index)
    if done is not None:
        return done
    with ShardFile(plan, split, shard_index) as shard:
        for piece in ordered:
            shard.add_piece(piece)
        return shard.publish()


def forget_written(plan: Plan) -> None:
    """Removes the records of what was written, after an input changed."""
    for folder in ("groups", "shards", "pieces"):
        for path in plan.work_path(folder).glob("*"):
            path.unlink()


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
        self._blocks: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._record_sizes: list[bytes] = []
        self._file: BinaryIO

    def __enter__(self) -> Self:
        with storage.translate_os_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
            if self._compression == "gzip":
                self._write(GZIP_HEADER)
        return self

    def __exit__(self, *unused: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add_piece(self, piece: Piece) -> None:
        """Appends the blocks of a piece."""
        with storage.translate_os_errors(self._path), Path(piece.path).open("rb") as file:
            while chunk := file.read(_COPY_BYTES):
                self._write(chunk)
        num_framed_bytes = sum(piece.block_num_uncompressed_bytes)
        self._crc32 = crc32_combine(self._crc32, piece.crc32, num_framed_bytes)
        self._blocks[0].extend(piece.block_num_bytes)
        self._blocks[1].extend(piece.block_num_uncompressed_bytes)
        self._blocks[2].extend(piece.block_num_examples)
        self._record_sizes.append(piece.record_sizes)

    def add_block(self, records: bytes, sizes: Int64s) -> None:
        """Compresses and appends framed records as one block."""
        packed = compress_block(records, self._compression)
        with storage.translate_os_errors(self._path):
            self._write(packed)
        self._crc32 = crc32(records, self._crc32)
        self._blocks[0].append(len(packed))
        self._blocks[1].append(len(records))
        self._blocks[2].append(len(sizes))
        if self._compression == "none":
            self._record_sizes.append(sizes.astype("<u4").tobytes())

    def publish(self) -> ShardInfo:
        """Ends the shard, puts it (and its index of records, where uncompressed) and returns its row."""
        suffix = FILE_SUFFIX[self._compression]
        name = shard_file_name(self._split.name, self._shard_index, self._split.num_shards, suffix)
        path = f"{self._plan.data_path}/{name}"
        with storage.translate_os_errors(self._path):
            if self._compression == "gzip":
                self._write(gzip_trailer(self._crc32, sum(self._blocks[1])))
            self._file.flush()
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
        )
        _check_committed(self._plan, info)
        destination = storage.join(self._plan.destination, path)
        storage.put_file(self._path, destination)
        if self._compression == "none":
            self._publish_record_index(f"{destination}.idx")
        write_whole(_shard_record(self._plan, self._split, self._shard_index), msgspec.msgpack.encode(info))
        return info

    def _publish_record_index(self, destination: str) -> None:
        sizes = np.frombuffer(b"".join(self._record_sizes), dtype="<u4").astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        lines = "".join(f"{start} {size}\n" for start, size in zip(starts.tolist(), sizes.tolist(), strict=True))
        index_path = self._path.with_suffix(".idx")
        try:
            write_whole(index_path, lines.encode())
            storage.put_file(index_path, destination)
        finally:
            index_path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._num_bytes += len(data)


def _write_ordered(
    plan: Plan, split: SplitLayout, group_index: int, ordered: OrderedGroup, progress: Progress | None
) -> WrittenGroup:
    first_byte = split.groups[group_index].first_byte
    starts = np.cumsum(ordered.sizes) - ordered.sizes + first_byte
    end = first_byte + int(ordered.sizes.sum())
    shard_of = shard_of_starts(starts, split.cuts)
    shards: list[ShardInfo] = []
    pieces: list[Piece] = []
    for shard_index in np.unique(shard_of).tolist():
        first, stop = np.searchsorted(shard_of, [shard_index, shard_index + 1]).tolist()
        # A shard whose cut lies just before this group may start here too; it is then a piece that is joined alone.
        starts_here = first > 0 or first_byte == split.cuts[shard_index]
        ends_here = end >= split.cuts[shard_index + 1]
        if starts_here and ends_here:
            done = _find_shard(plan, split, shard_index)
            shards.append(done or _write_shard(plan, split, shard_index, ordered, first, stop))
        else:
            pieces.append(_write_piece(plan, split, group_index, shard_index, ordered, first, stop))
        if progress is not None:
            progress.add(num_framed_bytes=int(ordered.sizes[first:stop].sum()))
    return WrittenGroup(shards=tuple(shards), pieces=tuple(pieces))


def _write_shard(
    plan: Plan, split: SplitLayout, shard_index: int, ordered: OrderedGroup, first: int, stop: int
) -> ShardInfo:
    with ShardFile(plan, split, shard_index) as shard:
        for a, b in block_bounds(ordered.sizes[first:stop], BLOCK_BYTES):
            shard.add_block(ordered.join(first + a, first + b), ordered.sizes[first + a : first + b])
        return shard.publish()


def _write_piece(
    plan: Plan, split: SplitLayout, group_index: int, shard_index: int, ordered: OrderedGroup, first: int, stop: int
) -> Piece:
    compression = plan.recipe.compression
    packed: list[bytes] = []
    crc = 0
    bounds = block_bounds(ordered.sizes[first:stop], BLOCK_BYTES)
    framed_sizes = []
    for a, b in bounds:
        records = ordered.join(first + a, first + b)
        framed_sizes.append(len(records))
        crc = crc32(records, crc)
        packed.append(compress_block(records, compression))
    path = plan.work_path("pieces", f"{split.name}-{group_index}-{shard_index}")
    write_whole(path, b"".join(packed))
    sizes = ordered.sizes[first:stop].astype("<u4").tobytes() if compression == "none" else b""
    return Piece(
        shard_index=shard_index,
        order=group_index,
        path=str(path),
        crc32=crc,
        block_num_bytes=tuple(map(len, packed)),
        block_num_uncompressed_bytes=tuple(framed_sizes),
        block_num_examples=tuple(b - a for a, b in bounds),
        record_sizes=sizes,
    )


def _find_written(plan: Plan, record_path: Path) -> WrittenGroup | None:
    try:
        done = msgspec.msgpack.decode(record_path.read_bytes(), type=WrittenGroup)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    is_whole = all(_is_right(plan, s) for s in done.shards) and all(Path(p.path).exists() for p in done.pieces)
    return done if is_whole else None


def _find_shard(plan: Plan, split: SplitLayout, shard_index: int) -> ShardInfo | None:
    try:
        raw = _shard_record(plan, split, shard_index).read_bytes()
        shard = msgspec.msgpack.decode(raw, type=ShardInfo)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return shard if _is_right(plan, shard) else None


def _shard_record(plan: Plan, split: SplitLayout, shard_index: int) -> Path:
    return plan.work_path("shards", f"{split.name}-{shard_index}.msgpack")


def _is_right(plan: Plan, shard: ShardInfo) -> bool:
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
