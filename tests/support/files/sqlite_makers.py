"""What the tests of SQLite databases write and read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa

from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.sqlite.source import SqliteSource

SMALL = SqliteSource(split_bytes=4096, batch_bytes=1000)


def make(path: Path, *statements: str, rows: dict[str, list[tuple]] | None = None) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
        for table, values in (rows or {}).items():
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.close()
    return path


def parts(path: Path, source=None, declared=(), **options):
    """Returns the features, the splits and the batches."""
    source, settings_ = source or SqliteSource(), SourceOptions(**options)
    files = list_inputs([str(path)], settings_).files
    features = source.infer(files, settings_)
    features = tuple({f.name: f for f in declared}.get(f.name, f) for f in features)
    splits = source.split(files, settings_)
    return features, splits, [p for s in splits for p in source.read(s, files, features, settings_)]


def read(path: Path, source=None, **options):
    """Returns the features and the rows as one table."""
    features, _, found = parts(path, source, **options)
    return features, pa.Table.from_batches([p.batch for p in found], schema=arrow_schema(features))


def types(features) -> dict[str, str]:
    return {f.name: f.describe_type() + ("?" if f.nullable else "") for f in features}
