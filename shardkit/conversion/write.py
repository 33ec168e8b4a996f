"""Write: the segments of a group become whole shards, or pieces of the shards that span groups; joins of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from shardkit.codec import BLOCK_BYTES, compress_block, crc32
from shardkit.codec_kernel import gather
from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.progress import Progress
from shardkit.conversion.shard_file import Piece, ShardFile, find_shard, is_right
from shardkit.conversion.spool import LoadedSegments, Segment, loaded_segments
from shardkit.hashing import stable_order
from shardkit.manifest import ShardInfo
from shardkit.planning import Int64s, SplitLayout, block_bounds, shard_of_starts


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

    data: memoryview
    offsets: Int64s
    sizes: Int64s

    def join(self, first: int, stop: int) -> memoryview:
        """Returns records `[first, stop)` of the final order."""
        return gather(self.data, self.offsets[first:stop], self.sizes[first:stop])


def order_group(segments: LoadedSegments, *, shuffle: bool) -> OrderedGroup:
    """Brings the records of a group into their final order: by key, equal keys by the order of the segments."""
    sizes = segments.sizes
    offsets = np.cumsum(sizes) - sizes
    if shuffle:
        order = stable_order(segments.keys)
        sizes, offsets = sizes[order], offsets[order]
    return OrderedGroup(data=segments.data, offsets=offsets, sizes=sizes)


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
        with loaded_segments(sorted(segments, key=lambda s: s.order)) as loaded:
            ordered = order_group(loaded, shuffle=plan.recipe.shuffle)
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
    done = find_shard(plan, split, shard_index)
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
            done = find_shard(plan, split, shard_index)
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
    packed: list[bytes | memoryview] = []
    crc = 0
    bounds = block_bounds(ordered.sizes[first:stop], BLOCK_BYTES)
    framed_sizes = []
    for a, b in bounds:
        records = ordered.join(first + a, first + b)
        framed_sizes.append(len(records))
        crc = crc32(records, crc)
        packed.append(compress_block(records, compression, plan.recipe.compression_level))
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
    is_whole = all(is_right(plan, s) for s in done.shards) and all(Path(p.path).exists() for p in done.pieces)
    return done if is_whole else None
