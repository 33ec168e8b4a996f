"""What a shard table may hold: a hostile one of a few kilobytes may state any numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from shardkit.encoding.parquet_footer import RowGroup
from shardkit.errors import UnsafeError

# A few bytes of Parquet may stand for any number of values. 2**23 blocks of 1 MiB are a shard of 8 TiB.
_MOST_SHARDS = 10_000_000
_MOST_GROUP_BLOCKS = 2**23
# Shuffling them takes 2 GiB, and they are at least 4 GiB.
_MOST_BLOCK_EXAMPLES = 2**28


def check_size(groups: Sequence[RowGroup], where: str) -> None:
    """Refuses a table before anything of it is read.

    Raises:
        UnsafeError: If its row groups would take too much memory.
    """
    num_shards = sum(g.num_rows for g in groups)
    most = max((column.num_values for g in groups for column in g.columns), default=0)
    if num_shards > _MOST_SHARDS or most > _MOST_GROUP_BLOCKS:
        raise UnsafeError(
            "the shard table is refused",
            where=where,
            why=f"it lists {num_shards:,} shards, and up to {most:,} blocks in a row group",
            next_step=f"A table may have {_MOST_SHARDS:,} shards, and {_MOST_GROUP_BLOCKS:,} blocks in a row group",
        )


def check_block_sizes(group: pa.Table, where: str) -> None:
    """Refuses blocks with more examples than can be shuffled, as far as the column is there.

    Raises:
        UnsafeError: If there is one.
    """
    names = [name for name in group.column_names if name == "block_num_examples"]
    most = max((pc.max(group[name].combine_chunks().flatten()).as_py() or 0 for name in names), default=0)
    if most > _MOST_BLOCK_EXAMPLES:
        raise UnsafeError(
            "the shard table is refused",
            where=where,
            why=f"a block of {most:,} examples; it may have {_MOST_BLOCK_EXAMPLES:,}",
            next_step="Convert the files again, which makes small blocks",
        )
