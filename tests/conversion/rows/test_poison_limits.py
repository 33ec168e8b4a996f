"""Rows that no process survives, where memory or the number of bad rows is limited."""

import subprocess
import sys
import time

import pytest

from shardkit.dataset.open import list_versions
from tests.support.campaign import in_campaign

pytestmark = [pytest.mark.slow, pytest.mark.full]

FUNCTIONS = """
import os

def at_once(batch):
    if 500 in batch.column("id").to_pylist():
        bytearray(1 << 46)
    return batch

def bit_by_bit(batch):
    eaten = []
    while 500 in batch.column("id").to_pylist():
        eaten.append(bytearray(50_000_000))
    return batch

def crash_always(batch):
    if batch.num_rows:
        os.abort()
    return batch

def crash_thrice(batch):
    if {10, 20, 4000} & set(batch.column("id").to_pylist()):
        os.abort()
    return batch
"""


@pytest.fixture
def convert(tmp_path):
    (tmp_path / "rows.csv").write_text("id,x\n" + "".join(f"{i},{i / 8}\n" for i in range(5_000)))
    (tmp_path / "functions.py").write_text(FUNCTIONS)

    def run(function, *options):
        command = ["convert", tmp_path / "rows.csv", tmp_path / "out", "--map", f"{tmp_path}/functions.py:{function}"]
        return subprocess.run(
            [sys.executable, "-m", "shardkit", *map(str, (*command, *options))],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    return run


@pytest.mark.parametrize("limit", ["2GiB", *in_campaign("600MiB", "1200MiB", "1536MiB")])
@pytest.mark.parametrize("function", ["at_once", "bit_by_bit"])
def test_memory_costs_just_the_row_whatever_the_limit(convert, function, limit):
    result = convert(function, "--on-bad-record", "skip", "--max-memory", limit, "--workers", 2)
    assert result.returncode == 0, result.stderr
    assert "5,000 rows in, 4,999 examples out, 1 rejected" in result.stdout
    assert "rows.csv, row 501" in result.stderr


def test_the_row_that_takes_all_memory_is_named_where_none_may_be_bad(tmp_path, convert):
    result = convert("at_once", "--max-memory", "1500MiB")
    assert result.returncode == 3, result.stderr
    assert "rows.csv, row 501" in result.stderr
    assert list_versions(str(tmp_path / "out")) == []


@pytest.mark.parametrize("limit", ["3", *in_campaign("0%")])
def test_rows_that_all_crash_end_the_run_at_the_limit_of_bad_rows(tmp_path, convert, limit):
    start = time.monotonic()
    result = convert("crash_always", "--on-bad-record", "skip", "--max-bad", limit)
    assert time.monotonic() - start < 100
    assert result.returncode == 3, result.stderr
    assert "too many rows do not fit in rows.csv, row 1: " in result.stderr
    assert ("rows.csv, row 3: " in result.stderr) == (limit == "3")
    assert f"{'4 rows' if limit == '3' else '1 row'} or more are bad" in result.stderr
    assert f"--max-bad {limit} allows less" in result.stderr
    assert list_versions(str(tmp_path / "out")) == []


@pytest.mark.parametrize(("limit", "exit_code"), [("3", 0), *in_campaign(("0.059%", 3), ("2", 3), ("0.06%", 0))])
def test_the_limit_of_bad_rows_is_exact_for_rows_that_crash(convert, limit, exit_code):
    result = convert("crash_thrice", "--on-bad-record", "quarantine", "--max-bad", limit)
    assert result.returncode == exit_code, result.stderr
    if exit_code == 0:
        assert "5,000 rows in, 4,997 examples out, 3 rejected" in result.stdout
    else:
        assert "too many rows do not fit in rows.csv, row 11" in result.stderr
        assert "rows.csv, row 4001" in result.stderr
