"""What the tests of CSV write and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shardkit.errors import BadInputError
from shardkit.sources.csv.source import CsvSource
from tests.support.examples import draws
from tests.support.files.source_makers import read_all, write_file

PROPERTY = settings(max_examples=draws(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    return write_file(folder, content, name)


def read(*paths: Path, features=None, source=None, **options) -> tuple[dict[str, str], list[dict]]:
    """Returns the described features and all rows of files with a header line, unless an option says otherwise."""
    options = {"has_header": "columns" not in options and "no_header" not in options, **options}
    found = read_all(source or CsvSource(), *paths, features=features, **options)
    return found.types, found.rows


def fails(folder: Path, content: str | bytes, **options) -> str:
    with pytest.raises(BadInputError) as caught:
        read(write(folder, content), **options)
    return str(caught.value)
