"""What the tests of Parquet write and read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shardkit.sources.columnar.parquet import ParquetSource
from tests.support.files.source_makers import parts_of, table_of


def write(folder: Path, table: pa.Table | dict, name: str = "a.parquet", **settings) -> Path:
    path = folder / name
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **settings)
    return path


def read(*paths: Path, features=None, source=None, **options):
    """Returns the features and the rows as one table."""
    return table_of(source or ParquetSource(), *paths, features=features, **options)


def read_parts(path: Path, features=None, source=None, **options):
    """Returns the batches."""
    return parts_of(source or ParquetSource(), path, features=features, **options)[2]
