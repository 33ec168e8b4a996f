"""Schema files: what they may say, and what they change of the inferred features."""

from __future__ import annotations

import json

import pytest

from shardkit.cli import main
from shardkit.conversion.inputs.schema_file import Schema, apply_schema, load_schema
from shardkit.dataset.open import open_dataset
from shardkit.encoding.tfrecord import frame
from shardkit.errors import UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs, source_for
from shardkit.sources.base import SourceOptions
from tests.support.files.tfrecord_makers import example

INFERRED = (
    make_feature("age", "int64", nullable=True),
    make_feature("kind", "string", nullable=True),
    make_feature("vector", "float64", (None,), nullable=True),
    make_feature("at", "timestamp[us]", timezone="UTC"),
    make_feature("photo", "bytes", media_type="image/jpeg"),
)
DECLARED = {
    "age": "int32",
    "kind": {"dtype": "int64", "vocabulary": ["cat", "dog"], "nullable": False},
    "vector": {"dtype": "float32", "shape": [768]},
    "at": {"dtype": "timestamp[ms]"},
}
TOML = """
[features]
age = "int32"
vector = { dtype = "float32", shape = [768] }

[features.kind]
dtype = "int64"
vocabulary = ["cat", "dog"]
nullable = false

[features.at]
dtype = "timestamp[ms]"
"""


@pytest.fixture
def schema(tmp_path):
    def make(content) -> Schema:
        path = tmp_path / "schema"
        path.write_text(content if isinstance(content, str) else json.dumps({"features": content}))
        return load_schema(str(path))

    return make


@pytest.mark.parametrize("content", [DECLARED, TOML])
def test_json_and_toml_say_the_same(schema, content):
    assert apply_schema(INFERRED, schema(content)) == (
        make_feature("age", "int32", nullable=True),
        make_feature("kind", "int64", vocabulary=("cat", "dog")),
        make_feature("vector", "float32", (768,), nullable=True),
        make_feature("at", "timestamp[ms]", timezone="UTC"),
        make_feature("photo", "bytes", media_type="image/jpeg"),
    )


def test_what_is_left_out_stays(schema):
    assert apply_schema(INFERRED, schema({"age": {"nullable": False}})) == (
        make_feature("age", "int64"),
        *INFERRED[1:],
    )


@pytest.mark.parametrize("shape", [["*"], [None]])
def test_lists_of_any_length(schema, shape):
    assert apply_schema(INFERRED, schema({"vector": {"shape": shape}}))[2].shape == (None,)


def test_what_described_another_type_goes(schema):
    assert apply_schema(INFERRED, schema({"photo": "string"}))[4].media_type is None
    assert apply_schema(INFERRED, schema({"at": "string"}))[3].timezone is None


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"height": "int32"}, ["'height'", "age, kind, vector, at, photo"]),
        ({"age": "int33"}, ["'int33' is not a dtype", "'age'"]),
        ({"kind": {"vocabulary": ["a"]}}, ["'kind' is string and cannot have a vocabulary"]),
        ({"age": {"vocabulary": ["a", "a"]}}, ["repeats a name"]),
        ({"age": {"vocabulary": []}}, ["empty"]),
        ({"age": {"timezone": "UTC"}}, ["timezone"]),
        ({"age": {"media_type": "image/png"}}, ["media type"]),
        ({"vector": {"shape": [0]}}, ["size 0"]),
        ({"vector": {"shape": [2, "*"]}}, ["one variable dimension"]),
    ],
)
def test_declarations_that_cannot_be(schema, content, parts):
    with pytest.raises(UsageError) as caught:
        apply_schema(INFERRED, schema(content))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"age": {"type": "int32"}}, "`type`"),
        ({"age": 3}, "$.features"),
        ('{"features": {}, "extra": 1}', "extra"),
        ('{"fields": {}}', "features"),
        ('{"features": {', "truncated"),
        ("[features", "schema"),
        ("", "features"),
    ],
)
def test_files_that_say_something_unknown(schema, content, part):
    with pytest.raises(UsageError) as caught:
        schema(content)
    assert part in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_schema(str(tmp_path / "none.toml"))


def test_a_huge_file(tmp_path):
    path = tmp_path / "schema.json"
    path.write_bytes(b" " * (2 << 20))
    with pytest.raises(UsageError, match="too large"):
        load_schema(str(path))


def test_declared_strings_keep_leading_zeros(tmp_path, schema):
    path = tmp_path / "a.csv"
    path.write_text("id,zip\n1,10115\n2,0080\n")
    files = list_inputs([str(path)]).files
    source, options = source_for("csv"), SourceOptions()
    features = apply_schema(source.infer(files, options), schema({"id": "string", "zip": "string"}))
    (split,) = source.split(files, options)
    (part,) = source.read(split, files, features, options)
    assert part.batch.to_pylist() == [{"id": "1", "zip": "10115"}, {"id": "2", "zip": "0080"}]


LATE = {"late": {"dtype": "float32", "shape": [3], "nullable": True}}


def test_a_column_that_rows_may_lack_is_added_behind_the_others(schema):
    found = apply_schema(INFERRED, schema(LATE), may_lack_columns=True)
    assert found == (*INFERRED, make_feature("late", "float32", (3,), nullable=True))


@pytest.mark.parametrize("declared", ["float32", {"dtype": "float32"}, {"nullable": True}])
def test_a_name_that_may_be_misspelled_is_not_added(schema, declared):
    with pytest.raises(UsageError) as caught:
        apply_schema(INFERRED, schema({"late": declared}), may_lack_columns=True)
    assert "dtype and nullable = true" in caught.value.next_step


def test_a_table_whose_rows_have_all_columns_gets_no_other(schema):
    with pytest.raises(UsageError, match="'late' that is not there"):
        apply_schema(INFERRED, schema(LATE))


@pytest.mark.full
def test_a_feature_that_comes_late_is_a_column_with_and_without_a_schema(tmp_path):
    frames = [frame(example(a=number)) for number in range(60_000)]
    (tmp_path / "a.tfrecord").write_bytes(b"".join([*frames, frame(example(a=-1, d=7))]))
    (tmp_path / "schema.json").write_text(json.dumps({"features": {"d": {"dtype": "int64", "nullable": True}}}))
    for name, options in (("found", []), ("declared", ["--schema", str(tmp_path / "schema.json")])):
        arguments = ["convert", str(tmp_path / "a.tfrecord"), str(tmp_path / name), "--workers", "1"]
        assert main([*arguments, *options]) == 0
        split = open_dataset(str(tmp_path / name)).manifest.split("train")
        assert (split.num_examples, split.statistics["d"].count) == (60_001, 1)
