"""Files that sources read in tests, and all that comes of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from shardkit.features import Features, arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import InputSplit, RowBatch, Source, SourceOptions, settle
from shardkit.testing.reading import Reading, read_paths


def write_file(folder: Path, content: str | bytes, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_all(source: Source, *paths: Path, features: Features | None = None, **options) -> Reading:
    """Returns the rows of all splits, each batch of them as its source promises it."""
    return read_paths(source, paths, SourceOptions(**options), features)


def parts_of(
    source: Source, *paths: Path, features: Features | None = None, **options
) -> tuple[Features, list[InputSplit], list[RowBatch]]:
    """Returns the features, the splits and the batches as the source gives them."""
    settings = SourceOptions(**options)
    files = list_inputs([str(path) for path in paths], settings).files
    settings = settle(source, files, settings)
    features = features or source.infer(files, settings)
    splits = source.split(files, settings)
    return features, splits, [part for split in splits for part in source.read(split, files, features, settings)]


def table_of(source: Source, *paths: Path, **options) -> tuple[Features, pa.Table]:
    """Returns the features and the rows as one table."""
    features, _, found = parts_of(source, *paths, **options)
    return features, pa.Table.from_batches([part.batch for part in found], schema=arrow_schema(features))
