"""Lines above a table, header lines that are too short, and second header lines: refused with what reads them."""

from __future__ import annotations

import re
import shlex

import msgspec
import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions, settle
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.files.transcoding import with_text_options

ROWS = [{"id": i, "x": i / 4} for i in range(6)]
TABLE = "id,x\n" + "".join(f"{i},{i / 4}\n" for i in range(6))


def read(folder, advice=""):
    """Returns the rows by the options of an advice."""
    taken = {"--skip-lines": "skip_lines", "--comment": "comment", "--columns": "columns", "--include": "include"}
    taken |= {"--drop-columns": "drop_columns", "--delimiter": "delimiter"}
    words = dict(re.findall(r"(--[a-z-]+) ((?:'[^']*'|\S)+)", advice))
    given = {taken[option]: shlex.split(text)[0] for option, text in words.items()}
    given |= {"skip_lines": int(given["skip_lines"])} if "skip_lines" in given else {}
    many = {name: tuple(given[name].split(",")) for name in ("columns", "include", "drop_columns") if name in given}
    options = SourceOptions(**{**given, **many})
    options = msgspec.structs.replace(options, delimiter={"tab": "\t"}.get(options.delimiter, options.delimiter))
    source, files = CsvSource(), with_text_options(list_inputs([str(folder)], options).files, options)
    options = settle(source, files, options)
    features = source.infer(files, options)
    parts = [part for split in source.split(files, options) for part in source.read(split, files, features, options)]
    return [row for part in parts for row in part.batch.to_pylist()]


def advice(folder):
    with pytest.raises(UsageError) as caught:
        read(folder)
    return caught.value.next_step.partition(";")[0].partition(" takes it")[0].partition(", which")[0]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('"Source","Indicators",\n\n"Updated","2023-09-19",\n\n' + "id,x,y,\n" + "1,2,3,\n" * 4,
         [{"id": 1, "x": 2, "y": 3, "unnamed_4": None}] * 4),
        ("# made by us\n" + TABLE, ROWS),
        ("# made by us, at night\n" + TABLE, ROWS),
        ("a title\n" + TABLE, ROWS),
        ("id,x\n" + "".join(f"{i},{i / 4},\n" for i in range(6)), ROWS),
        ("id,x\n" + "".join(f"r{i},{i},{i / 4}\n" for i in range(6)), [{"row": f"r{i}", **ROWS[i]} for i in range(6)]),
        ("any,words\n" + TABLE, ROWS),
    ],
)  # fmt: skip
def test_what_is_advised_reads_the_table(tmp_path, text, rows):
    (tmp_path / "a.csv").write_text(text)
    assert read(tmp_path, advice(tmp_path)) == rows


def test_a_title_in_one_of_several_files_names_that_file(tmp_path):
    table = "id,a,b,c\n" + "".join(f"{i},{i},{i},{i}\n" for i in range(6))
    (tmp_path / "b.csv").write_text("Source,Indicators,\nUpdated,2023,\n" + table)
    (tmp_path / "metadata.csv").write_text("code,region\n1,x\n2,y\n")
    found = advice(tmp_path)
    assert "--include b.csv --skip-lines 2" in found
    assert len(read(tmp_path, found)) == 6


def test_one_column_of_texts_with_commas(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "".join(f"hello, you {i}\n" for i in range(5)))
    advice(tmp_path)
    assert read(tmp_path, "--delimiter tab") == [{"text": f"hello, you {i}"} for i in range(5)]


@pytest.mark.parametrize("first", ["", "NA", "?", "3", "unknown"])
def test_a_first_row_without_a_name_is_a_row(tmp_path, first):
    (tmp_path / "a.csv").write_text(f"id,x\n7,{first}\n" + "".join(f"{i},{i}\n" for i in range(9)))
    assert len(read(tmp_path)) == 10
