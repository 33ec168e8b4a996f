"""A database that the tests of SQLite read and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.files.sqlite_makers import make


@pytest.fixture
def people(tmp_path: Path) -> Path:
    rows = [(n * 3 - 50, f"name {n}", n / 7, bytes([n % 256]) * (n % 40), None if n % 5 else n) for n in range(2000)]
    table = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, height REAL, photo BLOB, age INT)"
    return make(tmp_path / "people.db", table, rows={"people": rows})
