"""Columns that a value or two make text: the note says which, and where it stands."""

import shlex

import pytest

from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource

SOURCE = CsvSource()


def notes_of(folder, options=None):
    files = list_inputs([str(folder)]).files
    options = options or SourceOptions()
    SOURCE.infer(files, options)
    return [note for note in SOURCE.notes(files, options) if "is text because" in note]


@pytest.mark.parametrize(
    ("cells", "dtype", "odd"),
    [
        ([*range(20), 99999999999999999999], "int64", 20),
        ([*range(20), 9223372036854775808], "int64", 20),
        ([*range(3), "oops", *range(100)], "int64", 3),
        ([0.5, 1.5, "1,5", *range(20)], "float32", 2),
        ([9007199254740993, 1.5, *range(9007199254740994, 9007199254741004)], "int64", 1),
        ([*("true", "FALSE") * 5, "yes"], "bool", 10),
        ([*(f"2020-01-{day}" for day in range(10, 30)), "2020-13-45"], "date", 20),
        ([*(f"2020-01-{day} 10:00" for day in range(10, 30)), "soon"], "timestamp[us]", 20),
    ],
)
def test_the_value_and_its_line_are_named(tmp_path, cells, dtype, odd):
    lines = ['id,"a\nb",n', *(f'w,"two\nlines",{cell!r}'.replace("'", '"') for cell in cells)]
    (tmp_path / "a.csv").write_text("\n".join(["", *lines, ""]))
    (note,) = notes_of(tmp_path)
    line = 4 + 2 * odd
    assert note.startswith(f"column 'n' is text because {str(cells[odd])!r} in a.csv, line {line} is no {dtype}")
    assert shlex.split(note.partition("--cast ")[2])[0] == f"n={dtype}"


def test_text_gets_no_note(tmp_path):
    rows = [f"{i},w{i},{i if i % 3 else 'A' + str(i)},00{i},{'NA' if i % 9 else i},{i}" for i in range(100)]
    (tmp_path / "a.csv").write_text("\n".join(["n,word,ticket,zip,null,m", *rows, ""]))
    assert notes_of(tmp_path) == []


def test_options_are_written_as_a_shell_takes_them(tmp_path):
    rows = [f"{i},{i}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["zip code,n", *rows, "x,1", ""]))
    (tmp_path / "b.csv").write_text("\n".join(["zip code,n", *rows, "1,#N/A", ""]))
    cast, null = notes_of(tmp_path)
    assert "--cast 'zip code=int64'" in cast
    assert "--null-value '#N/A'" in null


def test_a_later_file_is_named(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("n,m\n" + "1,2\n" * 5)
    (tmp_path / "b.csv").write_text("n,m\n,3\n1,2\nNA,4\n")
    (tmp_path / "c.csv").write_text("n,m\n1,first\n1,second\n")
    in_b, in_c = notes_of(tmp_path)
    assert in_b == (
        "column 'n' is text because 'NA' in b.csv, line 4 is no int64, unless --null-value NA says otherwise"
    )
    assert "'m' is text because 'first' in c.csv, line 2 is no int64" in in_c
    (remaining,) = notes_of(tmp_path, SourceOptions(null_values=("NA",)))
    assert remaining == in_c


def test_many_columns_are_counted(tmp_path):
    rows = [",".join([str(i)] * 9) for i in range(9)]
    (tmp_path / "a.csv").write_text("\n".join([",".join("abcdefghi"), *rows, ",".join(["x"] * 9), ""]))
    assert len(notes_of(tmp_path)) == 5
    assert "and so are 4 more columns" in SOURCE.notes(list_inputs([str(tmp_path)]).files, SourceOptions())
