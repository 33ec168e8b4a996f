"""Arrays of JSON objects: what is read is what Python's json module reads, and damage is never a shorter file."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError, NoRowsError
from shardkit.features import make_feature
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.json.array_source import JsonArraySource
from tests.support.files.json_array_makers import PROPERTY, read, write

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": '[{,\\"}]'}, {"a": None, "b": "é\n"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        json.dumps(ROWS, indent="\t", ensure_ascii=False).replace("\n", "\r\n"),
        json.dumps(ROWS, separators=(",", ":")),
        "\ufeff  " + json.dumps(ROWS),
        f" [ {json.dumps(ROWS[0])} ]\n[]\n{json.dumps(ROWS[1:])}",
        json.dumps(ROWS[:1]) + json.dumps(ROWS[1:]),
        "".join(map(json.dumps, ROWS)),
        "\n\n".join(json.dumps(r, indent=4) for r in ROWS),
        f"[{json.dumps(ROWS[0])}]{json.dumps(ROWS[1])} {json.dumps(ROWS[2])}",
    ],
)
@pytest.mark.parametrize("block_bytes", [3, 40, 1_000_000])
def test_any_layout_gives_the_same_rows(tmp_path, text, block_bytes):
    path = write(tmp_path, text)
    described, rows, _ = read(path, source=JsonArraySource(batch_bytes=block_bytes))
    assert described == {"a": "int64", "b": "string"}
    assert rows == ROWS
    assert read(write(tmp_path, gzip.compress(text.encode()), "b.json"))[1] == ROWS


def test_nesting_lists_and_absent_keys(tmp_path):
    objects = [
        {"a": {"b": [1, 2], "c": None}, "l": []},
        {"a": {"c": {"d": "x"}}, "l": ["p", "q"]},
        {"a": None},
        {},
    ]
    described, rows, _ = read(write(tmp_path, json.dumps(objects, indent=1)))
    assert described == {"a/b": "int64[*]", "l": "string[*]", "a/c/d": "string"}
    nothing = dict.fromkeys(described)
    assert rows == [
        nothing | {"a/b": [1, 2], "l": []},
        nothing | {"a/c/d": "x", "l": ["p", "q"]},
        nothing,
        nothing,
    ]


@pytest.mark.parametrize(
    ("value", "path", "inner"),
    [
        ({"a": {"b": [{"c": 1}]}}, "a/b", [{"c": 1}]),
        ({"a": [[1], [2, 3]]}, "a", [[1], [2, 3]]),
        ({"a": [["p"]]}, "a", [["p"]]),
        ({"a": [1, None]}, "a", [1, None]),
    ],
)
def test_what_is_nested_is_json(tmp_path, value, path, inner):
    described, rows, _ = read(write(tmp_path, json.dumps([{"x": 1}, value])))
    assert described == {"x": "int64", path: "json"}
    assert [row[path] and json.loads(row[path]) for row in rows] == [None, inner]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[[1, 2], [3, 4]], None, [[5, 6], [7, 8]]], "int64[2][2]"),
        ([[[1, 2.5]], [[3, 4.5]]], "float32[1][2]"),
        ([[[[True]], [[False]]]], "bool[2][1][1]"),
        ([[[1, 2]], [[1, 2, 3]]], "json"),
        ([[1], [[1]]], "json"),
        ([[[1]], [1]], "json"),
        ([[[1]], []], "json"),
        ([[[1, None]]], "json"),
    ],
)
def test_lists_of_lists_of_one_shape_are_arrays(tmp_path, values, expected):
    described, rows, _ = read(write(tmp_path, json.dumps([{"a": value} for value in values])))
    assert described == {"a": expected}
    flat = [value if expected == "json" or value is None else np.ravel(value).tolist() for value in values]
    assert [row["a"] if expected != "json" else json.loads(row["a"]) for row in rows] == flat


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("a.json", b'[{"a": 1}]', True),
        ("a.txt", b'\xef\xbb\xbf \n[\n  {"a": 1}', True),
        ("a.json", b'{\n  "a": 1\n}', True),
        ("a.json", b'{"a": 1}\n{"a": 2}', False),
        ("a.json", b"[1, 2]", False),
        ("a.csv", b"[a],b\n1,2\n", False),
        ("a.json", b"", False),
        ("a.json", b'{"a": 1}{"a": 2}\n', True),
        ("a.json", b'{"a": "}{"}\n{"a": 2}\n', False),
        ("a.json", b'{"a": 1} {"a": 2} {"b"', True),
    ],
)
def test_content_decides_what_is_recognized(name, head, expected):
    assert JsonArraySource().recognizes(head, name) is expected


BAD_ELEMENTS = [
    ("7", "expected an object, got a number"),
    ('"a, [{\\" b"', "expected an object, got a string"),
    ("null", "expected an object, got null"),
    ("[1, {}]", "expected an object, got an array"),
    ("nonsense", "not valid JSON"),
    ('{"a": "x"}', "column 'a' does not fit: expected int64, got 'x'"),
    ('{"a": 1,\n "b": }', "not valid JSON"),
    ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
    ('{"c": 1}', "the key 'c' is no column"),
    ('{"b": "two\nlines"}', "not valid JSON"),
    ('{"b": "\\ud800"}', "surrogate"),
    ('{"a": 99999999999999999999}', "out of range"),
    ('{"a":' + "[" * 500 + "]" * 500 + "}", "deeper than 128"),
]


@pytest.mark.parametrize(("element", "reason"), BAD_ELEMENTS)
@pytest.mark.parametrize("block_bytes", [5, 1_000_000])
def test_a_bad_element_is_one_bad_row(tmp_path, element, reason, block_bytes):
    start = '[\n{"a":1,"b":"x"},\n{"a":2,\n"b":"y"},\n'
    path = write(tmp_path, start + element + ',\n{"a":3,"b":"z"}\n]')
    features = (make_feature("a", "int64", nullable=True), make_feature("b", "string", nullable=True))
    source = JsonArraySource(batch_bytes=block_bytes)
    with pytest.raises(BadInputError) as caught:
        read(path, features, source)
    assert "a.json, row 3, line 5" in str(caught.value)
    assert reason.rpartition(": ")[2] in str(caught.value)
    _, rows, (bad,) = read(path, features, source, tolerates_bad_rows=True)
    assert [r["a"] for r in rows] == [1, 2, 3]
    assert bad.position == "row 3, line 5"
    assert bad.first_byte == len(start)
    assert bad.raw == element.encode()
    assert reason in bad.reason


def test_bad_elements_first_last_and_alone(tmp_path):
    features = (make_feature("a", "int64", nullable=True),)
    for text, num_rows, raws in (
        ('[1, {"a":1}]', 1, [b"1"]),
        ('[{"a":1}, 2, "x"]', 1, [b"2", b'"x"']),
        ("[1, 2]", 0, [b"1", b"2"]),
        ('[1][{"a":1}, 2]', 1, [b"1", b"2"]),
    ):
        _, rows, rejected = read(write(tmp_path, text), features, tolerates_bad_rows=True)
        assert (len(rows), [r.raw for r in rejected]) == (num_rows, raws)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[{"a":1},{"a":2}', "ends within an array"),
        ('[{"a":1},{"a":2', "ends within an array"),
        ('[{"a":1},', "ends within an array"),
        ('[{"a":1}]]', "']' closes nothing"),
        ('[{"a":1}}', "'}' stands where ']' must close"),
        ('[{"a":1},]', "stands between elements"),
        ('[,{"a":1}]', "stands between elements"),
        ('[{"a":1},,{"a":2}]', "stands between elements"),
        ('[{"a":1} {"a":2}]', "stands between elements"),
        ('[{"a":1}],[{"a":2}]', "stands between elements"),
        ('[{"a":1}] x', "'x' stands outside"),
        ('[{"a":1},{"a":"x},{"a":3}]', "ends within an array"),
    ],
)
@pytest.mark.parametrize("tolerates_bad_rows", [False, True])
@pytest.mark.parametrize("block_bytes", [5, 1_000_000])
def test_a_broken_array_damages_the_file(tmp_path, text, part, tolerates_bad_rows, block_bytes):
    features = (make_feature("a", "int64", nullable=True),)
    source = JsonArraySource(batch_bytes=block_bytes)
    with pytest.raises(DamagedFileError, match=r"a\.json, line 1") as caught:
        read(write(tmp_path, text), features, source, tolerates_bad_rows=tolerates_bad_rows)
    assert part in str(caught.value)


def test_an_element_beyond_the_limit_damages_the_file(tmp_path):
    features = (make_feature("b", "string", nullable=True),)
    path = write(tmp_path, json.dumps([{"b": "x"}, {"b": "y" * 5000}], indent=0))
    for source in (JsonArraySource(batch_bytes=100), JsonArraySource()):
        with pytest.raises(DamagedFileError, match="line 5"):
            read(path, features, source, max_record_bytes=1000, tolerates_bad_rows=True)
        assert len(read(path, features, source, max_record_bytes=5100)[1]) == 2


def test_damaged_files_do_not_keep_others_from_being_inspected(tmp_path):
    write(tmp_path, '[{"a":1}, {"a":', "1.json")
    write(tmp_path, '[{"a":1}]', "2.json")
    files = list_inputs([str(tmp_path)]).files
    (feature,) = JsonArraySource().infer(files, SourceOptions(tolerates_bad_rows=True))
    assert feature.name == "a"
    with pytest.raises(DamagedFileError, match=r"1\.json"):
        JsonArraySource().infer(files, SourceOptions())


@pytest.mark.full
def test_cut_off_anywhere_is_never_a_shorter_file(tmp_path):
    text = json.dumps([{"a": i, "b": f'"{i}]'} for i in range(5)], indent=1)
    features = (make_feature("a", "int64"), make_feature("b", "string"))
    for length in range(2, len(text)):
        with pytest.raises(BadInputError):
            read(write(tmp_path, text[:length]), features, JsonArraySource(batch_bytes=16))


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.text(max_size=8) | st.text(alphabet='[]{}",:\\ \n', max_size=8),
        "l": st.lists(st.integers(-9, 9), max_size=3),
        "n": st.none() | st.fixed_dictionaries({}, optional={"x": st.text(alphabet='"\\{[', max_size=3)}),
    },
)


FEATURES = (
    make_feature("i", "int64", nullable=True),
    make_feature("s", "string", nullable=True),
    make_feature("l", "int64", (None,), nullable=True),
    make_feature("n/x", "string", nullable=True),
)


@pytest.mark.full
@PROPERTY
@given(
    st.lists(st.lists(VALUES, max_size=6), min_size=1, max_size=4),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
    st.integers(1, 200),
)
def test_rows_read_as_pythons_json_module_reads_them(tmp_path, arrays, indent, is_ascii, block_bytes):
    text = "\n".join(json.dumps(array, indent=indent, ensure_ascii=is_ascii) for array in arrays)
    _, rows, _ = read(write(tmp_path, text), FEATURES, JsonArraySource(batch_bytes=block_bytes))
    expected = [row for array in arrays for row in array]
    assert rows == [
        {"i": r.get("i"), "s": r.get("s"), "l": r.get("l"), "n/x": (r.get("n") or {}).get("x")} for r in expected
    ]


@PROPERTY
@given(st.text(alphabet='[]{}",:a1 \\\n', max_size=40), st.integers(1, 50))
def test_any_text_reads_as_json_reads_it_or_is_refused(tmp_path, text, block_bytes):
    try:
        wanted = len(json.loads(text))
    except (ValueError, TypeError):
        wanted = None
    features = (make_feature("a", "int64", nullable=True),)
    outcomes = []
    for size in (block_bytes, 1000):
        try:
            source = JsonArraySource(batch_bytes=size)
            _, rows, rejected = read(write(tmp_path, text), features, source, tolerates_bad_rows=True)
            outcomes.append((rows, rejected))
        except BadInputError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]
    if wanted is not None and text.lstrip().startswith("["):
        assert sum(map(len, outcomes[0])) == wanted


@pytest.mark.full
def test_random_damage_is_an_error_or_counted(tmp_path):
    rng = random.Random(4)
    objects = [{"i": i, "s": f"t{i}", "l": [i], "n": {"x": "y"}} for i in range(12)]
    whole = json.dumps(objects, indent=1).encode()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(data))
            action = rng.randrange(3)
            if action == 0:
                data[place] = rng.randrange(256)
            elif action == 1:
                del data[place : place + rng.randint(1, 20)]
            else:
                data[place:place] = rng.choice([b"{", b"]", b'"', b",", b"\\", b"\xff", b"[1]"])
        try:
            elements = json.loads(bytes(data).decode("utf-8", "surrogateescape"))
        except ValueError:
            elements = None
        path = write(tmp_path, bytes(data))
        try:
            _, rows, rejected = read(path, FEATURES, JsonArraySource(batch_bytes=64), tolerates_bad_rows=True)
        except DamagedFileError:
            assert elements is None
        else:
            assert elements is None or len(rows) + len(rejected) == len(elements)


def test_duplicate_keys_of_elements_are_allowed_where_that_is_asked_for(tmp_path):
    path = write(tmp_path, '[{"a": 1, "o": {"b": 1, "b": 2}}, {"a": 1, "a": 2, "o": null}]')
    with pytest.raises(BadInputError, match="the key 'b' appears twice"):
        read(path)
    assert read(path, allows_duplicate_keys=True)[1] == [{"a": 1, "o/b": 2}, {"a": 2, "o/b": None}]


@pytest.mark.parametrize("text", ["[]", "\ufeff [ \n ]\n"])
def test_an_empty_array_has_no_rows(tmp_path, text):
    for name, format in (("a.json", "json"), ("a.json.gz", "json"), ("a.jsonl", "jsonl"), ("a.csv", "csv")):
        content = gzip.compress(text.encode()) if name.endswith(".gz") else text
        files = list_inputs([str(write(tmp_path, content, name))]).files
        assert choose_source(files, SourceOptions()).format == format
    with pytest.raises(NoRowsError):
        read(tmp_path / "a.json")
    feature = make_feature("a", "int64")
    assert read(tmp_path / "a.json", features=(feature,)) == ({"a": "int64"}, [], [])
