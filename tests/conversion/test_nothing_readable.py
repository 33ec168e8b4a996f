"""Inputs of which nothing is left once bad rows and damaged files are set aside: the user learns why."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.cli import main

pytestmark = pytest.mark.full


def convert(source, destination, policy):
    return main(["convert", str(source), str(destination), "--workers", "1", "--on-bad-record", policy])


def text_of(captured):
    return " ".join(captured.err.split())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write_damaged(path):
    """Writes a file whose footer is right and whose pages are not, which planning does not see."""
    pq.write_table(pa.table({"x": list(range(1_000))}), path, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[200:216] = bytes(b ^ 0xFF for b in content[200:216])
    path.write_bytes(content)


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_files_that_are_damaged_in_their_middle(folder, tmp_path, capsys, policy):
    for name in "abcd":
        write_damaged(folder / f"{name}.parquet")
    assert convert(folder, tmp_path / "out", policy) == 3
    output = text_of(capsys.readouterr())
    assert "4 files rejected whole: a.parquet: the Parquet file is cut off or damaged" in output
    assert "c.parquet: " in output
    assert "hold no rows" not in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_files_that_cannot_even_be_planned_for(folder, tmp_path, capsys, policy):
    for name in "abcde":
        pq.write_table(pa.table({"x": [1]}), folder / f"{name}.parquet")
        content = (folder / f"{name}.parquet").read_bytes()
        (folder / f"{name}.parquet").write_bytes(content[:-6])
    assert convert(folder, tmp_path / "out", policy) == 3
    output = text_of(capsys.readouterr())
    assert "no input file can be read: a.parquet: the Parquet file is cut off or damaged" in output
    assert "c.parquet: " in output
    assert "and 2 more" in output
    (folder / "e.parquet").rename(tmp_path / "e.parquet")
    assert convert(tmp_path / "e.parquet", tmp_path / "out", policy) == 3
    assert "e.parquet" in text_of(capsys.readouterr())


def test_rows_that_are_all_bad(folder, tmp_path, capsys):
    (folder / "a.csv").write_bytes(b"number,text\n1,some\x00text\n2,more\x00text\n")
    assert convert(folder, tmp_path / "out", "quarantine") == 3
    output = text_of(capsys.readouterr())
    assert "2 rows in, 2 rejected: a.csv, line 2: a NUL byte" in output


def test_inputs_without_rows_say_so_as_before(folder, tmp_path, capsys):
    (folder / "a.csv").write_text("a,b\n")
    assert convert(folder, tmp_path / "out", "skip") == 3
    assert "the inputs hold no rows" in text_of(capsys.readouterr())
