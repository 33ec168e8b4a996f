"""What the tests of JSON Lines write and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shardkit.errors import BadInputError
from shardkit.sources.json.lines_source import JsonLinesSource
from tests.support.examples import draws
from tests.support.files.source_makers import read_all, write_file

PROPERTY = settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, content: str | bytes, name: str = "a.jsonl") -> Path:
    return write_file(folder, content, name)


def read(*paths: Path, features=None, source=None, **options) -> tuple[dict[str, str], list[dict]]:
    """Returns the described features and all rows."""
    found = read_all(source or JsonLinesSource(), *paths, features=features, **options)
    return found.types, found.rows


def fails(path: Path, error=BadInputError, **options) -> str:
    with pytest.raises(error) as caught:
        read(path, **options)
    return str(caught.value)


GOOD = '{"a":1,"b":"x","c":[1.5]}\n'
