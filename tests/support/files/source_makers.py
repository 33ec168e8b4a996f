"""Files that text sources read in tests, and all that comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from shardkit.features import Features, arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import Source, SourceOptions


class Read(NamedTuple):
    """What came of some files; `types` describes each feature."""

    types: dict[str, str]
    rows: list[dict]
    rejected: list
    identities: list[int]


def write_file(folder: Path, content: str | bytes, name: str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_all(source: Source, *paths: Path, features: Features | None = None, **options) -> Read:
    """Returns the rows of all splits, each batch of them as its source promises it."""
    settings = SourceOptions(**options)
    files = list_inputs([str(p) for p in paths]).files
    features = features or source.infer(files, settings)
    found = Read({f.name: f.describe_type() for f in features}, [], [], [])
    for split in source.split(files, settings):
        for part in source.read(split, files, features, settings):
            assert part.batch.schema == arrow_schema(features)
            part.batch.validate(full=True)
            assert len(part.identities) == part.batch.num_rows
            found.rows.extend(part.batch.to_pylist())
            found.rejected.extend(part.rejected)
            found.identities.extend(part.identities.tolist())
    assert len(set(found.identities)) == len(found.rows)
    return found
