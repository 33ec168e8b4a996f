"""Files that sources read in tests, and all that comes of them."""

from __future__ import annotations

from pathlib import Path

from shardkit.features import Features
from shardkit.sources.base import Source, SourceOptions
from shardkit.testing.reading import Reading, read_paths


def write_file(folder: Path, content: str | bytes, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_all(source: Source, *paths: Path, features: Features | None = None, **options) -> Reading:
    """Returns the rows of all splits, each batch of them as its source promises it."""
    return read_paths(source, paths, SourceOptions(**options), features)
