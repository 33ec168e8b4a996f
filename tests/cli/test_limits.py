"""The limits of memory and time hold while a conversion is planned, and their errors name the options."""

import gzip
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from shardkit.dataset.open import list_versions
from shardkit.units import MiB, format_size
from tests.support.campaign import in_campaign
from tests.support.engines.conversions import wait_for

pytestmark = pytest.mark.full

FUNCTIONS = """
import re

def eat(batch):
    eaten = []
    while True:
        eaten.append(bytearray(50_000_000))

def big(batch):
    return batch, bytearray(1 << 46)

def spin(batch):
    re.match(r"(a+)+$", "a" * 60 + "b")
"""
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"


# What a process held before it began another program counts as its own, so a small one starts the command.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], check=False)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


@pytest.fixture
def convert(tmp_path):
    """Runs `convert`; returns its exit code, what it wrote to stderr, and the most memory of a process in bytes."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "rows.csv").write_text("id,x\n" + "".join(f"{i},{i / 8}\n" for i in range(100)))

    def run(source, *options):
        command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "shardkit", "convert", source, "out", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert list_versions(str(tmp_path / "out")) == []
        assert "Nothing was committed" in done.stderr or done.returncode == 6
        return done.returncode, done.stderr, int(done.stdout.split()[-1]) * 1024

    return run


def write_bomb(path, begin, end):
    """Writes a gzip file of one value of 768 MiB between `begin` and `end`."""
    member = gzip.compress(b"x" * (16 * MiB))
    path.write_bytes(gzip.compress(begin) + 48 * member + gzip.compress(end))


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("bomb.csv.gz", b"a,b\n1,", b"\n2,y\n"),
        *in_campaign(
            ("bomb.jsonl.gz", b'{"a": 1, "b": "', b'"}\n{"a": 2, "b": "y"}\n'),
            ("bomb.txt.gz", b"", b"\nhello\n"),
        ),
    ],
)
def test_a_value_that_inflates_without_end_takes_little_more_than_the_longest_record(
    tmp_path, convert, name, begin, end
):
    write_bomb(tmp_path / name, begin, end)
    code, said, peak_bytes = convert(name, "--max-expansion", "2000", "--max-record-size", "256MiB")
    assert code == 3
    assert f" in {name}" in said
    assert "256 MiB that a record may have" in said
    assert peak_bytes < 700 * MiB


def test_too_little_memory_while_planning_names_the_file_and_the_option(tmp_path, convert):
    write_bomb(tmp_path / "bomb.csv.gz", b"a,b\n1,", b"\n2,y\n")
    code, said, peak_bytes = convert("bomb.csv.gz", "--max-expansion", "2000", "--max-memory", "256MiB")
    assert code == 6
    assert "there is not enough memory in bomb.csv.gz: --max-memory allows 256 MiB a process" in said
    assert peak_bytes < 400 * MiB


@pytest.mark.parametrize("policy", ["skip", *in_campaign("fail")])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_sound_file_that_needs_too_much_memory_is_not_called_damaged(tmp_path, convert, kind, policy):
    num_rows = 300_000
    offsets = np.arange(num_rows + 1, dtype=np.int32) * 1_000
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.random.default_rng(0).bytes(num_rows * 1_000))]
    table = pa.table({"id": range(num_rows), "b": pa.Array.from_buffers(pa.binary(), num_rows, buffers)})
    folder = tmp_path / "folder"
    folder.mkdir()
    if kind == "parquet":
        pq.write_table(table, folder / "big.parquet", num_rows, data_page_size=1 << 30, use_dictionary=False)
        pq.write_table(table.slice(0, 10), folder / "small.parquet")
    else:
        feather.write_feather(table, folder / "big.arrow", "lz4", chunksize=num_rows)
        feather.write_feather(table.slice(0, 10), folder / "small.arrow", "lz4")
    limit = "200MiB" if kind == "parquet" else "256MiB"
    code, said, _ = convert("folder", "--on-bad-record", policy, "--max-memory", limit)
    assert code == 6, said
    assert f"big.{kind}" in said
    assert f"--max-memory allows {limit.replace('M', ' M')} a process" in said
    assert "damaged" not in said


def test_a_map_that_eats_memory_while_planning_is_ended_by_max_memory(convert):
    code, said, _ = convert("rows.csv", "--map", "functions.py:eat", "--max-memory", "800MiB")
    assert code == 6
    assert "--max-memory allows 800 MiB a process" in said


def test_a_map_that_asks_for_too_much_at_once_while_planning_is_ended_by_max_memory(convert):
    code, said, _ = convert("rows.csv", "--map", "functions.py:big", "--max-memory", "800MiB")
    assert code == 6
    assert "--max-memory allows 800 MiB a process" in said


def test_a_statement_that_needs_too_much_memory_costs_the_row(convert):
    pytest.importorskip("duckdb")
    statement = "SELECT id, CASE WHEN id = 40 THEN list_sum(range(200000000)) ELSE 1 END AS y FROM rows"
    code, said, _ = convert("rows.csv", "--select", statement, "--max-memory", "600MiB")
    assert code == 3, said
    assert "rows.csv, row 41" in said
    assert "ran out of memory (see --max-memory)" in said


@pytest.mark.parametrize("size", [MiB * 100, MiB * 195, MiB * 256, MiB * 400])
def test_too_little_address_space_gives_code_6_however_libraries_end(tmp_path, size):
    with gzip.open(tmp_path / "rows.csv.gz", "wt") as file:
        file.write("id,x\n" + "".join(f"{i},{'x' * 50}\n" for i in range(100_000)))
    command = f"ulimit -v {size // 1024}; {sys.executable} -m shardkit convert rows.csv.gz out"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        assert done.returncode == 6, done.stderr
        assert f"`ulimit -v` allows {format_size(size)} of address space a process" in done.stderr
        assert list_versions(str(tmp_path / "out")) == []
    assert (done.returncode == 6) or size > 256 * MiB


def test_an_image_that_needs_too_much_memory_is_named(tmp_path, convert):
    from PIL import Image

    Image.new("RGB", (7_900, 7_900)).save(tmp_path / "large.png")
    code, said, _ = convert("large.png", "--image-size", "64x64", "--max-memory", "400MiB")
    assert code == 3
    assert "large.png" in said
    assert "ran out of memory (see --max-memory)" in said


def cpu_seconds(pid):
    """Returns the CPU time of a process and those below it."""
    first = psutil.Process(pid)
    times = [p.cpu_times() for p in (first, *first.children(recursive=True))]
    return sum(t.user + t.system for t in times)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 143), *in_campaign((signal.SIGINT, 130), (signal.SIGHUP, 129))]
)
@pytest.mark.parametrize("command", [("convert", "rows.db", "out"), ("plan", "rows.db")])
def test_a_signal_while_a_view_without_end_is_planned_gives_its_exit_code(tmp_path, command, number, exit_code):
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute(f"CREATE VIEW endless AS {ENDLESS} WHERE x < 0")
    connection.close()
    shardkit = [sys.executable, "-m", "shardkit", *command, "--table", "endless"]
    with subprocess.Popen(shardkit, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        # Nothing but the statement takes so much.
        wait_for(process, lambda: cpu_seconds(process.pid) > 2, pause_s=0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == exit_code, said


@pytest.mark.parametrize("condition", ["", " WHERE x < 0"])
def test_a_view_without_end_is_ended_by_max_row_seconds(tmp_path, convert, condition):
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute(f"CREATE VIEW endless AS {ENDLESS}{condition}")
    connection.close()
    code, said, _ = convert("rows.db", "--table", "endless", "--max-row-seconds", "0.2")
    assert code == 3
    assert "table 'endless' of rows.db took longer than 2 s, 10 times --max-row-seconds" in said


def test_a_map_without_end_is_ended_by_max_row_seconds_though_it_never_lets_go(convert):
    # A regular expression holds Python's global lock until it is done, which would take years here.
    code, said, _ = convert("rows.csv", "--map", "functions.py:spin", "--max-row-seconds", "0.5")
    assert code == 3
    assert "functions.py:spin took longer than 5 s" in said


# Planning asks a function for the columns with the first rows alone.
@pytest.mark.parametrize("first", [0, 4_999], ids=["planning", "work"])
def test_a_map_that_never_lets_go_is_ended_by_a_signal_within_a_second(tmp_path, first):
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(5_000)))
    (tmp_path / "functions.py").write_text(
        "import pathlib, re\n"
        "def spin(batch):\n"
        f"    if {first} in batch.column('id').to_pylist():\n"
        "        pathlib.Path('spins').touch()\n"
        "        re.match(r'(a+)+$', 'a' * 60 + 'b')\n"
        "    return batch\n"
    )
    shardkit = [sys.executable, "-m", "shardkit", "convert", "rows.csv", "out", "--map", "functions.py:spin"]
    with subprocess.Popen(shardkit, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        wait_for(process, (tmp_path / "spins").exists, pause_s=0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        seconds = time.monotonic() - began
    assert process.returncode == 143, said
    assert "terminated: Nothing was committed; run the same command again" in said
    # One on an idle machine.
    assert seconds < 5


SWALLOWS = """
import pathlib, time

def wait():
    pathlib.Path("waits").touch()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.01)

def once(batch):
    try:
        wait()
    except BaseException:
        pass
    return batch

def other(batch):
    try:
        wait()
    except BaseException as error:
        raise ValueError("stopped") from error

def always(batch):
    while True:
        try:
            wait()
        except BaseException:
            pass
"""


@pytest.mark.parametrize("function", ["once", "other", "always"])
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_map_that_swallows_a_signal_does_not_hold_up_its_exit_code(tmp_path, function, number, exit_code):
    (tmp_path / "rows.csv").write_text("id\n1\n2\n")
    (tmp_path / "functions.py").write_text(SWALLOWS)
    shardkit = [sys.executable, "-m", "shardkit", "convert", "rows.csv", "out", "--map", f"functions.py:{function}"]
    with subprocess.Popen(shardkit, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        wait_for(process, (tmp_path / "waits").exists, pause_s=0.05)
        began = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=15)
        seconds = time.monotonic() - began
    assert process.returncode == exit_code, said
    assert seconds < 2, "twice the promise, for a busy machine"
    assert list_versions(str(tmp_path / "out")) == []
