"""Where records and fields of CSV end: quotes, and the limits of both."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions, settle
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.text import quoting
from shardkit.sources.text.quoting import QuotedRecords
from tests.support.files.csv_makers import PROPERTY, fails, read, write
from tests.support.files.source_makers import read_all


def test_record_beyond_the_limit_is_refused(tmp_path):
    content = "a,b\n1,x\n2," + "y" * 5000 + "\n"
    assert "line 3" in fails(tmp_path, content, max_record_bytes=1000)
    content = 'a,b\n1,x\n2,"' + "y\n" * 5000
    message = fails(tmp_path, content, max_record_bytes=1000, source=CsvSource(batch_bytes=512))
    assert "line 3" in message
    assert "never closed" in message


def test_fields_larger_than_a_block_are_read(tmp_path):
    text = 'a "quoted"\nline, and more' * 4000
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([["a", "b"], ["1", text], ["2", "short"]])
    _, rows = read(write(tmp_path, buffer.getvalue()), source=CsvSource(batch_bytes=1024))
    assert rows == [{"a": 1, "b": text}, {"a": 2, "b": "short"}]


FIELD = st.text(alphabet='ab0 ,"\n\r\té', max_size=5)


@st.composite
def tables(draw):
    width = draw(st.integers(2, 4))
    return draw(st.lists(st.lists(FIELD, min_size=width, max_size=width), min_size=1, max_size=30))


@PROPERTY
@given(tables(), st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 200), st.integers(8, 64), st.booleans())
def test_splits_and_blocks_never_change_what_is_read(tmp_path, table, line_end, split_bytes, block_bytes, with_bom):
    buffer = io.StringIO(newline="")
    names = [f"c{i}" for i in range(len(table[0]))]
    csv.writer(buffer, lineterminator=line_end, quoting=csv.QUOTE_ALL).writerows([names, *table])
    path = write(tmp_path, ("\ufeff" if with_bom else "") + buffer.getvalue())
    features = tuple(make_feature(n, "string", nullable=True) for n in names)
    source = CsvSource(split_bytes=split_bytes, batch_bytes=block_bytes)
    _, rows = read(path, source=source, features=features, delimiter=",")
    assert [[r[n] for n in names] for r in rows] == table


@PROPERTY
@given(st.text(alphabet='ab,"\n\r', max_size=60), st.integers(4, 32), st.integers(4, 16))
def test_careless_text_reads_as_pythons_csv_module_reads_it(tmp_path, text, split_bytes, block_bytes):
    # Quotes inside unquoted fields, text behind closing quotes, mixed line ends.
    rows = [r for r in csv.reader(io.StringIO("x,y\n" + text, newline="")) if r]
    path = write(tmp_path, "x,y\n" + text)
    features = (make_feature("x", "string", nullable=True), make_feature("y", "string", nullable=True))
    source = CsvSource(split_bytes=split_bytes, batch_bytes=block_bytes)
    try:
        _, found = read(path, source=source, features=features, delimiter=",")
    except BadInputError as error:
        unclosed = "never closed" in str(error) or "behind a closing quote" in str(error)
        assert unclosed or any(len(r) != 2 for r in rows)
    else:
        assert [[r["x"] or "", r["y"] or ""] for r in found] == rows[1:]


def found_by(rule, data):
    """Returns what a rule finds in a text; of a view nothing is remembered."""
    widths = rule.records(memoryview(data)).widths.tolist()
    return rule.last_end(data), rule.ends(data).tolist(), rule.open_quote(data), widths


@PROPERTY
@given(st.text(alphabet='ab,"\n\r', max_size=400), st.integers(1, 4))
def test_quotes_are_followed_over_the_borders_of_what_is_looked_at_at_once(text, num_words):
    data, rule = text.encode(), QuotedRecords(",")
    whole = found_by(rule, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quoting, "_SCAN_BYTES", 64 * num_words)
        pieces = found_by(rule, data)
    assert pieces == whole
    # A record that ends is one that Python's csv module has read when it asks for no further line.
    records = [r for r in csv.reader(io.StringIO(text, newline="")) if r]
    assert len([n for n in whole[3] if n]) == len(records)


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        ("a,b\n1,short\n2,abcdefghijk\n", 3, "column 'b' holds a field that is too long"),
        ('a,b\n1,"x\ny"\n2,"abcdefghijk"\n', 4, "it has 11 bytes, more than the 10 B"),
        ("a,b\r\n1,x\r\n12345678901,x\r\n", 3, "column 'a' holds a field that is too long"),
        ("a,b\n1,ééééé\n1,éééééé", 3, "it has 12 bytes"),
    ],
)
def test_fields_beyond_their_limit_are_named(tmp_path, content, line, why):
    message = fails(tmp_path, content, max_field_bytes=10)
    assert f"a.csv, line {line}" in message
    assert why in message
    assert "--max-field" in message


def test_fields_up_to_their_limit_are_read_and_longer_ones_cost_their_row(tmp_path):
    path = write(tmp_path, 'a,b\n1,abcdefghij\n2,"abcdefghij"\n3,abcdefghijk\n4,"a,b\n,cdefg"\n5,"a,b\n,cdefgh"\n')
    options = SourceOptions(max_field_bytes=10, tolerates_bad_rows=True)
    files = list_inputs([str(path)]).files
    features = CsvSource().infer(files, options)
    for source in (CsvSource(), CsvSource(split_bytes=20, batch_bytes=7)):
        parts = [p for s in source.split(files, options) for p in source.read(s, files, features, options)]
        assert [row["a"] for p in parts for row in p.batch.to_pylist()] == [1, 2, 4]
        rejected = [row for p in parts for row in p.rejected]
        assert [row.position for row in rejected] == ["line 4", "line 7"]
        assert all("'b' holds a field that is too long" in row.reason for row in rejected)


@PROPERTY
@given(
    rows=st.lists(st.tuples(st.text('ab,"\n', max_size=12), st.text("xé\r", max_size=6)), min_size=1, max_size=8),
    limit=st.integers(1, 12),
)
def test_long_fields_are_those_that_pythons_csv_module_finds_long(rows, limit):
    text = io.StringIO()
    # Quoted as a whole, so that what stands between the quotes is known.
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    found = QuotedRecords(",").long_fields(text.getvalue().encode(), limit)
    written = [[len(v.replace('"', '""').encode()) for v in row] for row in rows]
    assert [tuple(f) for f in found] == [
        (r, c, size) for r, row in enumerate(written) for c, size in enumerate(row) if size > limit
    ]


@pytest.mark.parametrize("first", ["x", '1"2'])
def test_a_long_quoted_field_is_looked_through_once(tmp_path, first):
    text = "a line, and more\n" * 200_000
    # What would be quadratic takes minutes.
    start = time.process_time()
    _, rows = read(write(tmp_path, f'a,b\n{first},z\ny,"{text}"\n'))
    assert time.process_time() - start < 20
    assert rows[-1]["b"] == text


@pytest.mark.parametrize(("written", "expected"), [('"a" ,c', "a "), ('a"b",c', 'a"b"'), ('"a""b",c', 'a"b')])
def test_quotes_inside_of_a_field_are_those_of_elsewhere(tmp_path, written, expected):
    path = write(tmp_path, f'x,y\nplain,"q"\n{written}\n')
    rows = [["plain", "q"], [expected, "c"]]
    assert [list(row.values()) for row in read(path)[1]] == rows
    with path.open(newline="") as file:
        assert list(csv.reader(file))[1:] == rows
    assert pd.read_csv(path).to_numpy().tolist() == rows


@pytest.mark.parametrize("written", ['"a"b,c', '"a" b,c', '"a""b"c,c', '""b,c', '"a\nb"c,c', 'a,"b"c'])
def test_text_behind_a_closing_quote_is_a_bad_row(tmp_path, written):
    path = write(tmp_path, f'x,y\nplain,"q"\n{written}\nlast,row\n')
    message = fails(tmp_path, f'x,y\nplain,"q"\n{written}\nlast,row\n')
    assert "text stands behind a closing quote in a.csv, line" in message
    assert "--quote none" in message
    found = read_all(CsvSource(), path, tolerates_bad_rows=True, has_header=True)
    assert [list(row.values()) for row in found.rows] == [["plain", "q"], ["last", "row"]]
    assert [r.raw.decode() for r in found.rejected] == [written]


@given(st.lists(st.text(alphabet="ab\"' ", max_size=8), min_size=1, max_size=20))
def test_quotes_are_text_where_a_user_says_so(values):
    with TemporaryDirectory() as folder:
        path = write(Path(folder), "n,x\n" + "".join(f"{n},-{value}\n" for n, value in enumerate(values)))
        _, rows = read(path, quote="none", has_header=True)
    assert [row["x"] for row in rows] == [f"-{value}" for value in values]


def test_quotes_that_hold_whole_rows_are_noted(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('id\treview\n1\t"Great film\n2\tok\n3\tThe end"\n4\tfine\n')
    files = list_inputs([str(path)]).files
    options = settle(CsvSource(), files, SourceOptions())
    note = next(note for note in CsvSource().notes(files, options) if "--quote none" in note)
    assert note.startswith("row 1 of a.tsv spans 3 lines by its quotes, each of 2 fields")
    path.write_text('id\treview\n1\t"Great film\n\nwith songs"\n4\tfine\n')
    files = list_inputs([str(path)]).files
    assert not any("--quote none" in note for note in CsvSource().notes(files, options))


@PROPERTY
@given(st.text(alphabet='ab,;"\n\r\x0b\x1c\u2028', max_size=80), st.sampled_from(",;"), st.booleans())
def test_records_of_a_few_lines_are_those_of_many(text, delimiter, has_quotes):
    data, rule = text.encode(), QuotedRecords(delimiter, has_quotes)
    few, many = rule.records(data), rule.records(memoryview(data))
    assert [column.tolist() for column in few] == [column.tolist() for column in many]
    assert {column.dtype for column in few} == {np.dtype(np.int64)}
