"""What is asked of an export. The command line reads this without loading Arrow."""

from __future__ import annotations

from typing import NamedTuple

from shardkit.units import MiB

FORMAT_NAMES = ("parquet", "arrow", "csv", "jsonl", "webdataset", "mds", "array-record")
FILE_BYTES = 256 * MiB


class ExportRequest(NamedTuple):
    """Which rows and columns go into which files.

    Attributes:
        format: One of `FORMAT_NAMES`.
        splits: Names; empty for all.
        columns: Names in the wanted order; None for all.
        rows_per_file: Most rows of a file; None where `file_bytes` decides.
        file_bytes: Bytes of the records of a file as the dataset holds them, uncompressed and with all columns.
    """

    format: str
    splits: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    rows_per_file: int | None = None
    file_bytes: int = FILE_BYTES
