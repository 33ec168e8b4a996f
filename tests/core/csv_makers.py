"""What the tests of CSV write and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shardkit.errors import BadInputError
from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv_files import CsvSource

PROPERTY = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(*paths: Path, features=None, source=None, **options) -> tuple[dict[str, str], list[dict]]:
    """Returns the described features and all rows."""
    source = source or CsvSource()
    settings_ = SourceOptions(**options)
    files = list_inputs([str(p) for p in paths]).files
    features = features or source.infer(files, settings_)
    rows = []
    for split in source.split(files, settings_):
        for part in source.read(split, files, features, settings_):
            assert part.batch.schema == arrow_schema(features)
            part.batch.validate(full=True)
            assert len(part.identities) == part.batch.num_rows
            rows += part.batch.to_pylist()
    return {f.name: f.describe_type() for f in features}, rows


def fails(folder: Path, content: str | bytes, **options) -> str:
    with pytest.raises(BadInputError) as caught:
        read(write(folder, content), **options)
    return str(caught.value)
