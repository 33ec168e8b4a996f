"""Small files that are parsed in one go give what they give one after the other."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.json.array_source import JsonArraySource
from shardkit.sources.json.lines_source import JsonLinesSource
from shardkit.sources.text.source import TextSource
from tests.support.files.csv_makers import PROPERTY

FEATURES = (
    make_feature("a", "int64", nullable=True),
    make_feature("b", "string", nullable=True),
    make_feature("x", "float32", nullable=True),
)
CSV_LINES = ["1,x,0.5", "2,,0.1", ",y,", "", " ", '3,"q",2', '4,"q\nr",2', '5,"open,2', "6,z", "s,z,1"]
CSV_LINES += ["7,\0,1", "8,é,1e60"]
JSON_LINES = [
    '{"a": 1, "b": "x", "x": 0.5}',
    '{"b": "y", "a": 2}',
    "{}",
    "",
    " ",
    '{"a": "3"}',
    '{"x": "0.1"}',
    '{"a": 1, "a": 2}',
    "[]",
    '{"x": 0.1}',
    '{"a": 1',
    '{"b": 5}',
]
ARRAY_ELEMENTS = [*JSON_LINES[:3], '{\n"a": 4,\r\n "b": "\\n"}', *JSON_LINES[5:], '{"b": "x\ny"}', '{"a": 1},']
TEXT = (make_feature("text", "string", media_type="text"),)
TEXT_LINES = ["a", "b c", "", " ", "\r", "d\re", "\0", "\udcff"]


def arrays():
    """Draws the contents of some small arrays."""
    elements = st.lists(st.sampled_from(ARRAY_ELEMENTS[:4]) | st.sampled_from(ARRAY_ELEMENTS), max_size=4)
    one = st.builds(
        lambda mark, gap, rows, end: mark + "[" + gap + ("," + gap).join(rows) + gap + end,
        st.sampled_from(["", "", "\ufeff"]),
        st.sampled_from(["", " ", "\n", "\r\n  "]),
        elements,
        st.sampled_from(["]", "]\n", "]", "", "] x"]),
    )
    return st.lists(one, min_size=1, max_size=6)


def texts(lines, headers):
    """Draws the contents of some small files."""
    line_ends = st.sampled_from(["\n", "\r\n"])
    body = st.lists(st.sampled_from(lines[:4]) | st.sampled_from(lines), max_size=4)
    one = st.builds(
        lambda mark, header, rows, end, is_ended: mark + end.join([*header, *rows]) + (end if is_ended else ""),
        st.sampled_from(["", "", "\ufeff"]),
        st.sampled_from(headers),
        body,
        line_ends,
        st.booleans(),
    )
    return st.lists(one, min_size=1, max_size=6)


def write_all(folder, contents, suffix):
    """Writes the files; returns them as a source gets them."""
    for path in folder.iterdir():
        path.unlink()
    for number, content in enumerate(contents):
        (folder / f"{number}{suffix}").write_bytes(content.encode(errors="surrogateescape"))
    return list_inputs((str(folder),), SourceOptions(format="csv")).files


def one_by_one(source, files, options, features=FEATURES):
    """Returns the batches of the files with identities and files of the rows; None if one cannot be read whole."""
    found = []
    try:
        for split in source.split(files, options):
            found += source.read(split, files, features, options)
    except (BadInputError, UsageError):
        return None
    return (
        pa.Table.from_batches([rows.batch for rows in found]),
        np.concatenate([rows.identities for rows in found]).tolist(),
        [rows.file_indices for rows in found for _ in range(rows.batch.num_rows)],
        sum(rows.num_rounded.get("x", 0) for rows in found),
    )


def at_once(source, files, options, features=FEATURES):
    """Returns the same of one go, None where the source leaves the files to be read one by one."""
    try:
        rows = source.read_together(range(len(files)), files, features, options)
    except (BadInputError, UsageError):
        return None
    if rows is None:
        return None
    table = pa.Table.from_batches([rows.batch])
    return table, rows.identities.tolist(), rows.file_indices.tolist(), rows.num_rounded.get("x", 0)


@PROPERTY
@example(["a,b,x\n1,x,0.5", "a,b,x\n "])
@given(texts(CSV_LINES, [["a,b,x"], ["a,b,x"], ["b,a,x"], ["a;b;x"]]))
def test_csv_files_together_are_the_files_one_by_one(tmp_path, contents):
    options = SourceOptions(format="csv")
    files = write_all(tmp_path, contents, ".csv")
    together = at_once(CsvSource(), files, options)
    assert together is None or together == one_by_one(CsvSource(), files, options)


@PROPERTY
@given(texts(JSON_LINES, [[]]))
def test_json_lines_together_are_the_files_one_by_one(tmp_path, contents):
    options = SourceOptions(format="jsonl")
    files = write_all(tmp_path, contents, ".jsonl")
    together = at_once(JsonLinesSource(), files, options)
    assert together is None or together == one_by_one(JsonLinesSource(), files, options)


@PROPERTY
@given(arrays())
def test_json_arrays_together_are_the_files_one_by_one(tmp_path, contents):
    options = SourceOptions(format="json")
    files = write_all(tmp_path, contents, ".json")
    together = at_once(JsonArraySource(), files, options)
    assert together is None or together == one_by_one(JsonArraySource(), files, options)


@PROPERTY
@example(["a\r", "b"])
@given(texts(TEXT_LINES, [[]]))
def test_texts_together_are_the_files_one_by_one(tmp_path, contents):
    options = SourceOptions(format="text")
    files = write_all(tmp_path, contents, ".txt")
    together = at_once(TextSource(), files, options, TEXT)
    assert together is None or together == one_by_one(TextSource(), files, options, TEXT)


@pytest.mark.parametrize("source", [JsonLinesSource(), JsonArraySource(), TextSource()], ids=lambda s: s.format)
def test_files_with_a_record_that_may_be_too_long_are_read_alone(tmp_path, source):
    options = SourceOptions(format=source.format, max_record_bytes=100)
    features = TEXT if source.format == "text" else FEATURES
    files = write_all(tmp_path, ['[{"b": "' + "x" * 200 + '"}]'] * 2, ".x")
    assert at_once(source, files, options, features) is None


TABLE, ROWS = ["a,b,x", "1,x,0.5", "", "2,,0.1"], JSON_LINES[:4]


@pytest.mark.parametrize(
    ("source", "contents", "features"),
    [
        (CsvSource(), ["\n".join(TABLE), "\r\n".join(TABLE) + "\r\n"], FEATURES),
        (JsonLinesSource(), ["\n".join(ROWS), "\r\n".join(ROWS) + "\r\n"], FEATURES),
        (JsonArraySource(), ['[{"a": 1}, {\n"b": "x"}]\n', '\ufeff[{"a": 2}]'], FEATURES),
        (TextSource(), ["a b\r\n\nc", "\ufeffd"], TEXT),
    ],
    ids=lambda value: getattr(value, "format", ""),
)
def test_plain_small_files_are_read_in_one_go(tmp_path, source, contents, features):
    files = write_all(tmp_path, contents, ".x")
    options = SourceOptions(format=source.format)
    together = at_once(source, files, options, features)
    assert together is not None
    assert together == one_by_one(source, files, options, features)
