"""Databases converted: SQLite files by table and query, and a real PostgreSQL server where one is installed."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest

from shardkit.cli import main
from shardkit.conversion.plan import save_plan
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.work_folder import remove_work_folder, work_folder
from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import open_dataset
from shardkit.errors import StorageError, UsageError
from shardkit.sources.base import SourceOptions

PASSWORD = "s3cret/pa ss"
PORT = 54_389


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, total REAL)")
        connection.execute("CREATE TABLE cities (name TEXT)")
        cities = ["Oslo", "Rome", "Bonn"]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(n, cities[n % 3], n / 4) for n in range(500)])
    connection.close()
    return path


@pytest.mark.full
def test_the_recipe_of_a_table_and_of_a_query_gives_the_same_again(database: Path, tmp_path: Path, capsys) -> None:
    query = "SELECT city, sum(total) AS total FROM orders GROUP BY city ORDER BY city"
    for number, options in enumerate((["--table", "orders"], ["--query", query])):
        made, again = tmp_path / f"made{number}", tmp_path / f"again{number}"
        assert main(["convert", str(database), str(made), *options]) == 0
        capsys.readouterr()
        assert main(["inspect", str(made), "--recipe"]) == 0
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(capsys.readouterr().out)
        assert main(["convert", str(database), str(again), "--recipe", str(recipe)]) == 0
        first, second = open_dataset(str(made)), open_dataset(str(again))
        assert first.manifest.fingerprint == second.manifest.fingerprint
        assert [s.sha256 for s in first.shards] == [s.sha256 for s in second.shards]
    totals = {e["city"]: e["total"] for e in first_examples(open_dataset(str(again)), "train", 9)}
    assert {c: float(t) for c, t in totals.items()} == _frame(database).groupby("city")["total"].sum().to_dict()


def _frame(database: Path) -> pd.DataFrame:
    connection = sqlite3.connect(database)
    try:
        return pd.read_sql("SELECT * FROM orders", connection)
    finally:
        connection.close()


@pytest.mark.full
def test_a_bad_row_is_kept_apart_and_every_row_counted(database: Path, tmp_path: Path, capsys) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO orders VALUES (9000, 'Bonn', 'much')")
    connection.close()
    arguments = ["convert", str(database), str(tmp_path / "out"), "--table", "orders"]
    assert main(arguments) == 3
    assert "rowid 9000: expected float64, got the text 'much'" in " ".join(capsys.readouterr().err.split())
    assert main([*arguments, "--on-bad-record", "quarantine"]) == 0
    assert "501 rows in, 500 examples out, 1 rejected" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out"), "--rejected"]) == 0
    assert "rowid 9000" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--table", "--query"])
def test_other_formats_have_no_tables(tmp_path: Path, capsys, option: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    assert main(["convert", str(tmp_path / "a.csv"), str(tmp_path / "out"), option, "x"]) == 2
    assert f"{option} has no meaning for csv files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://bob:pw@db/shop", "mysql databases are not read .* Export the rows to Parquet"),
        ("mssql+pyodbc://db/shop", "databases are not read"),
        ("sqlite:///tmp/a.db", "named by its file"),
    ],
)
def test_other_databases_say_what_to_do_instead(tmp_path: Path, url: str, message: str) -> None:
    options = ConvertRequest(inputs=(url,), destination=str(tmp_path / "out"), source=SourceOptions(table="t"))
    with pytest.raises(UsageError) as caught:
        prepare(options)
    assert re.search(message, str(caught.value))
    assert "pw" not in str(caught.value)


def _programs() -> Path | None:
    folders = [Path(p).parent for p in (shutil.which("initdb"),) if p]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((f for f in folders if all((f / p).exists() for p in ("initdb", "postgres", "psql"))), None)


class Server:
    """A server of its own, in a temporary folder."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        # The server refuses to run as root.
        self._user = {"user": "nobody"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(folder, "nobody")
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        setup = [programs / "initdb", "-D", folder / "data", "-U", "bob", f"--pwfile={password}", "-A", "scram-sha-256"]
        subprocess.run(setup, check=True, capture_output=True, cwd="/", **self._user)
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", f"port={PORT}")
        command = [programs / "postgres", "-D", folder / "data", *(x for s in settings for x in ("-c", s))]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **self._user
        )
        until = time.monotonic() + 60
        is_ready = [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(PORT)]
        while subprocess.run(is_ready, capture_output=True).returncode:
            assert self._process.poll() is None
            assert time.monotonic() < until

    def run(self, sql: str) -> str:
        command = [self._programs / "psql", "-h", "127.0.0.1", "-p", str(PORT), "-U", "bob", "postgres", "-qc", sql]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "PGPASSWORD": PASSWORD}
        )
        return done.stdout

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


URL = f"postgresql://bob@127.0.0.1:{PORT}/postgres"
WITH_PASSWORD = f"postgresql://bob:s3cret%2Fpa%20ss@127.0.0.1:{PORT}/postgres"


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("adbc_driver_postgresql")
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL is installed")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        running = Server(programs, Path(folder))
        try:
            running.run(
                "CREATE TABLE t AS SELECT i AS id, i::float8 / 3 AS x, 'name ' || i AS s, i % 2 = 0 AS even, "
                "nullif(i % 5, 0) AS n, date '2020-01-01' + i AS d FROM generate_series(1, 3000) i"
            )
            yield running
        finally:
            running.stop()


@pytest.fixture
def password(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.mark.full
def test_a_query_of_a_server_is_read_as_psql_reads_it(server, password, tmp_path: Path) -> None:
    query = "SELECT * FROM t WHERE id > 10 ORDER BY id"
    arguments = [URL, str(tmp_path / "out"), "--query", query, "--no-shuffle"]
    command = [sys.executable, "-m", "shardkit", "convert", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(str(tmp_path / "out"))
    found = pd.DataFrame(list(first_examples(dataset, "train", 5000)))
    expected = pd.read_csv(io.StringIO(server.run(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)")))
    assert len(found) == len(expected) == 2990
    assert found["id"].astype(int).tolist() == expected["id"].tolist()
    assert found["s"].tolist() == expected["s"].tolist()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["data", "manifests"]


@pytest.mark.full
def test_the_password_is_written_nowhere(server, tmp_path: Path) -> None:
    options = ConvertRequest(
        inputs=(WITH_PASSWORD,), destination=str(tmp_path / "out"), source=SourceOptions(table="t")
    )
    plan = prepare(options).plan
    with work_folder(plan):
        save_plan(plan)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 1
    for path in files:
        assert b"s3cret" not in path.read_bytes()
        assert "s3cret" not in str(path)
    assert plan.created.inputs == (f"postgresql://***@127.0.0.1:{PORT}/postgres",)
    assert plan.files[0].name.startswith("postgres-")
    remove_work_folder(plan)
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.full
def test_an_attempt_that_was_cut_off_goes_on_with_the_same_rows(server, password, tmp_path: Path) -> None:
    server.run("CREATE TABLE IF NOT EXISTS growing AS SELECT 1 AS id")
    options = ConvertRequest(
        inputs=(URL,), destination=str(tmp_path / "out"), source=SourceOptions(table="public.growing")
    )
    first = prepare(options).plan
    server.run("INSERT INTO growing SELECT generate_series(2, 100000)")
    prepared = prepare(options)
    assert prepared.plan.files == first.files
    assert prepared.plan.fingerprint == first.fingerprint
    assert any("going on with the rows that were read at" in note for note in prepared.notes)
    remove_work_folder(first)
    anew = prepare(options).plan
    assert anew.files[0].num_bytes > first.files[0].num_bytes
    remove_work_folder(anew)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    "query",
    ["SELECT pg_sleep(60), 1 AS id", "SELECT i, pg_sleep(0.01) IS NULL AS is_null FROM generate_series(1, 9999) i"],
)
def test_a_signal_ends_a_query_here_and_in_the_server(server, password, tmp_path, query, number, code) -> None:
    others = "state = 'active' AND pid <> pg_backend_pid() AND query LIKE '%pg_sleep%'"
    command = [sys.executable, "-m", "shardkit", "convert", URL, str(tmp_path / "out"), "--query", query]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while server.run(f"SELECT count(*) FROM pg_stat_activity WHERE {others}").split()[2] != "1":
        assert time.monotonic() < end
    sent = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    took = time.monotonic() - sent
    left = server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    assert process.returncode == code, err
    assert took < 3
    assert "(0 rows)" in left
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_query_without_end_is_ended_by_max_row_seconds(server, password, tmp_path) -> None:
    command = [
        "convert",
        URL,
        str(tmp_path / "out"),
        "--query",
        "SELECT pg_sleep(60), 1 AS id",
        "--max-row-seconds",
        "0.2",
    ]
    done = subprocess.run([sys.executable, "-m", "shardkit", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "the statement on the database server took longer than 2 s, 10 times --max-row-seconds" in done.stderr
    left = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%pg_sleep%'"
    end = time.monotonic() + 20
    while "(0 rows)" not in server.run(left):
        assert time.monotonic() < end
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_query_ends_with_a_process_that_is_killed(server, password, tmp_path) -> None:
    query = "SELECT pg_sleep(61), 1 AS id"
    command = [sys.executable, "-m", "shardkit", "convert", URL, str(tmp_path / "out"), "--query", query]
    running = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%pg_sleep(61)%'"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 60
    while "(1 row)" not in server.run(running):
        assert time.monotonic() < end
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 20
    while "(0 rows)" not in server.run(running):
        assert time.monotonic() < end


@pytest.mark.full
def test_a_signal_ends_the_wait_for_a_server_that_does_not_answer(tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"postgresql://bob@127.0.0.1:{deaf.getsockname()[1]}/postgres"
        command = [sys.executable, "-m", "shardkit", "convert", url, str(tmp_path / "out"), "--table", "t"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = deaf.accept()
        assert connection.recv(1)
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - sent < 3
        connection.close()
    assert process.returncode == 143, err


@pytest.mark.full
@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT nope FROM t", 'column "nope" does not exist'),
        ("DELETE FROM t RETURNING *", "read-only transaction"),
        ("SELECT 1 / (id - 2999) FROM t ORDER BY id", "division by zero"),
        ("SELECT 1; DROP TABLE t", "multiple commands|syntax error"),
    ],
)
def test_a_query_that_does_not_work_leaves_nothing(server, password, tmp_path: Path, query: str, why: str) -> None:
    options = ConvertRequest(inputs=(URL,), destination=str(tmp_path / "out"), source=SourceOptions(query=query))
    # What fails in the middle of the rows has no code that tells whose fault it was.
    kind = StorageError if "division" in why else UsageError
    with pytest.raises(kind, match=why):
        prepare(options)
    assert not list(tmp_path.iterdir())
    assert server.run("SELECT count(*) FROM t").split()[2] == "3000"


@pytest.mark.full
def test_a_server_that_refuses_is_named_without_the_password(server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    url = f"postgresql://bob:wr0ng@127.0.0.1:{PORT}/postgres"
    options = ConvertRequest(inputs=(url,), destination=str(tmp_path / "out"), source=SourceOptions(table="t"))
    with pytest.raises(StorageError, match="password authentication failed") as caught:
        prepare(options)
    assert "wr0ng" not in str(caught.value)


def test_a_server_needs_a_table_or_a_query_and_stands_alone(tmp_path: Path) -> None:
    for inputs, options, message in (
        ((URL,), {}, "not said what to read"),
        ((URL,), {"table": "t", "query": "SELECT 1"}, "exclude each other"),
        ((URL, "a.csv"), {"table": "t"}, "an input by itself"),
    ):
        with pytest.raises(UsageError, match=message):
            prepare(ConvertRequest(inputs=inputs, destination=str(tmp_path / "out"), source=SourceOptions(**options)))
