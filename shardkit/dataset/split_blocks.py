"""The blocks of a split as arrays, from which positions and orders are computed."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from shardkit.dataset.block_index import BlockRef, list_blocks
from shardkit.dataset.open import Dataset

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
        blocks_each, self.num_examples = self._shards.block_examples()
        self._stops_of_shards = np.cumsum(blocks_each)
        self._firsts_of_shards = self._stops_of_shards - blocks_each
        self.ends: Int64s = np.cumsum(self.num_examples)
        self._list = functools.lru_cache(_NUM_LISTED_SHARDS)(lambda shard: list_blocks(self._shards[shard]))

    def ref(self, index: int) -> BlockRef:
        """Returns where a block lies.

        Args:
            index: 0-based position among all blocks of the split.
        """
        shard = int(np.searchsorted(self._stops_of_shards, index, side="right"))
        return self._list(shard)[index - int(self._firsts_of_shards[shard])]
