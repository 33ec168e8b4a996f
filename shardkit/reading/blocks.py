"""The blocks of a split in memory: their framed records, and where each record lies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardkit import storage
from shardkit.blocks import BlockReader
from shardkit.codec_kernel import Int64s
from shardkit.dataset import Dataset
from shardkit.decoder import scan_whole
from shardkit.errors import DamageError
from shardkit.reading.split_blocks import SplitBlocks


class Block(NamedTuple):
    """The records of one block.

    Attributes:
        where: File and block, for messages.
        frames: Framed records.
        starts: Where each record's own bytes start, in the epoch's order.
        lengths: Bytes of each record.
        stored_rows: Stored position of each record in the block.
    """

    where: str
    frames: bytes | bytearray
    starts: Int64s
    lengths: Int64s
    stored_rows: Int64s


class BlockLoader:
    """Loads the blocks of a split; for any number of threads.

    Attributes:
        is_remote: Whether they lie in a store, where a request waits longer than it works.
    """

    def __init__(self, dataset: Dataset, blocks: SplitBlocks) -> None:
        self.is_remote = not storage.is_local(dataset.url)
        self._readers = BlockReader(dataset)
        self._blocks = blocks

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
        frames, where = self._readers.read(ref), self._readers.where(ref)
        starts, lengths = scan_whole(frames, where)
        if len(starts) != ref.num_examples:
            raise DamageError(
                "a block does not hold the records that the index states",
                where=where,
                why=f"expected {ref.num_examples:,}, found {len(starts):,}",
                next_step="Run: shardkit verify",
            )
        if order is None:
            return Block(where, frames, starts, lengths, np.arange(len(starts)))
        return Block(where, frames, starts[order], lengths[order], order)

    def close(self) -> None:
        """Closes the files that are open."""
        self._readers.close()
