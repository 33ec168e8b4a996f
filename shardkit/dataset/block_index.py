"""Where the blocks of a shard are, by its row of the shard table."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.dataset.manifest import ShardInfo
from shardkit.dataset.open import Dataset
from shardkit.encoding.codec import GZIP_HEADER_BYTES

Int64s = npt.NDArray[np.int64]
_NUM_LISTED_SHARDS = 256


def is_whole_file(shard: ShardInfo) -> bool:
    """Whether a gzip shard is one block from its first byte to its last; shardkit's own have a header before it."""
    return shard.block_num_bytes == (shard.num_bytes,)


class BlockRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where one block lies and what it holds.

    Attributes:
        path: Of the shard, relative to the dataset.
        shard_index: 0-based position of the shard in the split.
        block_index: 0-based position of the block in the shard.
        start: Its first byte in the file.
        num_bytes: Its size in the file.
        num_uncompressed_bytes: Size of its framed records.
        crc32c: Of its bytes in the file.
    """

    path: str
    split: str
    shard_index: int
    block_index: int
    start: int
    num_bytes: int
    num_uncompressed_bytes: int
    num_examples: int
    crc32c: int
    sha256: str


def list_blocks(shard: ShardInfo) -> tuple[BlockRef, ...]:
    """Returns the blocks of a shard in their stored order."""
    # A shard without compression is nothing but its blocks, and a gzip file of others is one block from its first byte.
    start = GZIP_HEADER_BYTES if shard.num_bytes != sum(shard.block_num_bytes) else 0
    columns = (shard.block_num_bytes, shard.block_num_uncompressed_bytes, shard.block_num_examples, shard.block_crc32c)
    found = []
    for block_index, (num_bytes, num_uncompressed_bytes, num_examples, crc) in enumerate(zip(*columns, strict=True)):
        found.append(
            BlockRef(
                path=shard.path,
                split=shard.split,
                shard_index=shard.shard_index,
                block_index=block_index,
                start=start,
                num_bytes=num_bytes,
                num_uncompressed_bytes=num_uncompressed_bytes,
                num_examples=num_examples,
                crc32c=crc,
                sha256=shard.sha256,
            )
        )
        start += num_bytes
    return tuple(found)


class SplitBlocks:
    """All blocks of a split in their stored order.

    Attributes:
        num_examples: Of each block.
        ends: Position in the split after the last example of each block.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._shards = dataset.split_shards(split)
        blocks_each, self.num_examples = self._shards.block_examples()
        self._stops_of_shards = np.cumsum(blocks_each)
        self._firsts_of_shards = self._stops_of_shards - blocks_each
        self.ends: Int64s = np.cumsum(self.num_examples)
        self._list = functools.lru_cache(_NUM_LISTED_SHARDS)(lambda shard: list_blocks(self._shards[shard]))

    def ref(self, index: int) -> BlockRef:
        """Returns where a block is.

        Args:
            index: 0-based position among all blocks of the split.
        """
        shard = int(np.searchsorted(self._stops_of_shards, index, side="right"))
        return self._list(shard)[index - int(self._firsts_of_shards[shard])]
