"""The first line of CSV: names of columns, the lack of them, and what a user is told about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from tests.support.files.csv_makers import read, write


def refuses(folder: Path, content: str | bytes, **options) -> str:
    with pytest.raises(UsageError) as caught:
        read(write(folder, content), **options)
    return str(caught.value)


def test_a_note_tells_of_another_delimiter(tmp_path):
    files = list_inputs([str(write(tmp_path, "a;b\n1;2\n"))]).files
    (note,) = CsvSource().notes(files, SourceOptions(delimiter=","))
    assert "only one column" in note
    assert "';'" in note


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("a:b:c\n1:2:3\n4:5:6\n", "only one column was found in a.csv, though its lines hold ':'"),
        ("time\n10:00:00\n11:00:00\n", None),
        ("\ufeffa,b\n1,2\n", "the byte order mark that a.csv begins with is left out"),
        ("1,0.5,x\n2,1.5,y\n", "may be data, such as '1'"),
        ("2020-01-01,x\n2020-01-02,y\n", "may be data, such as '2020-01-01'"),
        ("0,1,2\n5,6,7\n", None),
        ("a,1960,1961\nx,1.5,2.5\n", "may be data, such as '1960'"),
        ("id,x\n1,2\n", None),
        ("a,b\nx,y\n", None),
        (",b\nx,y\n", "a.csv has columns without a name, which are called 'unnamed_1'; "),
        ("a,,,c\nx,y,z,v\n", "which are called 'unnamed_2', 'unnamed_3'; "),
    ],
)
def test_notes_on_what_may_be_misunderstood(tmp_path, content, part):
    notes = CsvSource().notes(list_inputs([str(write(tmp_path, content))]).files, SourceOptions())
    assert [part in note for note in notes] == ([True] if part else [])


def test_columns_without_a_name_are_called_after_their_position(tmp_path):
    features, rows = read(write(tmp_path, ",unnamed_1, ,b\n0,x,2.5,\n1,y,3.5,z\n"))
    assert features == {"unnamed_1_": "int64", "unnamed_1": "string", "unnamed_3": "float32", "b": "string"}
    assert rows[1] == {"unnamed_1_": 1, "unnamed_1": "y", "unnamed_3": 3.5, "b": "z"}


def test_an_unnamed_column_does_not_hide_a_missing_header(tmp_path):
    assert "the header line seems to be missing" in refuses(tmp_path, ",2.5,7\n1,3.5,9\n2,4.5,8\n")
    assert read(write(tmp_path, ",0,1\n0,2.5,7\n1,3.5,9\n"))[1][0] == {"unnamed_1": 0, "0": 2.5, "1": 7}


def test_headerless_files_take_the_columns_that_are_given(tmp_path):
    assert read(write(tmp_path, "1,x\n2,y\n"), columns=("n", "s"))[1] == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("a,b,a\n1,2,3\n", "column 'a' appears twice"),
        (",,\n1,2,3\n", "the header names no column"),
        ('"", ,\n1,2,3\n', "the header names no column"),
    ],
)
def test_bad_headers_are_refused(tmp_path, content, part):
    assert part in refuses(tmp_path, content)


def test_files_with_other_columns_are_refused(tmp_path):
    paths = [write(tmp_path, "a,b\n1,2\n", "1.csv"), write(tmp_path, "a,c\n1,2\n", "2.csv")]
    with pytest.raises(UsageError) as caught:
        read(*paths)
    assert "'b' only in 1.csv; 'c' only in 2.csv" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "5.1,3.5,0\n4.9,3.0,1\n",
        "7,3\n1,2\n",
        "1,2\n3,4\n",
        "0,1\n3,4\n",
        "2019,2020,2021\n3,4,5\n",
        "1995,2005\na,b\n",
        "1995,2005\n",
        "2020-01-31,7\n2020-02-01,8\n",
        "17\n18\n",
    ],
)
def test_a_missing_header_is_refused_unless_it_is_said_to_be_one(tmp_path, content):
    message = refuses(tmp_path, content)
    assert "the header line seems to be missing in a.csv, line 1" in message
    assert "--columns" in message
    assert "--header" in message
    first, *others = content.splitlines()
    assert list(read(tmp_path / "a.csv", has_header=True)[0]) == first.split(",")
    names = tuple("abc"[: first.count(",") + 1])
    described, rows = read(tmp_path / "a.csv", columns=names)
    assert tuple(described) == names
    assert len(rows) == 1 + len(others)


@pytest.mark.parametrize(
    "content",
    ["id,2020\n1,2\n", "17,name\n18,x\n", "1,2,x1\n2,4,x2\n"],
)
def test_names_that_are_numbers_stay_names(tmp_path, content):
    assert list(read(write(tmp_path, content))[0]) == content.splitlines()[0].split(",")


@pytest.mark.parametrize("content", ["\n1,2\n3,4\n", "\r\n\n7,bob\n8,alice\n"])
def test_a_blank_line_before_data_is_no_header(tmp_path, content):
    assert "the header line seems to be missing in a.csv, line" in refuses(tmp_path, content)
    assert len(read(tmp_path / "a.csv", columns=("a", "b"))[1]) == 2


def test_headerless_files_are_told_apart_from_files_with_other_columns(tmp_path):
    paths = [write(tmp_path, "5,7\n1,2\n", "a.csv"), write(tmp_path, "8,3\n3,4\n", "b.csv")]
    with pytest.raises(UsageError, match=r"the header line seems to be missing in a\.csv"):
        read(*paths)


def test_columns_that_differ_are_shown_file_by_file(tmp_path):
    paths = [
        write(tmp_path, "a,b,c\n1,x,2\n", "a.csv"),
        write(tmp_path, "c,a,b\n1,2,x\n", "b.csv"),
        write(tmp_path, "a,b,d\n1,x,2\n", "c.csv"),
        write(tmp_path, "a,b\n1,x\n", "d.csv"),
    ]
    with pytest.raises(UsageError) as caught:
        read(*paths)
    message = str(caught.value)
    assert "2 of 4 files have other columns than a.csv" in message
    assert "c.csv lacks 'c' and has 'd' besides" in message
    assert "d.csv lacks 'c'" in message
