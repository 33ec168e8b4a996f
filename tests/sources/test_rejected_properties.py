"""Among bad rows the good ones read as they would alone, however files are cut."""

from __future__ import annotations

import csv
import gzip
import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.errors import DamagedFileError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.files.transcoding import with_text_options
from shardkit.sources.json.array_source import JsonArraySource
from shardkit.sources.json.lines_source import JsonLinesSource
from tests.support.examples import draws
from tests.support.files.rejected_makers import BAD_FIELDS, BAD_LINES, FEATURES, read, write

PROPERTY = settings(max_examples=draws(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


FIELD = st.text(alphabet='a0é ,"\n\r', max_size=5)


GOOD_ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["", "1.5", "-0.25", "1e3", "nan"]),
    FIELD,
    st.sampled_from(["", "2020-01-31", "1999-02-28"]),
)


BAD_RECORD = st.sampled_from([record for record, _ in BAD_FIELDS] + [b"only one", b",,,,,,", b'"",x,"\r\n",'])


def as_record(row, line_end: str) -> bytes:
    fields = ["" if v is None else str(v) for v in row]
    quoted = ['"' + f.replace('"', '""') + '"' if set(f) & set(',"\r\n') else f for f in fields]
    return (",".join(quoted) + line_end).encode()


@pytest.mark.full
@PROPERTY
@given(
    st.lists(GOOD_ROW | BAD_RECORD, max_size=25),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 200),
    st.integers(8, 100),
    st.booleans(),
)
def test_good_records_read_as_without_the_bad_ones(tmp_path, items, line_end, split_bytes, block_bytes, is_packed):
    header, end = b"i,f,s,d" + line_end.encode(), line_end.encode()
    records = [i + end if isinstance(i, bytes) else as_record(i, line_end) for i in items]
    clean = [r for r, i in zip(records, items, strict=True) if not isinstance(i, bytes)]
    expected = read(write(tmp_path, header + b"".join(clean), "clean.csv"), delimiter=",")
    assert not expected.rejected
    whole = header + b"".join(records)
    offsets = [len(header) + sum(map(len, records[:n])) for n in range(len(records))]
    bad = [(o, i) for o, i in zip(offsets, items, strict=True) if isinstance(i, bytes)]
    path = write(tmp_path, gzip.compress(whole) if is_packed else whole)
    sources = [CsvSource(split_bytes=split_bytes, batch_bytes=block_bytes), CsvSource()]
    outcomes = [read(path, source, delimiter=",") for source in sources]
    for found in outcomes:
        assert repr(found.rows) == repr(expected.rows)
        assert [(r.first_byte, r.raw) for r in found.rejected] == bad
    assert outcomes[0].rejected == outcomes[1].rejected
    lines = [1 + len((whole[:o] + b"x").splitlines()) - 1 for o, _ in bad]
    for rejected, line in zip(outcomes[1].rejected, lines, strict=True):
        skipped = rejected.raw[: max(rejected.raw.find(b"\0"), 0)].count(b"\n")
        assert rejected.position == f"line {line + skipped}"


OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.sampled_from([1, 2.5, -0.25]),
        "s": st.text(max_size=5),
        "d": st.none() | st.sampled_from(["2020-01-31"]),
    },
)


BAD_LINE = st.sampled_from([line for line, _ in BAD_LINES if len(line) < 50])


@PROPERTY
@given(st.lists(OBJECT | BAD_LINE | st.just(b""), max_size=25), st.integers(1, 200), st.integers(8, 100), st.booleans())
def test_good_lines_read_as_without_the_bad_ones(tmp_path, items, split_bytes, block_bytes, is_packed):
    records = [i if isinstance(i, bytes) else json.dumps(i).encode() for i in items]
    clean = [r for r, i in zip(records, items, strict=True) if not isinstance(i, bytes)]
    expected = read(write(tmp_path, b"\n".join(clean), "clean.jsonl"), JsonLinesSource())
    assert not expected.rejected
    assert len(expected.rows) == len(clean)
    whole = b"\n".join(records)
    path = write(tmp_path, gzip.compress(whole) if is_packed else whole)
    bad = [(f"line {n}", i) for n, i in enumerate(items, start=1) if isinstance(i, bytes) and i]
    sources = [JsonLinesSource(split_bytes=split_bytes, batch_bytes=block_bytes), JsonLinesSource()]
    outcomes = [read(path, source) for source in sources]
    for found in outcomes:
        assert found.rows == expected.rows
        assert [(r.position, r.raw) for r in found.rejected] == bad
        assert all(whole[r.first_byte :].startswith(r.raw) for r in found.rejected)
    assert outcomes[0].rejected == outcomes[1].rejected


@pytest.mark.full
@PROPERTY
@given(st.lists(OBJECT | BAD_LINE, max_size=15), st.sampled_from([None, 1]), st.integers(1, 100))
def test_good_elements_read_as_without_the_bad_ones(tmp_path, items, indent, block_bytes):
    # Bad ones that are balanced, so that the array stays one.
    items = [i for i in items if not isinstance(i, bytes) or i.count(b"{") == i.count(b"}") == 1]
    texts = [i if isinstance(i, bytes) else json.dumps(i, indent=indent).encode() for i in items]
    clean = [json.dumps(i).encode() for i in items if not isinstance(i, bytes)]
    expected = read(write(tmp_path, b"\n".join(clean), "clean.jsonl"), JsonLinesSource())
    path = write(tmp_path, b"[" + b",\n".join(texts) + b"]")
    outcomes = [read(path, source) for source in (JsonArraySource(batch_bytes=block_bytes), JsonArraySource())]
    for found in outcomes:
        assert found.rows == expected.rows
        assert [r.raw for r in found.rejected] == [i for i in items if isinstance(i, bytes)]
    assert outcomes[0].rejected == outcomes[1].rejected


@PROPERTY
@given(st.text(alphabet='ab1,"\n\r', max_size=60), st.integers(4, 32), st.integers(4, 16))
def test_careless_text_loses_no_record(tmp_path, text, split_bytes, block_bytes):
    records = [r for r in csv.reader(io.StringIO("x,y\n" + text, newline="")) if r][1:]
    path = write(tmp_path, "x,y\n" + text)
    features = (make_feature("x", "int64", nullable=True), make_feature("y", "string", nullable=True))
    outcomes = []
    for source in (CsvSource(split_bytes=split_bytes, batch_bytes=block_bytes), CsvSource()):
        try:
            found = read(path, source, features, delimiter=",")
            outcomes.append((found.rows, found.rejected))
        except DamagedFileError as error:
            outcomes.append(error.what)
    assert outcomes[0] == outcomes[1]
    if isinstance(outcomes[0], str):
        assert "never closed" in outcomes[0]
    else:
        assert sum(map(len, outcomes[0])) == len(records)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "cp1252"])
def test_text_in_another_encoding(tmp_path, encoding):
    text = "i,f,s,d\n1,,é,\nx,,à,\n2,,ö,\n"
    path = write(tmp_path, text.encode(encoding))
    files = with_text_options(list_inputs([str(path)]).files, SourceOptions(encoding=encoding))
    source, options = CsvSource(split_bytes=10), SourceOptions(tolerates_bad_rows=True)
    (split,) = source.split(files, options)
    (part,) = source.read(split, files, FEATURES, options)
    assert part.batch.column("s").to_pylist() == ["é", "ö"]
    (bad,) = part.rejected
    assert (bad.position, bad.raw) == ("line 3", "x,,à,".encode())


def test_what_is_declared_does_not_depend_on_the_split(tmp_path):
    # Strings and numbers under one key: which of them count as written is decided for the file.
    lines = ['{"a":1.10}'] * 20 + ['{"a":"x"}'] * 20 + ['{"a":2}'] * 5
    path = write(tmp_path, "\n".join(lines))
    features = (make_feature("a", "string", nullable=True),)
    outcomes = [
        read(path, source, features)
        for source in (JsonLinesSource(), JsonLinesSource(batch_bytes=15), JsonLinesSource(split_bytes=50))
    ]
    for found in outcomes:
        assert [r["a"] for r in found.rows] == ["1.10"] * 20 + ["2"] * 5
        assert [r.position for r in found.rejected] == [f"line {n}" for n in range(21, 41)]
