"""The blocks of a split in memory: their framed records, and where each record is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from shardkit.dataset.block_index import BlockRef, SplitBlocks
from shardkit.dataset.block_reader import BlockReader, list_runs, map_blocks
from shardkit.dataset.open import Dataset
from shardkit.dataset.stored_blocks import Stored
from shardkit.encoding.decoder import scan_whole
from shardkit.encoding.kernel import Int64s, gather
from shardkit.errors import DamageError
from shardkit.storage import files as storage
from shardkit.units import KiB

_MAX_COPIED_RECORD_BYTES = KiB


class Block(NamedTuple):
    """The records of one block.

    Attributes:
        frames: Holds the records, framed or one after the other.
        starts: Where each record's own bytes start, in the epoch's order.
        lengths: Bytes of each record.
        where: File and block, for messages.
        stored_rows: Stored position of each record in the block.
    """

    frames: bytes | bytearray | memoryview
    starts: Int64s
    lengths: Int64s
    where: str
    stored_rows: Int64s


Fetched = Callable[[], Block]
"""A block that was fetched as it is stored. It gives the result of `BlockLoader.load`, or raises its error."""


class BlockLoader:
    """Loads the blocks of a split; for any number of threads.

    Attributes:
        is_remote: Whether they are in a store, where a request waits longer than it works.
    """

    def __init__(self, dataset: Dataset, blocks: SplitBlocks) -> None:
        self.is_remote = not storage.is_local(dataset.url)
        self._dataset = dataset
        self._readers = BlockReader(dataset)
        self._blocks = blocks
        self._kept: list[bytes | bytearray | memoryview] = []

    def keep_all(self, num_threads: int) -> None:
        """Reads all blocks, a few requests at a time, and keeps their framed records in memory.

        Raises:
            DamageError: If one is not what the index states; names shard and block.
        """
        refs = [self._blocks.ref(index) for index in range(len(self._blocks.num_examples))]
        if not self._kept:
            frames = map_blocks(
                self._dataset, refs, lambda _, frames: frames, num_threads=num_threads, max_ahead=4 * num_threads
            )
            self._kept = list(frames)
            self.is_remote = False

    def num_bytes(self, index: int) -> int:
        """Returns the bytes of a block's framed records."""
        return self._blocks.ref(index).num_uncompressed_bytes

    def load(self, index: int, order: Int64s | None) -> Block:
        """Returns one block.

        Args:
            index: 0-based position among all blocks of the split.
            order: Stored positions of its rows in the wanted order; None for the stored one.

        Raises:
            DamageError: If it is not what the index states; names shard and block.
        """
        ref = self._blocks.ref(index)
        return self._block(ref, self._kept[index] if self._kept else self._readers.read(ref), order)

    def runs(self, indexes: Iterable[int]) -> Iterator[int]:
        """Yields how many blocks, of those at positions among all of the split, are loaded together."""
        return map(len, list_runs(self._dataset, map(self._blocks.ref, indexes)))

    def fetch_run(self, run: Sequence[tuple[int, Int64s | None]]) -> Iterator[Fetched]:
        """Yields the blocks of a run as they are stored, each for the arguments of `load`.

        Raises:
            DamageError, StorageError: In the place of a block that cannot be fetched.
        """
        refs = [self._blocks.ref(index) for index, _ in run]
        for ref, data, (_, order) in zip(refs, self._readers.read_stored_run(refs), run, strict=True):
            yield partial(self._unpack, ref, data, order)

    def _unpack(self, ref: BlockRef, data: Stored, order: Int64s | None) -> Block:
        return self._block(ref, self._readers.unpack(ref, data), order)

    def _block(self, ref: BlockRef, frames: bytes | bytearray | memoryview, order: Int64s | None) -> Block:
        where = self._readers.where(ref)
        # Each record's CRC32C was checked when the block's own was computed, and that has been checked again.
        starts, lengths = scan_whole(frames, where, checks_records=False)
        if len(starts) != ref.num_examples:
            raise DamageError(
                "a block does not hold the records that the index states",
                where=where,
                why=f"expected {ref.num_examples:,}, found {len(starts):,}",
                next_step=self._dataset.check_step,
            )
        if order is None:
            return Block(frames, starts, lengths, where, np.arange(len(starts)))
        starts, lengths = starts[order], lengths[order]
        if len(frames) <= _MAX_COPIED_RECORD_BYTES * len(starts):
            # A batch then reads neighbours: short records from all over a block take half as long again to decode.
            frames, starts = gather(frames, starts, lengths), lengths.cumsum() - lengths
        return Block(frames, starts, lengths, where, order)

    def close(self) -> None:
        """Closes the files that are open."""
        self._readers.close()
