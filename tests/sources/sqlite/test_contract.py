"""SQLite keeps the contract of sources."""

from __future__ import annotations

from tests.support.files.format_contract import FormatContract
from tests.support.files.sqlite_makers import make


class TestSqlite(FormatContract):
    format = "sqlite"
    knows_its_end = True

    def row(self, number):
        return {"n": number, "s": f"é{number}" * 9, "x": None if number % 3 else 0.5}

    def write(self, folder, name, rows):
        values = [("bad", "", None) if row is None else tuple(row.values()) for row in rows]
        table = "CREATE TABLE t (n INTEGER, s TEXT NOT NULL, x REAL)"
        make(folder / f"{name}.db", "PRAGMA page_size = 512", table, rows={"t": values} if values else None)
