"""SQLite databases that are cut off, damaged, unfinished or change: an error, or all rows."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from shardkit.errors import DamagedFileError, ShardkitError, UsageError
from tests.support.files.sqlite_makers import SMALL, make, parts, read


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


def test_a_file_that_is_cut_off_is_refused_whole(people: Path) -> None:
    content = people.read_bytes()
    for num_bytes in (20, 99, 100, 512, 4096, 4097, len(content) // 2, len(content) - 4096, len(content) - 1):
        people.write_bytes(content[:num_bytes])
        with pytest.raises(DamagedFileError, match=r"people\.db"):
            parts(people, tolerates_bad_rows=True)


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


@pytest.mark.full
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
