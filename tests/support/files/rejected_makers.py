"""What the tests of rejected rows write and read."""

from __future__ import annotations

from pathlib import Path

from shardkit.features import make_feature
from shardkit.sources.csv.source import CsvSource
from shardkit.testing.reading import Reading
from tests.support.files.source_makers import read_all, write_file

FEATURES = (
    make_feature("i", "int64", nullable=True),
    make_feature("f", "float32", nullable=True),
    make_feature("s", "string", nullable=True),
    make_feature("d", "date", nullable=True),
)


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    return write_file(folder, content, name)


def read(path: Path, source=None, features=FEATURES, **options) -> Reading:
    """Returns what came of a file in tolerant mode; a table has a header line."""
    source = source or CsvSource()
    options = {"has_header": isinstance(source, CsvSource) and "columns" not in options, **options}
    return read_all(source, path, features=features, tolerates_bad_rows=True, **options)


BAD_FIELDS = [
    (b"1,2.5,x", "expected 4 fields, got 3"),
    (b"1,2.5,x,2020-01-01,", "expected 4 fields, got 5"),
    (b"x,2.5,x,2020-01-01", "column 'i' does not fit: expected int64, got 'x'"),
    (b"99999999999999999999,,,", "out of its range"),
    (b"1.5,,,", "expected int64, got '1.5'"),
    (b"1,2.5.5,x,", "column 'f' does not fit"),
    (b"1,1e400,x,", "column 'f' does not fit"),
    (b"1,1e39,x,", "column 'f' does not fit"),
    (b"1,2,x,2020-02-30", "column 'd' does not fit"),
    (b"1,2,x\0y,", "a NUL byte is in the text"),
    (b'1,2,"two\nlines\0",', "a NUL byte is in the text"),
    (b"1,2,\xff,", "the text is not UTF-8"),
    (b"1,2,\xe9t\xe9,\n"[:-1], "the text is not UTF-8"),
    (b'"two\nlines",2,x,', "column 'i' does not fit"),
    (b'1,2,"a ""quoted""\nline",2020', "column 'd' does not fit"),
]


BAD_LINES = [
    (b'{"i":1', "unexpected end of the line"),
    (b"[1]", "expected an object, got an array"),
    (b"null", "expected an object, got null"),
    (b'{"i":NaN}', "expected int64, got nan"),
    (b'{"s":Infinity}', "expected string, got inf"),
    (b'{"f":1e400}', "out of range"),
    (b'{"i":99999999999999999999}', "out of range"),
    (b'{"i":' + b"9" * 5000 + b"}", "range"),
    (b'{"i":9007199254740993.5}', "expected int64"),
    (b'{"i":"x"}', "expected int64, got 'x'"),
    (b'{"s":"\\ud800"}', "surrogate"),
    (b'{"s":"\xff"}', "not UTF-8 at byte"),
    (b'{"i":1,"i":2}', "the key 'i' appears twice"),
    (b'{"i" :1,"i":2}', "the key 'i' appears twice"),
    (b'{"s":"\\\\","i":1,"i":2}', "the key 'i' appears twice"),
    (b'{"d":"2020-02-30"}', "column 'd' does not fit"),
    (b'{"z":1}', "the key 'z' is no column"),
    (b'{"i":' + b"[" * 20_000, "deeper than 128"),
    (b'{"i":1}{"i":2}', "not valid JSON"),
    (b'{"s":"a\0b"}', "not valid JSON"),
]
