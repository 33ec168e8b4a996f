"""JSON Lines: what is read is what Python's json module reads; what does not fit is named by line and key."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.json import decoder as json_rows
from shardkit.sources.json.lines_source import JsonLinesSource
from tests.support.files.jsonl_makers import GOOD, PROPERTY, fails, read, write


def test_nesting_lists_and_absent_keys(tmp_path):
    lines = [
        '{"a": 1, "b": {"c": [1, 2.5], "d": null}, "t": true}',
        "",
        '{"b": {"d": "x\\u00e9"}, "a": null, "n": 9007199254740993}',
        '{"b": null, "e": []}',
    ]
    described, rows = read(write(tmp_path, "\r\n".join(lines)))
    assert described == {
        "a": "int64",
        "b/c": "float32[*]",
        "b/d": "string",
        "t": "bool",
        "n": "int64",
        "e": "string[*]",
    }
    nothing = dict.fromkeys(described)
    assert rows == [
        nothing | {"a": 1, "b/c": [1.0, 2.5], "t": True},
        nothing | {"b/d": "xé", "n": 9007199254740993},
        nothing | {"e": []},
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['{"a": 1}', '{"a": 2.5}'], "float32"),
        (['{"a": 1.23456789}'], "float64"),
        (['{"a": [0.1, 0.2]}', '{"a": []}'], "float32[*]"),
        (['{"a": null}'], "string"),
        (['{"a": "2020-01-01"}'], "string"),
    ],
)
def test_types_come_from_the_values(tmp_path, lines, expected):
    assert read(write(tmp_path, "\n".join(lines)))[0]["a"] == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"a":1', ["unexpected end"]),
        ("[1]", ["expected an object, got an array"]),
        ("3", ["expected an object, got a number"]),
        ('{"a":NaN}', ["'a'", "expected int64, got nan"]),
        ('{"a":1e400}', ["out of range"]),
        ('{"a":"x"}', ["'a'", "expected int64, got 'x'"]),
        ('{"a":true}', ["'a'", "expected int64, got True"]),
        ('{"a":1.5}', ["expected int64, got 1.5"]),
        ('{"a":99999999999999999999}', ["out of range"]),
        ('{"b":1}', ["'b'", "expected string, got 1"]),
        ('{"b":"\\ud800"}', ["surrogate"]),
        ('{"c":["x"]}', ["'c'", "float32[*]"]),
        ('{"c":[null]}', ["'c'", "null"]),
        ('{"c":1}', ["'c'", "expected float32[*], got 1"]),
        ('{"a":{"x":1}}', ["'a'", "got an object"]),
        ('{"d":1}', ["the key 'd' is no column"]),
        ('{"a":1,"a":2}', ["the key 'a' appears twice"]),
        ('{"a":1,"b":"x","c":[],"a":2}', ["the key 'a' appears twice"]),
        ('{"a" :1,"a":2}', ["the key 'a' appears twice"]),
        ('{"b":"\\\\","a":1,"a":2}', ["the key 'a' appears twice"]),
        ('{"a":1}{"a":2}', ["not valid JSON"]),
        ('{"a":' + "[" * 100_000, ["deeper than 128"]),
        ('{"d":' + '{"d":' * 200 + "1" + "}" * 201, ["deeper than 128"]),
    ],
)
def test_late_lines_are_named(tmp_path, line, parts):
    path = write(tmp_path, GOOD * 11_000 + "\n" + line + "\n" + GOOD)
    for source in (JsonLinesSource(), JsonLinesSource(split_bytes=30_000, batch_bytes=5_000)):
        message = fails(path, source=source)
        for part in ["a.jsonl, line 11002", *parts]:
            assert part in message


def test_bytes_that_are_no_utf8_are_named(tmp_path):
    assert "line 2: not UTF-8 at byte 32" in fails(write(tmp_path, GOOD.encode() + b'{"b":"\xff"}'))


@pytest.mark.parametrize("content", ['[{"a":1},{"a":2}]', '\ufeff[\n{"a":1},\n{"a":2}\n]'])
def test_a_json_array_is_recognized(tmp_path, content):
    message = fails(write(tmp_path, content))
    assert "JSON array" in message
    assert "one object a line" in message


def test_declared_types_govern(tmp_path):
    features = (
        make_feature("a", "string", nullable=True),
        make_feature("b", "int32", nullable=True),
        make_feature("c", "timestamp[us]", nullable=True),
        make_feature("d", "int64", vocabulary=("cat", "dog")),
        make_feature("e", "decimal(6,2)", nullable=True),
        make_feature("f", "float32", (2,)),
        make_feature("g", "bytes"),
    )
    lines = [
        '{"a":null,"b":null,"c":null,"d":"dog","e":null,"f":[1,2],"g":"é"}',
        '{"a":1.10,"b":"39","c":"2020-01-01T10:00:00","d":"cat","e":1.10,"f":[0.5,3],"g":""}',
    ]
    # One row a block: what a column holds shows only in the second.
    for source in (JsonLinesSource(), JsonLinesSource(batch_bytes=10)):
        _, rows = read(write(tmp_path, "\n".join(lines)), features=features, source=source)
        assert [r["a"] for r in rows] == [None, "1.10"]
        assert [r["b"] for r in rows] == [None, 39]
        assert str(rows[1]["c"]) == "2020-01-01 10:00:00"
        assert [r["d"] for r in rows] == [1, 0]
        assert str(rows[1]["e"]) == "1.10"
        assert [r["f"] for r in rows] == [[1.0, 2.0], [0.5, 3.0]]
        assert [r["g"] for r in rows] == ["é".encode(), b""]


@pytest.mark.parametrize(
    ("feature", "value", "part"),
    [
        (make_feature("a", "int8"), "300", "expected int8, got 300"),
        (make_feature("a", "int64", vocabulary=("cat",)), '"cow"', "expected one of 'cat', got 'cow'"),
        (make_feature("a", "float32", (2,)), "[1]", "expected float32[2], got 1 values"),
        (make_feature("a", "int64"), "null", "expected int64, got null"),
    ],
)
def test_values_that_do_not_fit_what_is_declared(tmp_path, feature, value, part):
    good = {"int8": "1", "int64": '"cat"' if feature.vocabulary else "1", "float32": "[1,2]"}[feature.dtype]
    path = write(tmp_path, f'{{"a":{good}}}\n{{"a":{value}}}\n')
    message = fails(path, features=(feature,))
    assert "line 2" in message
    assert part in message


def test_compressed_and_long_lines(tmp_path):
    text = "x" * 300_000
    path = write(tmp_path, gzip.compress((json.dumps({"b": text}) + "\n" + GOOD).encode()))
    _, rows = read(path, source=JsonLinesSource(batch_bytes=1000))
    assert [r["b"] for r in rows] == [text, "x"]


def test_a_line_beyond_the_limit_is_refused(tmp_path):
    path = write(tmp_path, GOOD + json.dumps({"b": "x" * 5000}))
    assert "line 2" in fails(path, max_record_bytes=1000)


SCALARS = {
    "i": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(allow_nan=False, allow_infinity=False),
    "s": st.text(max_size=8),
    "b": st.booleans(),
    "l": st.lists(st.integers(-9, 9), max_size=3),
    "n": st.fixed_dictionaries({}, optional={"x": st.text(max_size=3), "y": st.integers(0, 9)}),
}


def flat(row: dict, prefix: str = "") -> dict:
    found = {}
    for key, value in row.items():
        found.update(flat(value, f"{key}/") if isinstance(value, dict) else {prefix + key: value})
    return {k: v for k, v in found.items() if v is not None}


@pytest.mark.full
@PROPERTY
@given(
    st.lists(
        st.fixed_dictionaries({}, optional={k: st.one_of(st.none(), v) for k, v in SCALARS.items()}),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 300),
    st.integers(8, 100),
    st.booleans(),
)
def test_rows_read_as_pythons_json_module_reads_them(tmp_path, rows, split_bytes, block_bytes, is_ascii):
    text = "\n".join(json.dumps(r, ensure_ascii=is_ascii) for r in rows)
    source = JsonLinesSource(split_bytes=split_bytes, batch_bytes=block_bytes)
    features = tuple(
        make_feature(name, dtype, shape, nullable=True)
        for name, dtype, shape in (
            ("i", "int64", ()),
            ("f", "float64", ()),
            ("s", "string", ()),
            ("b", "bool", ()),
            ("l", "int64", (None,)),
            ("n/x", "string", ()),
            ("n/y", "int64", ()),
        )
    )
    _, found = read(write(tmp_path, text), source=source, features=features)
    assert [{k: v for k, v in r.items() if v is not None} for r in found] == [
        flat(json.loads(json.dumps(r))) for r in rows
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ['{"a":1}{"a":2}', ""],
        ['{"a":1}{"a":2}', '{"a":', "3}"],
        [' {"a":1}', "", '{"a":2} {"a":3}'],
    ],
)
def test_objects_that_share_or_span_lines_are_refused(tmp_path, lines):
    path = write(tmp_path, '{"a":0}\n' * 20_000 + "\n".join(lines))
    assert "not valid JSON" in fails(path)


@pytest.mark.parametrize("line", ['{"a" : 1, "b" :"x"}', '{"b":"\\\\"}', '{"b":"\\":"}', '  {"a":1}\t', '{"a"\t:\t1}'])
def test_unusual_writing_is_read(tmp_path, line):
    _, rows = read(write(tmp_path, GOOD + line + "\n" + GOOD))
    wanted = json.loads(line)
    assert {k: v for k, v in rows[1].items() if v is not None} == wanted


@PROPERTY
@given(st.text(alphabet='{}[]":,a1 \\utrue\n', max_size=40))
def test_any_text_reads_or_is_refused(tmp_path, text):
    try:
        _, rows = read(write(tmp_path, text))
    except (BadInputError, UsageError):
        return
    assert len(rows) == len([line for line in text.split("\n") if line.strip()])


@PROPERTY
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "a": st.none() | st.integers(-(2**63), 2**63 - 1),
                "b": st.none() | st.text(max_size=6),
                "c": st.none() | st.fixed_dictionaries({}, optional={"d": st.floats(-9, 9), "e": st.just({})}),
                "l": st.none() | st.lists(st.integers(-9, 9), max_size=3),
            },
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 200),
)
def test_columns_do_not_depend_on_how_many_lines_are_decoded_at_once(tmp_path, objects, piece_bytes):
    features = (
        make_feature("a", "int64", nullable=True),
        make_feature("b", "string", nullable=True),
        make_feature("c/d", "float64", nullable=True),
        make_feature("l", "int64", (None,), nullable=True),
    )
    for row in objects:
        (row.get("c") or {}).pop("e", None)
    path = write(tmp_path, "\n".join(map(json.dumps, objects)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "_PIECE_BYTES", piece_bytes)
        _, rows = read(path, features=features)
    expected = [
        {"a": r.get("a"), "b": r.get("b"), "c/d": (r.get("c") or {}).get("d"), "l": r.get("l")} for r in objects
    ]
    assert rows == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"a":1e400}', "column 'a' holds 1e400, which is out of range for a float64"),
        ('{"a":-1' + "0" * 5000 + ".5}", "column 'a' holds -1" + "0" * 38 + ", which is out of range"),
        ('{"a":NaN,"b":1e400}', "column 'b' holds 1e400, which is out of range for a float64"),
    ],
)
def test_numbers_that_no_float_holds_are_named_with_their_column(tmp_path, line, why):
    message = fails(write(tmp_path, '{"a":1.5}\n' + line + "\n"))
    assert "a.jsonl, line 2" in message
    assert why in message
    assert "Write null, or a finite number, in its place" in message


FLOATS = st.one_of(st.none(), st.floats(), st.integers(-(2**53), 2**53))
WORDS = st.sampled_from(["NaN", "Infinity", "-Infinity", 'a "NaN" b', "\\", "x"])


OBJECTS = st.fixed_dictionaries({"x": FLOATS, "s": WORDS, "o": st.fixed_dictionaries({"l": st.lists(FLOATS)})})


@PROPERTY
@given(st.lists(OBJECTS, min_size=1), st.sampled_from([64, 10_000]))
def test_floats_that_are_not_finite_are_read_as_pythons_json_module_reads_them(tmp_path, objects, block_bytes):
    first = {"x": 1.5, "s": "x", "o": {"l": [0.5]}}
    path = write(tmp_path, "\n".join(map(json.dumps, [first, *objects])))
    features = (
        make_feature("x", "float64", nullable=True),
        make_feature("s", "string", nullable=True),
        make_feature("o/l", "float64", (None,), nullable=True),
    )
    objects = [o for o in objects if None not in o["o"]["l"]]
    path = write(tmp_path, "\n".join(map(json.dumps, [first, *objects])))
    _, rows = read(path, source=JsonLinesSource(batch_bytes=block_bytes), features=features)
    expected = [{"x": o["x"], "s": o["s"], "o/l": o["o"]["l"]} for o in [first, *objects]]
    # NaN equals itself in text.
    assert [str(as_floats(row)) for row in rows] == [str(as_floats(row)) for row in expected]


def as_floats(row):
    """Returns a row with floats in the place of integers."""
    number = row["x"] if row["x"] is None else float(row["x"])
    return row | {"x": number, "o/l": [float(value) for value in row["o/l"]]}


def test_floats_that_are_not_finite_make_a_column_of_floats_and_a_note(tmp_path):
    path = write(tmp_path, '{"a":1,"s":"NaN"}\n{"a":NaN,"s":"b"}\n{"a":-Infinity,"s":"c"}\n')
    source, files = JsonLinesSource(), list_inputs([str(path)]).files
    features = source.infer(files, SourceOptions())
    assert [(f.name, f.dtype) for f in features] == [("a", "float32"), ("s", "string")]
    assert source.notes(files, SourceOptions()) == (
        "column 'a' holds NaN or Infinity, which JSON does not know, in a.jsonl, line 2: they are read as "
        "floating-point values",
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"n":NaN,"s":"x","m":[]}', "line 2: expected int64, got nan"),
        ('{"n":1,"s":NaN,"m":[]}', "line 2: expected string, got nan"),
    ],
)
def test_no_other_column_holds_a_float_that_is_not_finite(tmp_path, line, why):
    good = '{"n":1,"s":"x","m":[{"a":1}]}\n'
    features = (make_feature("n", "int64"), make_feature("s", "string"), make_feature("m", "json"))
    path = write(tmp_path, good + line + "\n" + good)
    with pytest.raises(BadInputError) as caught:
        read(path, features=features)
    assert why in str(caught.value)
    _, rows = read(path, features=features, tolerates_bad_rows=True)
    assert len(rows) == 2


def test_within_a_json_column_they_are_words_as_in_parquet(tmp_path):
    path = write(tmp_path, '{"m":[{"a":1}]}\n{"m":[{"a":NaN,"b":"NaN"},[-Infinity]]}\n')
    (note,) = JsonLinesSource().notes(list_inputs([str(path)]).files, SourceOptions())
    assert note.endswith("in a.jsonl, line 2: they are kept as text in a json column")
    types, rows = read(path)
    assert types == {"m": "json"}
    assert [row["m"] for row in rows] == ['[{"a":1}]', '[{"a":"NaN","b":"NaN"},["-Infinity"]]']


@pytest.mark.parametrize("others", ['"x"', "true", '{"k":1}'])
def test_a_note_says_what_becomes_of_them_beside_other_kinds(tmp_path, others):
    path = write(tmp_path, f'{{"a":{others}}}\n' * 3 + '{"a":NaN}\n' * 3)
    notes = JsonLinesSource().notes(list_inputs([str(path)]).files, SourceOptions())
    assert any(note.endswith("line 4: they are kept as text in a json column") for note in notes), notes
    types, rows = read(path)
    assert types == {"a": "json"}
    assert [row["a"] for row in rows[3:]] == ['"NaN"'] * 3


def test_files_of_other_tables_are_refused_unless_they_are_joined(tmp_path):
    write(tmp_path, '{"business_id": "a", "name": "x", "stars": 4.5, "city": "y"}\n', "business.jsonl")
    write(tmp_path, '{"user_id": "b", "name": "z", "since": "2020", "friends": 3}\n', "user.jsonl")
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match=r"files hold objects of different keys in user\.jsonl, line 1") as raised:
        JsonLinesSource().infer(files, SourceOptions())
    assert "'friends', 'since', 'user_id' and the like are not in business.jsonl" in str(raised.value)
    names = [f.name for f in JsonLinesSource().infer(files, SourceOptions(union_by_name=True))]
    assert names == ["business_id", "name", "stars", "city", "user_id", "since", "friends"]
    write(tmp_path, '{"business_id": "b", "name": "z", "closed": true}\n', "user.jsonl")
    assert len(JsonLinesSource().infer(list_inputs([str(tmp_path)]).files, SourceOptions())) == 5
