"""The first line of CSV: names of columns, the lack of them, and what a user is told about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardkit.errors import NoRowsError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions, settle
from shardkit.sources.csv.source import CsvSource
from tests.support.files.csv_makers import read, write


def refuses(folder: Path, content: str | bytes, **options) -> str:
    with pytest.raises(UsageError) as caught:
        read(write(folder, content), **options)
    return str(caught.value)


def test_names_that_are_given_twice_are_refused_unless_the_line_is_said_to_be_a_row(tmp_path):
    files = list_inputs([str(write(tmp_path, "id,val\n1,2\n3,4\n"))]).files
    with pytest.raises(UsageError, match="the first line may name the columns") as caught:
        settle(CsvSource(), files, SourceOptions(columns=("x", "y")))
    assert "--skip-lines 1 leaves it out" in caught.value.next_step
    said = SourceOptions(columns=("x", "y"), no_header=True)
    assert settle(CsvSource(), files, said) == said


@pytest.mark.parametrize("first", ["name,Name", "time,temps", "word,Wort"])
def test_the_first_pair_of_a_glossary_is_no_header(tmp_path, first):
    files = list_inputs([str(write(tmp_path, f"{first}\nday,jour\nyear,an\nnight club,boite\n"))]).files
    with pytest.raises(UsageError, match="the first line may be names or values"):
        settle(CsvSource(), files, SourceOptions())


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
        ("id,x\n1,2\n", None),
        ("a,b\nx,y\n", None),
        (
            "title,tone\nA day out,calm\nA long year,calm\n",
            "because 'title' is a usual name of a column: 'title', 'tone'",
        ),
        ("\n".join(["big day,x9f3aa", *(f"{'click' if i % 3 else 'view'},{i:x}w" for i in range(60))]), "--no-header"),
        ("Team,1990,1991\nA,20,5\nB,23,8\nC,26,11\n", "though '1990' is a number; --no-header reads it as a row"),
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


def test_headerless_files_take_the_columns_that_are_given(tmp_path):
    assert read(write(tmp_path, "1,x\n2,y\n"), columns=("n", "s"))[1] == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("a,b,a\n1,2,3\n", "column 'a' appears twice"),
        ("a,b,a,a_2\n1,2,3,4\n", "--skip-lines 1 --columns a,b,a_3,a_2"),
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


MANY = [f"{name},{'cat' if name % 3 else 'dog'}" for name in range(60)]


@pytest.mark.parametrize(
    "content",
    [
        "5.1,3.5,0\n4.9,3.0,1\n",
        "1,2\n3,4\n",
        "0,1\n3,4\n",
        "1995,2005\n",
        "2020-01-31,7\n2020-02-01,8\n",
        "17\n18\n",
        "17,name\n18,x\n",
        "1,0.5,x\n2,1.5,y\n",
        "1,2,x1\n2,4,x2\n",
        "10:30,x\n11:30,y\n",
        "inf,x\n1.5,y\n2.5,z\n",
        "inf,-inf\n1,2\n3,4\n",
        "yes,x\nno,y\n",
        "x,y\nx,z\n",
        "\n1,2\n3,4\n",
        "\r\n\n7,bob\n8,alice\n",
        ",2.5,7\n1,3.5,9\n2,4.5,8\n",
        "\n".join(["1000,bird", *MANY]),
        "s1,x\ns2,y\ns3,z\n",
        "a-1,5\na-2,7\n",
    ],
)
def test_a_first_line_that_looks_like_the_values_below_it_is_a_row(tmp_path, content):
    types, rows = read(write(tmp_path, content), has_header=False)
    lines = [line.split(",") for line in content.splitlines() if line]
    assert list(types) == [f"column_{i + 1}" for i in range(len(lines[0]))]
    assert len(rows) == len(lines)
    assert (types, rows) == read(tmp_path / "a.csv", no_header=True)
    assert len(read(tmp_path / "a.csv", has_header=True)[1]) == len(lines) - 1
    files = list_inputs([str(tmp_path / "a.csv")]).files
    notes = CsvSource().notes(files, settle(CsvSource(), files, SourceOptions()))
    assert "a.csv has no header line" in notes[0]


@pytest.mark.parametrize(
    "content",
    [
        "id,x\n1,2\n",
        "0,1,2,3\n5,6,7,8\n",
        "label,0,1,2\ncat,5,6,7\ndog,1,9,0\n",
        "0,1,2,label\n5,6,7,cat\n",
        "0,1\nfirst text,3\nother text,4\n",
        "0\nfirst text\nother text\n",
        ",0,1\n0,5,6\n1,7,8\n",
        ",0\nUlm,1\nJena,2\n",
        ",0,1\nUlm,0.5,1\nJena,2,3\n",
        ",1,2\n0,5,x\n1,7,y\n",
        ",1990,1991\nFR,1.5,2.5\n",
        "name,1960,1961\nx,1.5,2.5\n",
        "id,2020,2021\n1,2,3\n",
        ",b\n0,2.5\n1,3.5\n",
        "text,sentiment\nx,y\n",
        "a,b\n",
        "\n".join(["number,animal", *MANY]),
        "\n".join(["w,animal", *(f"w{line}" for line in MANY)]),
        "\n".join(["w,said", *(f"w{i},this is what was said as number {i}" for i in range(30))]),
    ],
)
def test_a_first_line_that_no_value_could_be_names_the_columns(tmp_path, content):
    path = write(tmp_path, content)
    first = content.splitlines()[0].split(",")
    try:
        types, rows = read(path, has_header=False)
    except NoRowsError:
        assert content.count("\n") == 1
        return
    assert list(types) == [name or "unnamed_1" for name in first]
    assert len(rows) == len(content.splitlines()) - 1


@pytest.mark.parametrize("cell", ["12a", "5 kg", "0x1F", "1e"])
def test_a_cell_that_begins_as_a_number_is_no_name_of_a_column_of_numbers(tmp_path, cell):
    message = refuses(tmp_path, f"{cell},Main St\n14,Oak St\n16,Elm St\n18,Ash St\n", has_header=False)
    assert "no cell of it is like a name" in message
    assert len(read(tmp_path / "a.csv", no_header=True)[1]) == 4
    _, rows = read(
        write(tmp_path, "street,2m_temperature\n" + "".join(f"a{i},{i}\n" for i in range(30))), has_header=True
    )
    assert len(rows) == 30


def test_a_first_line_that_looks_like_a_comment_is_refused_with_the_option_for_it(tmp_path):
    assert "--comment '#' passes over lines" in refuses(tmp_path, "# made by hand,\na,b\nx,y\n", has_header=False)


@pytest.mark.parametrize(
    "content", ["a,b\nx,y\n", "id,2020\n1,2\n", 'x y,z\n"a, b",c\n', "NA,x\n1,y\n", "Smith,unknown\nJones,5\n"]
)
def test_a_first_line_that_may_be_either_is_refused(tmp_path, content):
    message = refuses(tmp_path, content, has_header=False)
    assert "the first line may be names or values in a.csv" in message
    assert "--header" in message
    assert "--no-header" in message
    assert "--columns" in message
    assert "--comment" not in message
    assert len(read(tmp_path / "a.csv", has_header=True)[1]) == 1
    assert len(read(tmp_path / "a.csv", no_header=True)[1]) == 2


@pytest.mark.parametrize(
    "content",
    [
        "0,1,2\n5,6,7\n",
        "FR,2001,2002\nDE,35.5,40.1\nIT,12.5,13.5\n",
        "1990,1991,1992\n5.5,1.5,2.5\n",
        "country,1990,1991\nFR,1990,2000\nDE,1991,1992\n",
        "Anna,<missing>\nBert,2\nCarl,4\n",
    ],
)
def test_numbers_in_order_that_may_be_values_are_refused(tmp_path, content):
    assert "the first line may be names or values" in refuses(tmp_path, content, has_header=False)


def test_files_with_and_without_a_header_line_are_refused_together(tmp_path):
    paths = [write(tmp_path, "id,x\n1,2\n", "a.csv"), write(tmp_path, "3,4\n5,6\n", "b.csv")]
    with pytest.raises(UsageError, match=r"a\.csv has a header line, and b\.csv has none"):
        read(*paths, has_header=False)


def test_a_line_that_every_file_begins_with_names_the_columns(tmp_path):
    paths = [write(tmp_path, "a,b\nx,y\n", "1.csv"), write(tmp_path, "a,b\nv,w\n", "2.csv")]
    types, rows = read(*paths, has_header=False)
    assert list(types) == ["a", "b"]
    assert len(rows) == 2


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
