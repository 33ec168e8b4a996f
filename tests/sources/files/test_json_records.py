"""The array of a JSON document that --records names is read where it stands; all else is blank."""

import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.files.json_records import RecordsStream
from shardkit.sources.files.transcoding import with_text_options
from shardkit.sources.json.array_source import JsonArraySource
from shardkit.sources.registry import choose_source

KEYS = st.sampled_from(["data", "items", "a", 'q"uote', "back\\slash", "é", "br{ack]et"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{}:, \n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


class Dribble:
    """A stream that gives few bytes at a time."""

    def __init__(self, data, num_bytes):
        self._raw, self._num_bytes = io.BytesIO(data), num_bytes

    def read(self, num_bytes, /):
        return self._raw.read(min(num_bytes, self._num_bytes))


def shown(document, key, num_bytes=1000):
    stream = RecordsStream(Dribble(document, num_bytes), key, "a.json")
    return b"".join(iter(lambda: stream.read(7), b""))


@given(
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.lists(st.dictionaries(KEYS, VALUES, max_size=2), max_size=3),
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.sampled_from([None, 1]),
    st.integers(1, 30),
)
def test_the_array_stays_where_it_is(before, rows, behind, indent, num_bytes):
    before, behind = ({k: v for k, v in part.items() if k != "items"} for part in (before, behind))
    text = json.dumps({"response": {**before, "items": rows}, **behind}, indent=indent)
    document = text.encode()
    found = shown(document, "response.items", num_bytes)
    assert json.loads(found) == rows
    assert len(found) == len(document)
    assert [i for i, c in enumerate(found) if c == 10] == [i for i, c in enumerate(document) if c == 10]


def read(path, key):
    options = SourceOptions(records=key)
    files = with_text_options(list_inputs([str(path)]).files, options)
    source = choose_source(files, options)
    assert isinstance(source, JsonArraySource)
    features = source.infer(files, options)
    parts = [part for split in source.split(files, options) for part in source.read(split, files, features, options)]
    return [row for part in parts for row in part.batch.to_pylist()]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_rows_of_a_document(tmp_path, pack):
    rows = [{"id": i, "x": f"word {i}"} for i in range(500)]
    (tmp_path / "a.json").write_bytes(pack(json.dumps({"meta": {"n": [1]}, "data": rows, "next": None}).encode()))
    assert read(tmp_path / "a.json", "data") == rows


def test_the_only_row_of_a_named_array_may_hold_a_list_of_objects(tmp_path):
    (tmp_path / "a.json").write_text('{"data": [{"title": "x", "parts": [{"q": 1}, {"q": 2}]}]}')
    (row,) = read(tmp_path / "a.json", "data")
    assert (row["title"], json.loads(row["parts"])) == ("x", [{"q": 1}, {"q": 2}])


def test_a_bad_row_keeps_its_line(tmp_path):
    good = '  {"id": 1},\n' * 20
    (tmp_path / "a.json").write_text(f'{{"n": 1,\n "data": [\n{good}  {{"id": 1, "id": 2}}\n]}}')
    with pytest.raises(BadInputError, match=r"line 23|row 21"):
        read(tmp_path / "a.json", "data")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b'{"rows": [1], "b": {"c": []}}', "its arrays are 'rows', 'b.c'"),
        (b"[1, 2]", "it has no array below a key"),
        (b'{"data": 1}', "it has no array below a key"),
    ],
)
def test_a_document_without_that_array(document, why):
    with pytest.raises(UsageError, match="has no array 'data'") as caught:
        shown(document, "data")
    assert why in str(caught.value)
    assert "--records" in str(caught.value)
