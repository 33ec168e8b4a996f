"""Write: the records of some shards are fetched group by group, ordered, cut into blocks, compressed and put."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import groupby, pairwise
from typing import NamedTuple, Self

import msgspec
import numpy as np

from shardkit.conversion.extract.runs import LoadedSegments, Segment, loaded_segments
from shardkit.conversion.layout_math import Int64s, SplitLayout, WriteUnit, shard_of_starts
from shardkit.conversion.plan import Plan, Recipe
from shardkit.conversion.progress import Progress
from shardkit.conversion.shards.shard_file import PackedBlock, ShardFile, find_shard
from shardkit.dataset.manifest import ShardInfo
from shardkit.encoding.codec import BLOCK_BYTES, compress_block, crc32
from shardkit.encoding.kernel import gather
from shardkit.hashing import stable_order
from shardkit.runtime.threads import worker_threads


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


def write_shards(
    plan: Plan,
    split: SplitLayout,
    unit: WriteUnit,
    segments: Sequence[Segment],
    progress: Progress | None = None,
    num_threads: int = 1,
) -> tuple[ShardInfo, ...]:
    """Writes the shards of a unit, but for those that an earlier run left and that are still right.

    Returns:
        The rows of the shards, in order.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If a shard cannot be written.
        ConflictError: If it would change a committed shard.
    """
    shards: dict[int, ShardInfo] = {}
    for shard_index in range(unit.first_shard, unit.stop_shard):
        done = find_shard(plan, split, shard_index)
        if done is not None:
            shards[shard_index] = done
            if progress is not None:
                progress.add(
                    num_written_rows=done.num_examples,
                    num_framed_bytes=done.num_uncompressed_bytes,
                    num_kept_framed_bytes=done.num_uncompressed_bytes,
                )
    if len(shards) < unit.stop_shard - unit.first_shard:
        parts = _parts_of(plan, split, unit, segments)
        for shard_index, own in groupby(parts, lambda part: part.shard_index):
            if shard_index not in shards:
                with _ShardWriter(plan, split, shard_index, num_threads) as writer:
                    for part in own:
                        writer.add(part)
                        if progress is not None:
                            progress.add(num_written_rows=part.stop - part.first, num_framed_bytes=part.num_bytes)
                    shards[shard_index] = writer.publish()
    return tuple(shards[i] for i in sorted(shards))


def forget_written(plan: Plan) -> None:
    """Removes the records of written shards, after an input changed."""
    for path in plan.work_path("shards").glob("*"):
        path.unlink()


class _Part(NamedTuple):
    """Records `[first, stop)` of a group, which are of one shard; they start at `starts` in the split."""

    shard_index: int
    group: OrderedGroup
    first: int
    stop: int
    starts: Int64s

    @property
    def num_bytes(self) -> int:
        return int(self.group.sizes[self.first : self.stop].sum())


def _parts_of(plan: Plan, split: SplitLayout, unit: WriteUnit, segments: Sequence[Segment]) -> Iterator[_Part]:
    """Yields the parts of the unit's shards in order. The records of a part go when the next one is asked for."""
    ordered_segments = sorted(segments, key=lambda s: (s.group, s.order, s.piece))
    for group_index, own in groupby(ordered_segments, lambda s: s.group):
        with loaded_segments(list(own)) as loaded:
            group = order_group(loaded, shuffle=plan.recipe.shuffle)
            starts = np.cumsum(group.sizes) - group.sizes + split.groups[group_index].first_byte
            shard_of = shard_of_starts(starts, split.cuts)
            bounds = np.flatnonzero(np.diff(shard_of, prepend=-1, append=-1)).tolist()
            for first, stop in pairwise(bounds):
                if unit.first_shard <= shard_of[first] < unit.stop_shard:
                    yield _Part(int(shard_of[first]), group, first, stop, starts[first:stop])


class _ShardWriter:
    """Makes one shard of its parts. Where blocks are cut depends on the records alone, not on the groups."""

    def __init__(self, plan: Plan, split: SplitLayout, shard_index: int, num_threads: int) -> None:
        self._recipe = plan.recipe
        self._file = ShardFile(plan, split, shard_index)
        self._num_threads = num_threads
        self._in_work: deque[Future[PackedBlock]] = deque()
        self._exit = contextlib.ExitStack()
        self._first_byte: int | None = None
        # The block that the next part may go on with: its number, its records, their sizes.
        self._number = -1
        self._pending: list[memoryview] = []
        self._pending_sizes: list[Int64s] = []

    def __enter__(self) -> Self:
        self._exit.enter_context(self._file)
        self._pool = self._exit.enter_context(worker_threads(self._num_threads, "compress"))
        return self

    def __exit__(self, *unused: object) -> None:
        for future in self._in_work:
            future.cancel()
        self._exit.close()

    def add(self, part: _Part) -> None:
        """Takes the next records."""
        if self._first_byte is None:
            self._first_byte = int(part.starts[0])
        # A block takes the records that start in one stretch of BLOCK_BYTES.
        numbers = (part.starts - self._first_byte) // BLOCK_BYTES
        bounds = [0, *np.flatnonzero(np.diff(numbers)) + 1, len(numbers)]
        for first, stop in pairwise(bounds):
            if numbers[first] != self._number:
                self._end_block()
                self._number = int(numbers[first])
            self._pending.append(part.group.join(part.first + first, part.first + stop))
            self._pending_sizes.append(part.group.sizes[part.first + first : part.first + stop])

    def publish(self) -> ShardInfo:
        """Ends the shard and returns its row."""
        self._end_block()
        self._take_packed(max_left=0)
        return self._file.publish()

    def _end_block(self) -> None:
        if not self._pending:
            return
        records, sizes = self._pending, np.concatenate(self._pending_sizes)
        self._pending, self._pending_sizes = [], []
        self._in_work.append(self._pool.submit(_pack, records, sizes, self._recipe))
        self._take_packed(max_left=self._num_threads)

    def _take_packed(self, max_left: int) -> None:
        while len(self._in_work) > max_left:
            self._file.add(self._in_work.popleft().result())


def _pack(pieces: list[memoryview], sizes: Int64s, recipe: Recipe) -> PackedBlock:
    records = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    return PackedBlock(
        data=compress_block(records, recipe.compression, recipe.compression_level),
        num_uncompressed_bytes=len(records),
        crc32=crc32(records),
        record_sizes=sizes,
    )
