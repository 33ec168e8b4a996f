"""CSV: what is read is what Python's csv module reads; what does not fit is named by file, line and column."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv import leading_zeros as csv_zeros
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.text import line_numbers as text_lines
from tests.support.files.csv_makers import PROPERTY, fails, read, write


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2", ""], "int64"),
        (["9223372036854775807", "-9223372036854775808"], "int64"),
        (["9223372036854775808", "1"], "string"),
        (["00123", "00456"], "string"),
        (["1.5", "2"], "float32"),
        (["1.234567", "2"], "float64"),
        (["1.5", "9007199254740993"], "string"),
        (["1e-50", "2"], "float64"),
        (["1.5", "nan", "inf"], "float32"),
        (["nan", "NaN"], "string"),
        (["1e400", "1.5"], "string"),
        (["true", "False", "TRUE"], "bool"),
        (["2020-01-31", "1999-12-01"], "date"),
        (["2020-01-31", "2020-02-30"], "string"),
        (["2020-01-31 10:00", "2020-01-31T10:00:01.25"], "timestamp[us]"),
        (["2020-01-31", "2020-01-31 10:00"], "timestamp[us]"),
        (["2020-01-31T10:00:00.123456789"], "timestamp[ns]"),
        (["2020-01-31T10:00:00Z", "2020-01-31T10:00:00+02:00"], "timestamp[us] UTC"),
        (["2020-01-31T10:00:00Z", "2020-01-31T10:00:00"], "string"),
        (["1", "true"], "string"),
        (["x", "1"], "string"),
        (["", ""], "string"),
        (["0x10", "0x20"], "string"),
    ],
)
def test_types_come_from_the_values(tmp_path, values, expected):
    content = "a,b\n" + "".join(f"{v},x\n" for v in values)
    described, rows = read(write(tmp_path, content))
    assert described["a"] == expected
    assert len(rows) == len(values)
    if expected == "string":
        assert [r["a"] for r in rows] == [v or None for v in values]


def test_files_agree_on_the_wider_type(tmp_path):
    paths = [write(tmp_path, "a,b\n1,x\n", "1.csv"), write(tmp_path, "b,a\ny,2.5\n", "2.csv")]
    described, rows = read(*paths)
    assert described == {"a": "float32", "b": "string"}
    assert rows == [{"a": 1.0, "b": "x"}, {"a": 2.5, "b": "y"}]


def test_quoted_empty_is_a_string_and_unquoted_empty_is_null(tmp_path):
    assert read(write(tmp_path, 'a,b\n"",1\n,2\nx,3\n'))[1] == [
        {"a": "", "b": 1},
        {"a": None, "b": 2},
        {"a": "x", "b": 3},
    ]


def test_quoted_empty_is_null_in_a_column_of_numbers(tmp_path):
    described, rows = read(write(tmp_path, '"a","b"\n"1",""\n"","x"\n'))
    assert described == {"a": "int64", "b": "string"}
    assert rows == [{"a": 1, "b": ""}, {"a": None, "b": "x"}]


def test_spellings_of_null(tmp_path):
    path = write(tmp_path, 'a,b\n1,NA\nNA,"NA"\n')
    assert read(path)[1][1] == {"a": "NA", "b": "NA"}
    described, rows = read(path, null_values=("NA",))
    assert described == {"a": "int64", "b": "string"}
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "NA"}]


def test_a_note_names_the_spelling_of_null(tmp_path):
    files = list_inputs([str(write(tmp_path, "a,b,c\n1,NA,007\nNA,2.5,008\n"))]).files
    notes = CsvSource().notes(files, SourceOptions())
    assert any("--null-value NA" in n and "'a', 'b'" in n for n in notes)
    assert any("'c'" in n and "leading zeros" in n for n in notes)


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiter_is_found(tmp_path, delimiter):
    content = "".join(delimiter.join(row) + "\n" for row in (["a", "b"], ["1", "x, y; z"], ["2", "p|q"]))
    if delimiter in ",;|":
        content = content.replace("x, y; z", '"x, y; z"').replace("p|q", '"p|q"')
    assert read(write(tmp_path, content))[1] == [{"a": 1, "b": "x, y; z"}, {"a": 2, "b": "p|q"}]


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t", ":", "^", "\x01", " "])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_any_delimiter_reads_as_pandas_reads_it(tmp_path, delimiter, line_end):
    pandas = pytest.importorskip("pandas")
    table = [["n", "s", "t"], ["1", f'a{delimiter}"b"', "two\r\nlines"], ["22", "", " x "], ["-3", "é", '"']]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator=line_end, quoting=csv.QUOTE_ALL).writerows(table)
    path = write(tmp_path, buffer.getvalue())
    _, rows = read(path, delimiter=None if delimiter in ",;|\t" else delimiter)
    frame = pandas.read_csv(path, sep=delimiter, keep_default_na=False, lineterminator=None)
    assert rows == frame.to_dict("records")


def test_byte_order_mark_and_blank_lines(tmp_path):
    described, rows = read(write(tmp_path, b'\xef\xbb\xbf\r\n"a",b\r\n\r\n1,2\r\n\r\n'))
    assert described == {"a": "int64", "b": "int64"}
    assert rows == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("a,b\n1,2\n1,2,3\n", ["line 3", "expected 2 fields, got 3"]),
        ("a,b,c\n1,2,3\n\n1,2\n", ["line 4", "expected 3 fields, got 2"]),
        ('a,b\n1,2\n3,"x\n4,5\n', ["a quote opened at line 3 is never closed"]),
        (b"a,b\n1,x\n2,\xff\n", ["line 3", "not UTF-8 at byte 10"]),
        (b"a\xff,b\n1,x\n", ["line 1", "not UTF-8 at byte 1"]),
        (b"a,b\n1,x\n2,y\0z\n", ["line 3", "NUL"]),
        ("a,b\n1,2\n".encode("utf-16"), ["UTF-16"]),
        ("", ["there are no rows"]),
        (b"\xef\xbb\xbf\n", ["there are no rows"]),
    ],
)
def test_bad_text_is_named_by_line(tmp_path, content, parts):
    message = fails(tmp_path, content)
    for part in parts:
        assert part in message


LATE = "a,b,c\n" + '1,x,"two\nlines"\n' * 20_000


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("abc,x,y\n", ["line 40002", "'a'", "expected int64, got 'abc'"]),
        ("99999999999999999999,x,y\n", ["line 40002", "out of its range"]),
        ("1.5,x,y\n", ["expected int64, got '1.5'"]),
        ("1,x\n", ["line 40002", "expected 3 fields, got 2"]),
        ('1,"x\n', ["a quote opened at line 40002 is never closed"]),
    ],
)
def test_late_rows_are_named_by_line(tmp_path, row, parts):
    path = write(tmp_path, LATE + row)
    for source in (CsvSource(), CsvSource(split_bytes=50_000, batch_bytes=7_000)):
        with pytest.raises(BadInputError) as caught:
            read(path, source=source)
        for part in parts:
            assert part in str(caught.value)


def test_lines_are_counted_from_the_start_of_the_file_whatever_ends_them(tmp_path):
    for line_end in ("\n", "\r\n", "\r"):
        path = write(tmp_path, line_end.join(["a,b", "", *["1,x"] * 11_000, "y,x", ""]))
        for source in (CsvSource(), CsvSource(split_bytes=9_000, batch_bytes=5_000)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(text_lines, "_COUNT_BYTES", 7)
                with pytest.raises(BadInputError, match="line 11003"):
                    read(path, source=source)


def test_number_beyond_float64_is_no_infinity(tmp_path):
    content = "a,b\n" + "1.5,x\n" * 20_000 + "inf,x\n1e400,x\n"
    assert "line 20003" in fails(tmp_path, content)


def test_declared_types_govern(tmp_path):
    features = (
        make_feature("zip", "string", nullable=True),
        make_feature("n", "int8"),
        make_feature("kind", "int64", vocabulary=("cat", "dog")),
        make_feature("price", "decimal(6,2)"),
        make_feature("raw", "bytes"),
    )
    path = write(tmp_path, "zip,n,kind,price,raw\n00123,7,dog,1.50,é\n,-8,cat,2,x\n")
    _, rows = read(path, features=features)
    assert [r["zip"] for r in rows] == ["00123", None]
    assert [r["n"] for r in rows] == [7, -8]
    assert [r["kind"] for r in rows] == [1, 0]
    assert [str(r["price"]) for r in rows] == ["1.50", "2.00"]
    assert rows[0]["raw"] == "é".encode()


@pytest.mark.parametrize(
    ("feature", "value", "parts"),
    [
        (make_feature("a", "int8"), "200", ["line 3", "expected int8, got '200'"]),
        (make_feature("a", "int64"), "", ["line 3", "expected int64, got an empty field"]),
        (make_feature("a", "int64", vocabulary=("1", "2")), "9", ["line 3", "one of '1', '2'"]),
        (make_feature("a", "bool"), "maybe", ["line 3", "expected bool, got 'maybe'"]),
        (make_feature("a", "float32"), "1e39", ["line 3", "float32"]),
    ],
)
def test_values_that_do_not_fit_what_is_declared(tmp_path, feature, value, parts):
    path = write(tmp_path, f"a,b\n1,x\n{value},x\n")
    with pytest.raises(BadInputError) as caught:
        read(path, features=(feature, make_feature("b", "string", nullable=True)))
    for part in parts:
        assert part in str(caught.value)


def test_shape_is_refused_in_a_field(tmp_path):
    with pytest.raises(UsageError, match="one value"):
        read(write(tmp_path, "a\n1\n"), features=(make_feature("a", "int64", (3,)),))


def test_rounding_to_float32_is_counted(tmp_path):
    path = write(tmp_path, "a,b\n" + "0.1,x\n" * 12_000 + "0.123456789,x\n0.5,x\n1.17549435e-40,x\n,x\n")
    files = list_inputs([str(path)]).files
    source, options = CsvSource(), SourceOptions()
    features = source.infer(files, options)
    assert features[0].dtype == "float32"
    (split,) = source.split(files, options)
    assert sum(part.num_rounded.get("a", 0) for part in source.read(split, files, features, options)) == 2


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(b"a,b\n")
        for _ in range(80):
            out.write(b"1,some text that is repeated\n" * 20_000)
    files = list_inputs([str(path)]).files
    source, options = CsvSource(), SourceOptions()
    features = source.infer(files, options)
    (split,) = source.split(files, options)
    num_rows, largest = 0, 0
    before = pa.total_allocated_bytes()
    for part in source.read(split, files, features, options):
        num_rows += part.batch.num_rows
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert num_rows == 1_600_000
    assert largest < 64 * 2**20


@PROPERTY
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
            st.one_of(st.none(), st.floats()),
            st.text(max_size=8),
            st.one_of(st.none(), st.booleans()),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_values_survive_without_loss(tmp_path, values):
    values = [(i, f, s.replace("\0", ""), b) for i, f, s, b in values]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow("ifsb")
    writer.writerows([["" if v is None else v for v in row] for row in values])
    described, rows = read(write(tmp_path, buffer.getvalue()))
    for row, (integer, number, text, flag) in zip(rows, values, strict=True):
        assert described["i"] == "string" or row["i"] == integer
        if described["f"] == "float64" and row["f"] is not None and not math.isnan(row["f"]):
            assert row["f"] == number
        if described["f"] == "float32" and row["f"] is not None and not math.isnan(row["f"]):
            assert row["f"] == np.float32(number)
        assert described["s"] != "string" or (row["s"] or "") == text
        assert described["b"] != "bool" or row["b"] == flag


@pytest.mark.full
@pytest.mark.parametrize("value", ["00123", "-007", '"00123"', " 05", '" -05"', "0x10"])
def test_a_leading_zero_behind_the_sample_is_no_integer(tmp_path, value):
    content = "a,b\n" + "123,y\n" * 300_000 + f"{value},y\n" + "5,x\n"
    message = fails(tmp_path, content)
    assert "column 'a' does not fit in a.csv, line 300002: expected int64 as in the first rows, got '" in message
    assert "out of its range" not in message
    _, rows = read(tmp_path / "a.csv", leading_zeros=("a",))
    assert rows[-2]["a"] == int(value.strip('" '), 16 if "x" in value else 10)
    assert len(read(tmp_path / "a.csv", tolerates_bad_rows=True)[1]) == 300_001


@pytest.mark.parametrize("value", ["00.5", "007", "+5"])
def test_a_leading_zero_behind_the_sample_is_no_float(tmp_path, value):
    content = "b;a\n" + "0x;0.25\n" * 200_000 + f"y;{value}\n"
    assert f"line 200002: expected float32 as in the first rows, got '{value}'" in fails(tmp_path, content)


_FIELDS = st.sampled_from(
    ["0", "10", "0.5", "007", "-07", "+1", " 08", "\t-0x1", "2020-01-01", "09:30", "a 00", "x", ""]
)


@PROPERTY
@given(
    rows=st.lists(st.lists(_FIELDS, min_size=2, max_size=2), max_size=6),
    delimiter=st.sampled_from(",;|\t"),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    padding=st.integers(0, 3),
)
def test_no_number_with_a_leading_zero_is_overlooked(rows, delimiter, quoting, padding):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting).writerows(rows)
    # So that a piece ends somewhere within.
    filler = b"x" * (csv_zeros._SCAN_BYTES - 7 + padding) + b"\n" if padding else b""
    if any(re.fullmatch(r"\s*([-+]?0[0-9x][0-9]*|\+[0-9])", field) for row in rows for field in row):
        assert csv_zeros.may_hold_padded(filler + text.getvalue().encode(), delimiter)
