"""Values of SQLite databases, and what their declared types are worth."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from shardkit.errors import BadInputError, DamagedFileError
from shardkit.features import make_feature
from shardkit.sources.sqlite.source import SqliteSource
from shardkit.sources.sqlite.tables import kind_of
from shardkit.units import MiB
from tests.support.files.sqlite_makers import SMALL, make, parts, read, types


def test_what_is_declared_as_something_else_is_read_as_it_is_stored(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE t (flag BOOLEAN, day DATE, price DECIMAL(10,2), at DATETIME, span INTERVAL, any_, void)",
        rows={"t": [(True, "2020-01-01", 5, 1700000000, "3 days", b"\0", None), (0, None, 5.25, 1, "1 h", b"", None)]},
    )
    features, found = read(path)
    assert types(features) == {
        "flag": "int64?",
        "day": "string?",
        "price": "float64?",
        "at": "int64?",
        "span": "string?",
        "any_": "bytes?",
        "void": "string?",
    }
    assert found.to_pylist()[0] == {
        "flag": 1,
        "day": "2020-01-01",
        "price": 5.0,
        "at": 1700000000,
        "span": "3 days",
        "any_": b"\0",
        "void": None,
    }


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("INTEGER", "integer"),
        ("unsigned big int", "integer"),
        ("INT(11) UNSIGNED", "integer"),
        ("INT8", "integer"),
        ("POINT", "open"),
        ("FLOATING POINT", "open"),
        ("VARCHAR(255)", "text"),
        ("NATIVE CHARACTER(70)", "text"),
        ("DOUBLE PRECISION", "real"),
        ("BLOB", "blob"),
        ("", "open"),
        ("NUMERIC", "open"),
        ("TIMESTAMP", "open"),
    ],
)
def test_declared_types_say_no_more_than_is_sure(declared: str, kind: str) -> None:
    assert kind_of(declared) == kind


def test_declared_features_are_made_of_stored_values(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE t (day DATE, price DECIMAL, at INTEGER, ok BOOLEAN, city TEXT)",
        rows={"t": [("2020-01-31", 5, 1700000000, 1, "Oslo"), ("1969-12-31", 0.25, 0, 0, "Rome")]},
    )
    declared = (
        make_feature("day", "date", nullable=True),
        make_feature("price", "decimal(10,2)", nullable=True),
        make_feature("at", "timestamp[s]", nullable=True),
        make_feature("ok", "bool", nullable=True),
        make_feature("city", "int64", nullable=True, vocabulary=("Rome", "Oslo")),
    )
    _, _, found = parts(path, declared=declared)
    rows = found[0].batch.to_pylist()
    assert [str(r["day"]) for r in rows] == ["2020-01-31", "1969-12-31"]
    assert [str(r["price"]) for r in rows] == ["5.00", "0.25"]
    assert [r["at"].year for r in rows] == [2023, 1970]
    assert [(r["ok"], r["city"]) for r in rows] == [(True, 1), (False, 0)]


@pytest.mark.parametrize(
    ("column", "value", "got"),
    [
        ("n INTEGER", "seven", "expected int64, got the text 'seven'"),
        ("n INTEGER", 1.5, "expected int64, got 1.5"),
        ("n INTEGER NOT NULL DEFAULT 0", b"\xff", "the blob b'\\xff'"),
        ("n REAL", "high", "expected float64, got the text 'high'"),
        ("n TEXT", b"\xff\xfe", "which is not UTF-8"),
        ("n NUMERIC", "abc", "expected int64, got the text 'abc'"),
    ],
)
def test_a_value_of_another_kind_is_a_bad_row_with_its_rowid(tmp_path: Path, column, value, got) -> None:
    path = make(tmp_path / "a.db", f"CREATE TABLE t ({column}, s TEXT)")
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO t VALUES (?, 's')", [(n,) for n in range(100)])
        connection.execute("INSERT INTO t(rowid, n, s) VALUES (1234, ?, 'here')", (value,))
        connection.executemany("INSERT INTO t VALUES (?, 's')", [(n,) for n in range(50)])
    connection.close()
    with pytest.raises(BadInputError) as caught:
        parts(path)
    assert "column 'n' does not fit in a.db, table 't', rowid 1234" in str(caught.value)
    assert got in str(caught.value)
    _, _, found = parts(path, SMALL, tolerates_bad_rows=True)
    rejected = [r for p in found for r in p.rejected]
    assert [r.position for r in rejected] == ["rowid 1234"]
    assert json.loads(rejected[0].raw)["s"] == "here"
    assert sum(p.batch.num_rows for p in found) == 150
    assert len({i for p in found for i in p.identities.tolist()}) == 150


def test_half_of_all_rows_may_be_bad(tmp_path: Path) -> None:
    rows = [(n if n % 2 else f"text {n}", f"s{n}".encode() if n % 3 else b"\xff") for n in range(9000)]
    path = make(tmp_path / "a.db", "CREATE TABLE t (n INTEGER, s TEXT)", rows={"t": rows})
    _, _, found = parts(path, tolerates_bad_rows=True)
    assert sum(p.batch.num_rows for p in found) == sum(n % 2 == 1 and n % 3 > 0 for n in range(9000))
    assert sum(p.batch.num_rows + len(p.rejected) for p in found) == 9000


def test_integers_among_reals_stay_exact_or_are_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "CREATE TABLE t (v)", rows={"t": [(1,), (0.5,), (2**53,)]})
    assert read(path)[1]["v"].to_pylist() == [1.0, 0.5, 2.0**53]
    make(path, rows={"t": [(2**53 + 1,)]})
    with pytest.raises(BadInputError, match=r"rowid 4: expected float64, got 9007199254740993"):
        parts(path)


def test_generated_columns_and_strict_tables_are_read(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "CREATE TABLE t (a INT, b INT AS (a * 2), c TEXT AS ('x' || a) STORED) STRICT")
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO t (a) VALUES (4)")
    connection.close()
    assert read(path)[1].to_pylist() == [{"a": 4, "b": 8, "c": "x4"}]


def test_text_in_utf16_is_read(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db", "PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t (s TEXT)", rows={"t": [("žluť\0x",), ("",)]}
    )
    assert read(path)[1]["s"].to_pylist() == ["žluť\0x", ""]


def test_rows_that_are_too_large_are_left_out_one_by_one(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "CREATE TABLE t (n INTEGER, b BLOB)")
    sizes = {7: 3 * MiB, 8: 2 * MiB + 1, 20: MiB // 2, 30: 5 * MiB}
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO t VALUES (?, zeroblob(?))", [(n, sizes.get(n, 3)) for n in range(1, 41)])
    connection.close()
    with pytest.raises(BadInputError, match=r"a row is too large in a.db, table 't', rowid 7: .* 1.00 MiB allowed"):
        parts(path, max_record_bytes=MiB)
    for source in (SqliteSource(), SMALL):
        _, _, found = parts(path, source, max_record_bytes=MiB, tolerates_bad_rows=True)
        assert [r.position for p in found for r in p.rejected] == ["rowid 7", "rowid 8", "rowid 30"]
        kept = [n for p in found for n in p.batch["n"].to_pylist()]
        assert kept == [n for n in range(1, 41) if n not in (7, 8, 30)]
        assert len({i for p in found for i in p.identities.tolist()}) == 37
    _, _, found = parts(path, max_record_bytes=10_000, tolerates_bad_rows=True)
    assert [r.position for p in found for r in p.rejected] == ["rowid 7", "rowid 8", "rowid 20", "rowid 30"]
    with pytest.raises(DamagedFileError, match="a value is too large"):
        parts(path, max_record_bytes=MiB, tolerates_bad_rows=True, query="SELECT n, b FROM t")
