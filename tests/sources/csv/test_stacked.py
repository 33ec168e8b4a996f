"""Files that hold several tables, or empty rows at their end."""

import shutil
import subprocess

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from tests.support.files.csv_makers import read, write

SECOND = "id,score\n1,2\n3,4\n\nuser,name\n7,bob\n8,ann\n"


def refused(path):
    with pytest.raises(UsageError) as caught:
        read(path, has_header=False)
    return caught.value


def run_advised(path):
    """Runs the command that the error names in the folder of the file."""
    command = refused(path).next_step.split("  ")[1]
    subprocess.run(["/bin/sh", "-c", command], cwd=path.parent, check=True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a,b\n1,2\n3,4\na,b\n5,6\n", 4),
        ("name,city\nx,y\nname,city\nq,r\n", 3),
        (SECOND, 5),
        ("\ufeffa,b\n1,2\n3,4\n\ufeffa,b\n5,6\n", 4),
    ],
)
def test_two_tables_in_one_file_are_refused(tmp_path, text, line):
    assert refused(write(tmp_path, text)).where == f"a.csv, line {line}"


@pytest.mark.full
@pytest.mark.skipif(shutil.which("awk") is None, reason="the command needs awk")
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,2\n3,4\na,b\n5,6\n", 3),
        ("name,city\nx,y\nz,w\nname,city\nq,r\n", 3),
        ("id,x\n1,2\nID,X\n3,4\n", 2),
        ("a,b\n" + "1,2\n" * 40 + "a,b\n" + "3,4\n" * 40, 80),
    ],
)
def test_the_command_leaves_repeated_header_lines_out(tmp_path, text, rows):
    run_advised(write(tmp_path, text))
    assert len(read(tmp_path / "one-a.csv", has_header=False)[1]) == rows


@pytest.mark.parametrize("text", ["x,y\nz,w\nx,y\n", "bob,5\nann,3\nbob,5\n", "1,2\n3,4\n1,2\n"])
def test_a_row_may_stand_twice(tmp_path, text):
    assert len(read(write(tmp_path, text), has_header=False)[1]) == 3


@pytest.mark.full
def test_the_command_cuts_two_tables_apart(tmp_path):
    run_advised(write(tmp_path, SECOND))
    assert len(read(tmp_path / "first-a.csv", has_header=False)[1]) == 2
    assert read(tmp_path / "second-a.csv", has_header=False)[1][0] == {"user": 7, "name": "bob"}


@pytest.mark.parametrize("text", ["id,score\n1,2\n\n3,4\n", "w,tag,n\nx,y,1\n\nz,w,2\n", 'id,t\n1,"a\n\nb,c"\n2,d\n'])
def test_blank_lines_between_rows_are_not(tmp_path, text):
    assert len(read(write(tmp_path, text), has_header=False)[1]) == 2


def test_lines_of_delimiters_at_the_end_are_noted(tmp_path):
    files = list_inputs([str(write(tmp_path, "Date;CO;\n1;5;\n2;6;\n;;\n;;\n"))]).files
    note = CsvSource().notes(files, SourceOptions())[-1]
    assert note.startswith("2 lines at the end of a.csv hold delimiters alone, and become rows of nulls")
    assert "--select 'SELECT * FROM rows WHERE Date IS NOT NULL'" in note
