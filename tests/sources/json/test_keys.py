"""Keys of JSON Lines: those that come late, twice, in some files only, or with values of other kinds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.json.lines_source import JsonLinesSource
from tests.support.files.jsonl_makers import GOOD, PROPERTY, fails, read, write


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (['{"a":[{"b":1}]}'], ["'a' is a list of objects", "--records a"]),
        (['{"a/b":1}'], ["'a/b'"]),
    ],
)
def test_what_cannot_be_a_table_is_refused(tmp_path, lines, parts):
    message = fails(write(tmp_path, "\n".join(lines)), UsageError)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        ([1, "x"], ["int 1 in a.jsonl, line 1", "string 'x' in a.jsonl, line 2"]),
        ([9007199254740993, 0.5], ["no float holds", "9007199254740993 in a.jsonl, line 1"]),
        ([1, [1]], ["a list in a.jsonl, line 2", "a single value in a.jsonl, line 1"]),
        ([1, {"b": 1}], ["an object in a.jsonl, line 2", "a value in a.jsonl, line 1"]),
        ([[{"b": 1}], [{"c": "x", "d": [[]]}]], []),
        ([[[1, 2], [3]], None], []),
        ([[1, None], [2]], []),
        ([json.loads("[" * 40 + "1" + "]" * 40)] * 2, []),
        ([[1, "x"], [True]], ["int 1 in a.jsonl, line 1"]),
        ([{}, {}], []),
        ([{f"key {i}": i} for i in range(40)], []),
        ([{"a/b": 1}, {'say "x"': 2}], []),
        ([{"x": "\u00e9\U0001f600\n", "y": 0.1, "z": 12345678901234567890}, 1], ["an object"]),
    ],
)
def test_what_fits_no_type_is_json(tmp_path, values, notes):
    lines = [json.dumps({"n": i, "a": value}) for i, value in enumerate(values)]
    path = write(tmp_path, "\n".join(lines))
    types, rows = read(path)
    assert types == {"n": "int64", "a": "json"}
    assert [None if row["a"] is None else json.loads(row["a"]) for row in rows] == values
    note_text = " ".join(JsonLinesSource().notes(list_inputs([str(path)]).files, SourceOptions()))
    assert all(note in note_text for note in notes)
    assert bool(note_text) == bool(notes)


def test_several_maps_stand_in_the_order_of_their_keys(tmp_path):
    value = {f"m{i}": {} for i in range(9)} | {"x": 1}
    path = write(tmp_path, json.dumps({"n": 1, "a": value, "z": {}}))
    assert list(read(path)[0]) == ["n", *(f"a/m{i}" for i in range(9)), "a/x", "z"]


def test_what_differs_within_a_map_needs_no_note(tmp_path):
    rows = [{"a": {f"k{i}": {"b": 1} if i % 2 else 1, "same": {} if i % 2 else 2}} for i in range(40)]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)))
    assert read(path)[0] == {"a": "json"}
    assert JsonLinesSource().notes(list_inputs([str(path)]).files, SourceOptions()) == ()


def test_a_rare_value_of_another_kind_makes_json_or_is_a_bad_row_where_those_are_tolerated(tmp_path):
    path = write(tmp_path, GOOD * 30 + '{"a":"x"}\n')
    described, rows = read(path)
    assert (described["a"], rows[0]["a"], rows[-1]["a"]) == ("json", "1", '"x"')
    files = list_inputs([str(path)]).files
    tolerant = JsonLinesSource().infer(files, SourceOptions(tolerates_bad_rows=True))
    assert next(f.dtype for f in tolerant if f.name == "a") == "int64"


@pytest.mark.parametrize("key", ['say \\"x\\"', "a\\\\b", "tab\\t"])
def test_keys_that_no_decoder_takes_are_refused(tmp_path, key):
    path = write(tmp_path, f'{{"{key}":1}}\n')
    assert "cannot name a column" in fails(path, UsageError)
    with pytest.raises(UsageError, match="no JSON key"):
        read(path, features=(make_feature(json.loads(f'"{key}"'), "int64"),))


@pytest.mark.full
def test_keys_that_appear_late_in_a_large_file_are_found(tmp_path):
    path = write(tmp_path, GOOD * 100_000 + '{"late":1}\n' * 20_000)
    described, rows = read(path)
    assert described["late"] == "int64"
    assert len(rows) == 120_000


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"a":1,"b":{"c":1,"d":"x"},"a":2}', "a"),
        ('{"a":1,"b":{"c":1,"d":"x","c":3}}', "c"),
        ('{"b":{"c":1},"a":1,"b":{"d":"x"}}', "b"),
        ('{"a":1,"b":{"c":1},"\\u0061":2}', "a"),
    ],
)
def test_duplicate_keys_are_refused_at_any_depth_and_allowed_the_last_counts(tmp_path, line, key):
    good = '{"a":0,"b":{"c":0,"d":"y"}}\n' * 3
    path = write(tmp_path, good + line + "\n")
    message = fails(path)
    assert "a.jsonl, line 4" in message
    assert f"the key '{key}' appears twice" in message
    assert "--allow-duplicate-keys" in message
    expected = json.loads(line)
    _, rows = read(path, allows_duplicate_keys=True)
    assert len(rows) == 4
    assert rows[-1] == {"a": expected["a"], "b/c": expected["b"].get("c"), "b/d": expected["b"].get("d")}


def test_of_duplicate_keys_only_the_last_value_must_fit(tmp_path):
    good = '{"a":1,"n":1.5,"b":{"c":1}}\n' * 3
    lines = ['{"a":"x","a":2,"n":0.10}', '{"a":7,"b":5,"b":{"c":4}}', '{"a":3,"a":"x"}', '{"b":{"c":2},"b":5}']
    path = write(tmp_path, good + "\n".join(lines))
    source, settings_ = JsonLinesSource(), SourceOptions(allows_duplicate_keys=True, tolerates_bad_rows=True)
    files = list_inputs([str(path)]).files
    features = (
        make_feature("a", "int64", nullable=True),
        make_feature("n", "float64", nullable=True),
        make_feature("b/c", "int64", nullable=True),
    )
    parts = [p for s in source.split(files, settings_) for p in source.read(s, files, features, settings_)]
    rows = [row for p in parts for row in p.batch.to_pylist()][3:]
    assert rows == [{"a": 2, "n": 0.1, "b/c": None}, {"a": 7, "n": None, "b/c": 4}]
    rejected = [row for p in parts for row in p.rejected]
    assert [row.position for row in rejected] == ["line 6", "line 7"]
    assert "column 'a' does not fit: expected int64, got 'x'" in rejected[0].reason
    assert rejected[0].raw == lines[2].encode()


KEYS = st.sampled_from(["a", "b", "c"])


PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.integers(-9, 9), st.none())), max_size=6)


@PROPERTY
@given(objects=st.lists(PAIRS, min_size=1, max_size=6))
def test_allowed_duplicates_read_as_pythons_json_module_reads_them(tmp_path, objects):
    texts = ["{" + ",".join(f'"{k}":{json.dumps(v)}' for k, v in pairs) + "}" for pairs in objects]
    features = tuple(make_feature(k, "int64", nullable=True) for k in "abc")
    _, rows = read(write(tmp_path, "\n".join(texts)), features=features, allows_duplicate_keys=True)
    assert rows == [{k: json.loads(text).get(k) for k in "abc"} for text in texts]


@pytest.mark.parametrize("num_usual", [1, 500])
def test_files_whose_keys_hold_other_types_get_a_note(tmp_path, num_usual):
    paths = [
        write(tmp_path, '{"x": 1, "y": "a"}\n' * num_usual, "a.jsonl"),
        write(tmp_path, '{"x": "one", "y": "b"}\n' * 3, "b.jsonl"),
    ]
    types, rows = read(*paths)
    assert types == {"x": "json", "y": "string"}
    assert {row["x"] for row in rows} == {"1", '"one"'}
    (note_text,) = JsonLinesSource().notes(list_inputs([str(path) for path in paths]).files, SourceOptions())
    assert "column 'x' has both int values and string values" in note_text
    assert "int 1 in a.jsonl, line 1, string 'one' in b.jsonl, line 1" in note_text


def test_keys_that_some_files_lack_are_null_there(tmp_path):
    paths = [write(tmp_path, '{"x": 1}\n', "a.jsonl"), write(tmp_path, '{"y": "b"}\n', "b.jsonl")]
    expected = [{"x": 1, "y": None}, {"x": None, "y": "b"}]
    assert read(*paths, union_by_name=True) == ({"x": "int64", "y": "string"}, expected)
    # Half of the keys in common is enough.
    paths = [write(tmp_path, '{"x": 1, "z": 0}\n', "a.jsonl"), write(tmp_path, '{"y": "b", "z": 0}\n', "b.jsonl")]
    assert read(*paths)[1] == [row | {"z": 0} for row in expected]


def test_where_bad_rows_are_tolerated_the_most_frequent_kind_counts(tmp_path):
    path = write(tmp_path, '{"a":"x"}\n{"a":1}\n{"a":1}\n{"a":"y"}\n{"a":2}\n')
    assert read(path)[0] == {"a": "json"}
    options = SourceOptions(tolerates_bad_rows=True)
    assert read(path, tolerates_bad_rows=True) == ({"a": "int64"}, [{"a": 1}, {"a": 1}, {"a": 2}])
    files, source = list_inputs([str(path)]).files, JsonLinesSource()
    features = source.infer(files, options)
    parts = [p for s in source.split(files, options) for p in source.read(s, files, features, options)]
    assert [r.position for part in parts for r in part.rejected] == ["line 1", "line 4"]


def test_a_nested_column_is_json_also_where_bad_rows_are_tolerated(tmp_path):
    path = write(tmp_path, '{"a":1,"b":[{}]}\n{"a":1}\n')
    assert read(path, tolerates_bad_rows=True)[0] == {"a": "int64", "b": "json"}
