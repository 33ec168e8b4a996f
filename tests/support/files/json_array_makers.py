"""What the tests of JSON arrays write and read."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings

from shardkit.sources.json.array_source import JsonArraySource
from tests.support.examples import draws
from tests.support.files.source_makers import read_all, write_file

PROPERTY = settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, content: str | bytes, name: str = "a.json") -> Path:
    return write_file(folder, content, name)


def read(path: Path, features=None, source=None, **options):
    """Returns the described features, all rows, and what was rejected."""
    found = read_all(source or JsonArraySource(), path, features=features, **options)
    return found.types, found.rows, found.rejected
