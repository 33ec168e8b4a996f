"""Sizes of the files that a conversion writes beside the shards."""

from __future__ import annotations

_SPOOL_ROW_BYTES = 12
_KEY_RANGE_BYTES = 32
_DOCUMENT_BYTES = 32 * 1024
_FEATURE_BYTES = 3 * 1024
FILE_BYTES = 260
_SHARD_ROW_BYTES = 64
_BLOCK_BYTES = 10


def spool_bytes(*, num_runs: float, num_rows: float, num_framed_bytes: float, num_key_ranges: int) -> int:
    """Returns the size of the spool: framed records, their keys and sizes, the indexes.

    Args:
        num_key_ranges: That a run can have; it has none without rows.
    """
    indexes = num_runs * min(num_rows / max(1, num_runs), num_key_ranges) * _KEY_RANGE_BYTES
    return int(num_framed_bytes + num_rows * _SPOOL_ROW_BYTES + indexes)


def manifest_bytes(*, num_files: int, num_features: int, num_splits: int) -> int:
    """Returns the size of the manifest's JSON: the account of every file, statistics of every feature and split."""
    return _DOCUMENT_BYTES + num_splits * num_features * _FEATURE_BYTES + num_files * FILE_BYTES


def table_bytes(*, num_shards: int, num_blocks: int) -> int:
    """Returns the size of the shard table."""
    return 4096 + num_shards * _SHARD_ROW_BYTES + num_blocks * _BLOCK_BYTES
