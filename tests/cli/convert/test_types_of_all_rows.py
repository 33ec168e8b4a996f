"""A row that does not fit the types of the first rows: they are inferred anew from all rows, and a note says so."""

from __future__ import annotations

import csv
import io
import json
import tarfile

import numpy as np
import pytest

import shardkit
from shardkit.dataset.open import open_dataset
from tests.support.in_process import convert

pytestmark = pytest.mark.full

NUM_ROWS = 12_000
LATE = 11_500


def rows_of(out, key="id"):
    split = shardkit.open(out)["train"]
    return sorted((split[position] for position in range(len(split))), key=lambda row: row[key])


def write_csv(path, late, usual="0.5"):
    lines = ["id,x", *(f"{n},{late if n == LATE else usual}" for n in range(NUM_ROWS))]
    path.write_text("\n".join(lines) + "\n")
    return list(csv.DictReader(io.StringIO(path.read_text())))


def features_of(out):
    return {f.name: f.describe_type() for f in open_dataset(out).manifest.features}


def test_no_digit_of_a_late_decimal_is_lost(tmp_path, capfd):
    wanted = write_csv(tmp_path / "a.csv", "1700000123.25")
    code, output = convert(capfd, tmp_path / "a.csv", tmp_path / "out")
    assert code == 0
    assert "column 'x' is float64, and not float32 as in the first rows, because of '1700000123.25'" in output
    assert "rounded to float32" not in output
    assert [row["x"] for row in rows_of(tmp_path / "out")] == [float(row["x"]) for row in wanted]
    dry = convert(capfd, tmp_path / "a.csv", tmp_path / "dry", "--dry-run")[1]
    assert "float64" in dry
    assert "float32  " not in dry


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_late_word_makes_text_of_a_column_unless_its_type_is_declared(tmp_path, capfd, policy):
    wanted = write_csv(tmp_path / "a.csv", "nil", usual="7")
    options = ("--on-bad-record", policy)
    code, output = convert(capfd, tmp_path / "a.csv", tmp_path / "out", *options)
    assert code == 0
    assert "because of 'nil' in a.csv, line 11502; --null-value nil takes it for null" in output
    assert [row["x"] for row in rows_of(tmp_path / "out")] == [row["x"] for row in wanted]
    code, output = convert(capfd, tmp_path / "a.csv", tmp_path / "null", *options, "--null-value", "nil")
    assert code == 0
    assert features_of(tmp_path / "null")["x"] == "int64"
    code, output = convert(capfd, tmp_path / "a.csv", tmp_path / "cast", *options, "--cast", "x=int64")
    assert code == (3 if policy == "fail" else 0)
    assert "'nil'" in output


def test_a_word_beside_integers_of_any_size_makes_a_json_column(tmp_path, capfd):
    values = [10**29, *range(NUM_ROWS), "word"]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'a': value})}\n" for value in values))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out", "--on-bad-record", "skip")
    assert code == 0
    assert "column 'a' has both int values and string values, so it is a json column" in output
    split = shardkit.open(tmp_path / "out")["train"]
    assert sorted(map(str, (split[i]["a"] for i in range(len(split))))) == sorted(map(str, values))


def test_a_row_that_no_type_helps_ends_the_conversion_as_before(tmp_path, capfd):
    rows = [f'{{"id": {n}, "x": {n}}}' for n in range(NUM_ROWS)]
    rows[LATE] = '{"id": 5, "x": }'
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out")
    assert code == 3
    assert "line 11501" in output
    assert "Nothing was committed" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_json_numbers_and_keys_that_come_late(tmp_path, capfd, form):
    rows = [{"id": n, "x": 0.5, "n": n} for n in range(NUM_ROWS)]
    rows[LATE] |= {"x": 1700000123.25, "n": 2.5, "new": "a"}
    path = tmp_path / f"a.{form}"
    path.write_text("\n".join(map(json.dumps, rows)) if form == "jsonl" else json.dumps(rows))
    code, output = convert(capfd, path, tmp_path / "out")
    assert code == 0
    assert "column 'x' is float64, and not float32 as in the first rows, because of 1700000123.25" in output
    assert "column 'n' is float32, and not int64 as in the first rows, because of 2.5" in output
    assert "column 'new' is first seen in" in output
    assert rows_of(tmp_path / "out") == [{"new": None, **row} for row in rows]


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_feature_that_comes_late_in_a_tfrecord(tmp_path, capfd, policy):
    import tensorflow as tf

    def example(**values):
        found = {n: tf.train.Feature(int64_list=tf.train.Int64List(value=v)) for n, v in values.items()}
        return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()

    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for n in range(60_100):
            late = {"late": [7]} if n == 60_000 else {}
            writer.write(example(id=[n], steps=[1, 2] if n == 55_000 else [1], **late))
    code, _ = convert(capfd, tmp_path / "a.tfrecord", tmp_path / "out", "--on-bad-record", policy)
    assert code == 0
    assert features_of(tmp_path / "out") == {"id": "int64", "steps": "int64[*]", "late": "int64"}
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 60_100
    assert [row["id"] for row in rows if row["late"] is not None] == [60_000]
    assert list(rows[55_000]["steps"]) == [1, 2]


def write_tar(path, usual, late):
    with tarfile.open(path, "w") as tar:
        for n in range(6_000):
            for extension, data in (usual | late if n == 5_500 else usual).items():
                info = tarfile.TarInfo(f"{n:05d}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def test_a_member_that_comes_late_in_a_webdataset(tmp_path, capfd):
    write_tar(tmp_path / "a.tar", {"txt": b"word", "cls": b"2"}, {"json": b'{"k": 5}'})
    code, _ = convert(capfd, tmp_path / "a.tar", tmp_path / "out")
    assert code == 0
    rows = rows_of(tmp_path / "out", "__key__")
    assert len(rows) == 6_000
    assert [(row["__key__"], row["json/k"]) for row in rows if row["json/k"] is not None] == [("05500", 5)]


@pytest.mark.parametrize(
    ("extension", "usual", "late", "found", "expected", "is_lost"),
    [
        ("cls", b"7", b"cat", {"cls": "string"}, "cat", True),
        ("cls", b"7", b"9223372036854775808", {"cls": "string"}, "9223372036854775808", True),
        ("json", b'{"x": 7}', b'{"x": 0.123456789012}', {"json/x": "float64"}, 0.123456789012, False),
        ("json", b'{"x": 0.5}', b'{"x": 0.123456789012}', {"json/x": "float64"}, 0.123456789012, False),
        ("json", b'{"x": 7}', b'{"x": "w"}', {"json": "json"}, {"x": "w"}, True),
        ("json", b'{"x": 7}', b'{"y": 7}', {"json": "json"}, {"y": 7}, True),
        ("json", b'{"x": 7}', b'{"x": 36893488147419103232}', {"json": "json"}, {"x": 2**65}, True),
    ],
)
def test_values_of_other_types_that_come_late_in_a_webdataset(
    tmp_path, capfd, extension, usual, late, found, expected, is_lost
):
    write_tar(tmp_path / "a.tar", {extension: usual}, {extension: late})
    code, output = convert(capfd, tmp_path / "a.tar", tmp_path / "out")
    assert code == 0, output
    assert (
        "sample '05500'" in output or "because of values of column 'json/x' in a.tar: they would be rounded" in output
    )
    assert features_of(tmp_path / "out") == {"__key__": "string"} | found
    (name,) = found
    assert rows_of(tmp_path / "out", "__key__")[5_500][name] == expected
    code, output = convert(capfd, tmp_path / "a.tar", tmp_path / "tolerant", "--on-bad-record", "skip")
    assert code == 0, output
    assert len(rows_of(tmp_path / "tolerant", "__key__")) == 6_000 - is_lost


def test_a_sample_that_no_type_helps_is_a_bad_row(tmp_path, capfd):
    write_tar(tmp_path / "a.tar", {"json": b'{"x": 7}'}, {"json": b'{"x": '})
    code, output = convert(capfd, tmp_path / "a.tar", tmp_path / "out")
    assert (code, "sample '05500' (row 5501): 'json' does not fit" in output) == (3, True)
    code, output = convert(capfd, tmp_path / "a.tar", tmp_path / "out", "--on-bad-record", "skip")
    assert (code, len(rows_of(tmp_path / "out", "__key__"))) == (0, 5_999)


@pytest.mark.parametrize(
    ("late", "dtype", "note"),
    [
        ("n/a", "json", "column 'x' has both int values and string values, so it is a json column"),
        (True, "json", "--cast x=int64 makes bad rows of the others"),
        ([1], "json", "column 'x' has both a list and a single value"),
        (2**63, "string", f"column 'x' is string, because {2**63} in a.jsonl, line {LATE + 1} is beyond int64"),
    ],
)
def test_values_of_other_kinds_in_json_that_come_late(tmp_path, capfd, late, dtype, note):
    rows = [{"id": n, "x": late if n == LATE else 7} for n in range(NUM_ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out")
    assert code == 0, output
    assert note in output
    assert features_of(tmp_path / "out")["x"] == dtype
    found = rows_of(tmp_path / "out")
    assert (found[LATE]["x"], found[0]["x"]) == ((late, 7) if dtype == "json" else (str(late), "7"))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "cast", "--cast", "x=uint64")
    assert (code, f"row {LATE + 1}" in output) == ((0, False) if late == 2**63 else (3, True))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "text", "--cast", "x=string")
    assert "--cast x=" not in output
    expected = late if isinstance(late, str) else json.dumps(late, separators=(",", ":"))
    assert (code, rows_of(tmp_path / "text")[LATE]["x"]) == (0, expected)


@pytest.mark.parametrize(
    ("usual", "late", "expected"),
    [
        ([[1, 1], [2, 3]], [[0.5, 0.5], [0.5, 1]], "float32[2][2]"),
        ([[1, 1], [2, 3]], [1, 2, 3, 4], "json"),
        ([[1, 1], [2, 3]], [[1, 2], [3, None]], "json"),
        ([1], [1, None], "json"),
        ([1], [0.5], "float32[*]"),
        ([[1.5]], [[float("nan")]], "float32[1][1]"),
    ],
)
def test_arrays_and_lists_in_json_that_change_late(tmp_path, capfd, usual, late, expected):
    rows = [{"id": n, "a": late if n == LATE else usual} for n in range(NUM_ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out")
    assert code == 0, output
    assert features_of(tmp_path / "out")["a"] == expected
    found = rows_of(tmp_path / "out")[LATE]["a"]
    assert np.array_equal(found, np.array(late), equal_nan=True) if expected != "json" else found == late
    assert expected in convert(capfd, tmp_path / "a.jsonl", tmp_path / "dry", "--dry-run")[1]


def test_a_limit_counts_rows_of_types_that_hold(tmp_path, capfd):
    write_csv(tmp_path / "a.csv", "nil", usual="7")
    assert convert(capfd, tmp_path / "a.csv", tmp_path / "out", "--limit", NUM_ROWS)[0] == 0
    assert features_of(tmp_path / "out")["x"] == "string"


def test_the_value_that_decides_is_named_and_an_option_that_is_given_is_not(tmp_path, capfd):
    late = ["0.1", "0.123456789012", "foo"]
    (tmp_path / "a.csv").write_text("a\n" + "1\n" * NUM_ROWS + "\n".join(late) + "\n")
    code, output = convert(capfd, tmp_path / "a.csv", tmp_path / "out")
    assert code == 0
    assert "column 'a' is string, and not int64 as in the first rows, because of 'foo' in a.csv, line 12004" in output
    assert "a        string  bytes_list" in output
    code, output = convert(capfd, tmp_path / "a.csv", tmp_path / "cast", "--cast", "a=int64")
    assert code == 3
    assert "as in the first rows" not in output


def test_arrays_are_exploded_and_cast_with_their_shape(tmp_path, capfd):
    rows = [{"id": n, "a": [[n, 2], [3, 4]]} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert convert(capfd, tmp_path / "a.jsonl", tmp_path / "json", "--cast", "a=json")[0] == 0
    assert [row["a"] for row in rows_of(tmp_path / "json")] == [row["a"] for row in rows]
    assert convert(capfd, tmp_path / "a.jsonl", tmp_path / "items", "--explode", "a")[0] == 0
    found = sorted((int(row["id"]), row["a"].tolist()) for row in rows_of(tmp_path / "items"))
    assert found == sorted((row["id"], item) for row in rows for item in row["a"])


def test_a_bad_row_beside_a_map_changes_no_type(tmp_path, capfd):
    rows = [{"id": n, "m": {f"k{n}": n}, "n": n, "new": 1} for n in range(NUM_ROWS)]
    rows[LATE]["n"] = "word"
    rows[LATE + 1]["late"] = "a"
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out", "--on-bad-record", "skip")
    assert code == 0
    assert f"{NUM_ROWS:,} rows in, {NUM_ROWS - 1:,} examples out, 1 rejected" in output
    assert features_of(tmp_path / "out") == {"id": "int64", "m": "json", "n": "int64", "new": "int64", "late": "string"}


def test_columns_that_are_left_out_stay_out(tmp_path, capfd):
    rows = [
        {"id": n, "o": {"a": n, "b": 1}, "p": {"a": n}, "x": 0.1234567891 if n == LATE else 0.5}
        for n in range(NUM_ROWS)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out", "--drop-columns", "o/a,p/a")
    assert code == 0, output
    assert features_of(tmp_path / "out") == {"id": "int64", "o/b": "int64", "x": "float64"}


def test_a_late_value_in_place_of_an_object_whose_parts_are_left_out_is_a_bad_row(tmp_path, capfd):
    rows = [{"a": 5, "z": 1} if n == LATE else {"a": {"b": n}, "z": n} for n in range(NUM_ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--drop-columns", "a/b", "--on-bad-record")
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out", *options, "fail")
    assert (code, f"line {LATE + 1}" in output) == (3, True), output
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out", *options, "skip")
    assert (code, len(rows_of(tmp_path / "out", "z"))) == (0, NUM_ROWS - 1), output


def test_a_part_of_a_json_column_cannot_be_left_out(tmp_path, capfd):
    rows = [{"id": 1, "o": {"a": 1, "b": 2}}, {"id": 2, "o": "flat"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out", "--drop-columns", "o/a")
    assert (code, "--drop-columns o/a names a part of a column that is no object in all rows" in output) == (2, True)


@pytest.mark.parametrize("policy", ["fail", "skip"])
@pytest.mark.parametrize(
    "option", [("--cast", "o/a=float32"), ("--rename", "o/a=c"), ("--select", 'SELECT "o/a" AS c FROM rows')]
)
def test_an_option_that_names_a_part_of_an_object_makes_a_bad_row_of_a_late_value(tmp_path, capfd, option, policy):
    rows = [{"id": n, "o": "flat" if n == LATE else {"a": 1}} for n in range(NUM_ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out", *option, "--on-bad-record", policy)
    assert (code, f"line {LATE + 1}" in output) == (3 if policy == "fail" else 0, True), output


@pytest.mark.parametrize(
    ("lines", "dtype", "found"),
    [
        (['{"v":9223372036854775809}', '{"v":null}'], "string", ["9223372036854775809", None]),
        (['{"v":[18446744073709551616]}', '{"v":[]}'], "string[*]", [["18446744073709551616"], []]),
        (['{"v":-9223372036854775809}', '{"v":1}'], "string", ["-9223372036854775809", "1"]),
        (['{"v":0.5}', '{"v":9007199254740993}'], "json", [0.5, 9007199254740993]),
    ],
)
def test_integers_that_no_number_holds_in_json(tmp_path, capfd, lines, dtype, found):
    (tmp_path / "a.jsonl").write_text("".join(f'{line[:-1]},"id":{n}}}\n' for n, line in enumerate(lines)))
    code, output = convert(capfd, tmp_path / "a.jsonl", tmp_path / "out")
    assert (code, features_of(tmp_path / "out")["v"]) == (0, dtype), output
    rows = rows_of(tmp_path / "out")
    assert [list(row["v"]) if isinstance(found[0], list) else row["v"] for row in rows] == found


def test_a_file_whose_numbers_change_a_type_is_named(tmp_path, capfd):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"v": 1}\n{"v": 2}\n')
    (tmp_path / "in/b.jsonl").write_text('{"v": 0.1}\n')
    code, output = convert(capfd, tmp_path / "in", tmp_path / "out")
    assert (code, "column 'v' is float32, because of 0.1 in b.jsonl, line 1" in output) == (0, True)


@pytest.mark.parametrize(
    ("cast", "dtype"), [("float64=float32", "float32"), ("float32=float64", "float64"), ("float32=int64", "float64")]
)
def test_a_cast_of_a_type_takes_the_columns_that_have_it_in_all_rows(tmp_path, capfd, cast, dtype):
    write_csv(tmp_path / "a.csv", "0.1234567891")
    code, output = convert(capfd, tmp_path / "a.csv", tmp_path / "out", "--cast", cast)
    assert (code, features_of(tmp_path / "out")["x"]) == (0, dtype), output
    none = f"--cast {cast} takes no column by the types that are known so far: there are 'id' of int64, 'x' of float64"
    assert (none in output) == (cast != "float64=float32")
