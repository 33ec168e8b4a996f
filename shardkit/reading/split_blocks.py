"""The blocks of a split as arrays: what positions and orders are computed from."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from shardkit.blocks import BlockRef, list_blocks
from shardkit.dataset import Dataset

Int64s = npt.NDArray[np.int64]

_NUM_LISTED_SHARDS = 256


class SplitBlocks:
    """All blocks of a split in their stored order.

    Attributes:
        num_examples: Of each block.
        ends: Position in the split after the last example of each block.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._shards = dataset.split_shards(split)
        blocks_each = [len(shard.block_num_examples) for shard in self._shards]
        self._shard_of = np.repeat(np.arange(len(blocks_each)), blocks_each)
        self._first_of_shard = np.cumsum([0, *blocks_each])
        counts = [np.asarray(shard.block_num_examples, np.int64) for shard in self._shards]
        self.num_examples: Int64s = np.concatenate(counts) if counts else np.zeros(0, np.int64)
        self.ends: Int64s = np.cumsum(self.num_examples)
        self._list = functools.lru_cache(_NUM_LISTED_SHARDS)(lambda shard: list_blocks(self._shards[shard]))

    def ref(self, index: int) -> BlockRef:
        """Returns where a block lies.

        Args:
            index: 0-based position among all blocks of the split.
        """
        shard = int(self._shard_of[index])
        return self._list(shard)[index - int(self._first_of_shard[shard])]
