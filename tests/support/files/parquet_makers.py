"""What the tests of Parquet write and read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.columnar.parquet import ParquetSource


def write(folder: Path, table: pa.Table | dict, name: str = "a.parquet", **settings) -> Path:
    path = folder / name
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **settings)
    return path


def read(*paths: Path, features=None, source=None, **options):
    """Returns the features and the rows as one table."""
    source = source or ParquetSource()
    settings = SourceOptions(**options)
    files = list_inputs([str(p) for p in paths]).files
    features = features or source.infer(files, settings)
    batches = []
    for split in source.split(files, settings):
        for part in source.read(split, files, features, settings):
            part.batch.validate(full=True)
            batches.append(part.batch)
    return features, pa.Table.from_batches(batches, schema=arrow_schema(features))


def read_parts(path: Path, features=None, source=None, **options):
    """Returns the batches."""
    source, settings_ = source or ParquetSource(), SourceOptions(**options)
    files = list_inputs([str(path)]).files
    features = features or source.infer(files, settings_)
    return [p for s in source.split(files, settings_) for p in source.read(s, files, features, settings_)]
