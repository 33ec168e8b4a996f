"""What is asked of an export, and the formats by name. The command line reads this without loading Arrow."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from shardkit.units import MiB

if TYPE_CHECKING:
    from shardkit.exporting.base import ExportFormat

FILE_BYTES = 256 * MiB
# The class of each format, below this package.
FORMATS = {
    "parquet": "tables.Parquet",
    "arrow": "tables.Arrow",
    "csv": "tables.Csv",
    "jsonl": "tables.JsonLines",
    "webdataset": "webdataset.WebDataset",
    "mds": "mds.Mds",
    "array-record": "array_record.ArrayRecord",
}


@functools.cache
def format_named(name: str) -> ExportFormat:
    """Returns one of `FORMATS`."""
    module, _, kind = FORMATS[name].partition(".")
    return cast("ExportFormat", getattr(import_module(f"shardkit.exporting.{module}"), kind)())


class ExportRequest(NamedTuple):
    """Which rows and columns go into which files.

    Attributes:
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
