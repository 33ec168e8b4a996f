"""The first examples of a split, read through the block index: no more blocks than they fill."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from shardkit.dataset.block_reader import list_blocks, read_block
from shardkit.dataset.open import Dataset
from shardkit.encoding.example import decode_record
from shardkit.encoding.tfrecord import iter_records


def first_examples(dataset: Dataset, split: str, num_examples: int) -> Iterator[dict[str, Any]]:
    """Yields at most so many examples in their stored order, as Python values by feature name, None where absent.

    Raises:
        UsageError: If there is no such split.
        DamageError: If a shard does not fit the manifest; names the place.
    """
    return itertools.islice(_examples(dataset, split), num_examples)


def _examples(dataset: Dataset, split: str) -> Iterator[dict[str, Any]]:
    for shard in dataset.split_shards(split):
        for block in list_blocks(shard):
            where = f"{shard.path}, block {block.block_index}"
            for record in iter_records(read_block(dataset, block), where):
                yield decode_record(record, dataset.manifest.features, where)
