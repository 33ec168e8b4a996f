"""Blank lines are no rows, and do not shift the numbers of the lines behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardkit.errors import BadInputError, NoRowsError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.json.lines_source import JsonLinesSource

BLANKS = ["\n", "\n\n\n", "  \n", "\t\r\n\r\n"]
X = (make_feature("x", "int64"),)


def read(path: Path, source, features=None, **options):
    files, settings = list_inputs([str(path)]).files, SourceOptions(**options)
    features = features or source.infer(files, settings)
    parts = [p for s in source.split(files, settings) for p in source.read(s, files, features, settings)]
    values = [value for part in parts for value in part.batch.column(0).to_pylist()]
    return values, [row.position for part in parts for row in part.rejected], sum(len(p.identities) for p in parts)


def write(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize("block_bytes", [8, 4096])
def test_they_are_no_rows_of_json_lines(tmp_path, blank, block_bytes):
    path = write(tmp_path / "a.jsonl", f'{blank}{{"x": 1}}\n{blank}{{"x": 2}}\n{blank}')
    source = JsonLinesSource(split_bytes=12, batch_bytes=block_bytes)
    assert read(path, source) == ([1, 2], [], 2)
    assert read(path, source, tolerates_bad_rows=True) == ([1, 2], [], 2)


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize("block_bytes", [8, 4096])
def test_lines_behind_them_keep_their_numbers(tmp_path, blank, block_bytes):
    path = write(tmp_path / "a.jsonl", f'{blank}{{"x": 1}}\n{blank}{{"x": "no"}}\n')
    source = JsonLinesSource(batch_bytes=block_bytes)
    line = f"line {2 * blank.count(chr(10)) + 2}"
    assert read(path, source, X, tolerates_bad_rows=True) == ([1], [line], 1)
    with pytest.raises(BadInputError, match=rf"a\.jsonl, {line}: "):
        read(path, source, X)


@pytest.mark.parametrize("content", ["\n", "\n\n \n", "\r\n\r\n", "  "])
def test_a_file_of_nothing_else_says_so(tmp_path, content):
    with pytest.raises(NoRowsError, match="nothing but blank lines"):
        read(write(tmp_path / "a.jsonl", content), JsonLinesSource())


def test_a_csv_file_of_nothing_else_says_so(tmp_path):
    with pytest.raises(NoRowsError, match="nothing but blank lines"):
        read(write(tmp_path / "a.csv", "\n\r\n\n"), CsvSource())
