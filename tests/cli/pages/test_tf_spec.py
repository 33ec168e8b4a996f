"""What `inspect --reader tensorflow` prints reads every type with stock TensorFlow."""

from __future__ import annotations

import ast
import datetime
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from shardkit.cli import main
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

ZONE = datetime.UTC
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 0, 250_000)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# By dtype: a value, and what TensorFlow should find.
SCALARS = {
    **dict.fromkeys(INTEGERS, (7, 7)),
    "bool": (True, True),
    "float16": (0.5, 0.5),
    "float32": (0.25, 0.25),
    "float64": (1 / 3, 1 / 3),
    "string": ("é", "é".encode()),
    "bytes": (b"\xff\0", b"\xff\0"),
    "date": (MOMENT.date(), 19782),
    "timestamp[ms]": (MOMENT, 1709209800250),
    "duration[s]": (datetime.timedelta(hours=1), 3600),
    "time[us]": (MOMENT.time(), 45_000_250_000),
    "decimal(9,2)": (Decimal("12.25"), 12.25),
}
FILLED = {"string": b"", "bytes": b""} | dict.fromkeys(("float16", "float32", "float64", "decimal(9,2)"), math.nan)


def read(tmp_path, capsys, features, rows):
    """Runs what is printed for a dataset of some rows, and returns what it reads."""
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(features))
    write_dataset(tmp_path / "it's [1]*", features, {"train": batch, "test": batch.slice(0, 1)}, num_shards=1)
    assert main(["inspect", str(tmp_path / "it's [1]*"), "--reader", "tensorflow"]) == 0
    names: dict[str, object] = {}
    exec(capsys.readouterr().out, names)  # noqa: S102 - this is what users do with it
    return [{name: value.numpy() for name, value in row.items()} for row in names["rows"]]


def is_same(found, expected):
    return bool(found == expected) or (math.isnan(expected) and math.isnan(found))


@pytest.mark.full
def test_single_values_of_every_type_and_their_nulls(tmp_path, capsys):
    features = tuple(make_feature(dtype, dtype, nullable=True) for dtype in SCALARS)
    rows = [{dtype: value for dtype, (value, _) in SCALARS.items()}, dict.fromkeys(SCALARS)]
    present, absent = read(tmp_path, capsys, features, rows)
    for dtype, (_, expected) in SCALARS.items():
        assert is_same(present[dtype], expected), dtype
        assert is_same(absent[dtype], FILLED.get(dtype, 0)), dtype


@pytest.mark.full
def test_arrays_and_lists_of_every_type(tmp_path, capsys):
    shapes = {"array": (2, 2), "list": (None,)}
    features = tuple(
        make_feature(f"{dtype} {kind} {nullable}", dtype, shape, nullable=nullable)
        for dtype in SCALARS
        for kind, shape in shapes.items()
        for nullable in (False, True)
    )
    full = {feature.name: [SCALARS[feature.dtype][0]] * 4 for feature in features}
    rows = [full, full | {feature.name: None for feature in features if feature.nullable}]
    present, absent = read(tmp_path, capsys, features, rows)
    for feature in features:
        shape = feature.shape if feature.num_values else (4,)
        for row in (present,) if feature.nullable else (present, absent):
            assert row[feature.name].shape == shape, feature.name
            assert all(is_same(value, SCALARS[feature.dtype][1]) for value in row[feature.name].ravel()), feature.name
        if feature.nullable:
            size = 0 if feature.num_values is None else 4
            found = absent[feature.name].ravel()
            assert len(found) == size, feature.name
            assert all(is_same(value, FILLED.get(feature.dtype, 0)) for value in found), feature.name


@pytest.mark.full
def test_json_classes_images_and_extreme_numbers(tmp_path, capsys):
    features = (
        make_feature("chat", "json"),
        make_feature("label", "int64", vocabulary=("cat", "dog")),
        make_feature("image", "bytes", media_type="image/png"),
        make_feature("when", "timestamp[us]", timezone="UTC"),
        make_feature("big", "uint64"),
    )
    rows = [{"chat": '[{"a":1}]', "label": 1, "image": b"png", "when": MOMENT.replace(tzinfo=ZONE), "big": 2**64 - 1}]
    (row,) = read(tmp_path, capsys, features, rows)
    assert json.loads(row["chat"]) == [{"a": 1}]
    assert (row["label"], row["image"], row["when"], row["big"]) == (1, b"png", 1709209800250000, 2**64 - 1)


@pytest.mark.full
def test_splits_without_compression_and_files_of_others(tmp_path, capsys):
    features = (make_feature("n", "int64"),)
    splits = {
        name: pa.RecordBatch.from_pylist([{"n": first + i} for i in range(5)], schema=arrow_schema(features))
        for first, name in ((0, "train"), (10, "train-extra"))
    }
    write_dataset(tmp_path / "a", features, splits, compression="none")
    (data,) = (tmp_path / "a" / "data").iterdir()
    data.rename(tmp_path / "theirs")
    write_dataset(tmp_path / "a", features, splits, compression="none", version=2)
    for number, path in enumerate(sorted((tmp_path / "theirs").glob("*.tfrecord"))):
        path.rename(path.with_name(f"{number}.tfrecord"))
    assert main(["index", str(tmp_path / "theirs")]) == 0
    capsys.readouterr()
    for folder, expected in (("a", range(5)), ("theirs", (*range(5), *range(10, 15)))):
        assert main(["inspect", str(tmp_path / folder), "--reader", "tensorflow"]) == 0
        names: dict[str, object] = {}
        exec(capsys.readouterr().out, names)  # noqa: S102 - this is what users do with it
        assert sorted(int(row["n"]) for row in names["rows"]) == list(expected)


@pytest.mark.parametrize("others", [["--json"], ["--recipe"], ["--rejected"], ["--history", "--recipe"]])
def test_it_is_refused_beside_another_form(tmp_path, capsys, others):
    features = (make_feature("n", "int64"),)
    batch = pa.RecordBatch.from_pylist([{"n": 1}], schema=arrow_schema(features))
    write_dataset(tmp_path / "a", features, {"train": batch})
    assert main(["inspect", str(tmp_path / "a"), "--reader", "tensorflow", *others]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_it_tells_what_a_type_does_not(tmp_path, capsys):
    features = (
        make_feature("chat", "json", nullable=True),
        make_feature("label", "int64", vocabulary=("cat", "dog")),
        make_feature("many", "int64", vocabulary=tuple(map(str, range(1000)))),
        make_feature("when", "timestamp[us]", timezone="UTC"),
        make_feature("price", "decimal(9,2)"),
    )
    batch = pa.RecordBatch.from_pylist([], schema=arrow_schema(features))
    write_dataset(tmp_path / "a", features, {"train": batch, "test": batch})
    assert main(["inspect", str(tmp_path / "a"), "--reader", "tensorflow", "--split", "test"]) == 0
    output = capsys.readouterr().out
    assert "# JSON: json.loads(value.numpy()) gives the objects; null is an empty string" in output
    assert "# microseconds since 1970-01-01, UTC" in output
    assert "# exact text until it is decoded as float64" in output
    assert "# The classes of 'label': ['cat', 'dog']" in output
    assert "# 'many' has 1,000 classes, which shardkit inspect --json lists" in output
    assert "/test-*-of-*.tfrecord.gz" in output


@pytest.mark.parametrize("library", ["tensorflow", "ray", "spark"])
def test_names_of_others_are_texts_and_no_code(tmp_path, capsys, library):
    odd = '"""\nboom() #`\''
    features = (make_feature(odd, "int64"), make_feature("image", "bytes", media_type=f"image/png\n{odd}"))
    batch = pa.RecordBatch.from_pylist([], schema=arrow_schema(features))
    write_dataset(tmp_path / "a", features, {"train": batch})
    assert main(["inspect", str(tmp_path / "a"), "--reader", library]) == 0
    calls = [n.func for n in ast.walk(ast.parse(capsys.readouterr().out)) if isinstance(n, ast.Call)]
    assert "boom" not in {func.id for func in calls if isinstance(func, ast.Name)}
