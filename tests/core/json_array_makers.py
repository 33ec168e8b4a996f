"""What the tests of JSON arrays write and read."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings

from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.json_array import JsonArraySource

PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, content: str | bytes, name: str = "a.json") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, features=None, source=None, **options):
    """Returns the described features, all rows, and what was rejected."""
    source = source or JsonArraySource()
    settings_ = SourceOptions(**options)
    files = list_inputs([str(path)]).files
    features = features or source.infer(files, settings_)
    rows, rejected, identities = [], [], []
    for split in source.split(files, settings_):
        for part in source.read(split, files, features, settings_):
            assert part.batch.schema == arrow_schema(features)
            part.batch.validate(full=True)
            assert len(part.identities) == part.batch.num_rows
            rows += part.batch.to_pylist()
            identities += part.identities.tolist()
            rejected += part.rejected
    assert len(set(identities)) == len(rows)
    return {f.name: f.describe_type() for f in features}, rows, rejected
