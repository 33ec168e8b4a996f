"""Parquet and Arrow files as Hugging Face `datasets` writes them: files in columns, and names of classes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.errors import NarrowTypesError, UsageError
from shardkit.sources.columnar.parquet import ParquetSource
from tests.support.files.source_makers import read_all

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(path, features, table):
    described = {} if features is None else {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(described), path)
    return path


def table(number=3):
    files = pa.array([{"bytes": b"\x89PNG%d" % i, "path": f"{i}.png"} for i in range(number)], FILE)
    return pa.table({"image": files, "label": pa.array([i % 2 for i in range(number)], pa.int64())})


def test_a_file_and_the_names_of_classes(tmp_path):
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    found = read_all(ParquetSource(), write(tmp_path / "a.parquet", features, table()))
    described = {f.name: (f.media_type, f.vocabulary) for f in found.features}
    assert described == {"image": ("image/*", None), "image/path": (None, None), "label": (None, ("cat", "dog"))}
    assert [row["image"] for row in found.rows] == [b"\x89PNG0", b"\x89PNG1", b"\x89PNG2"]
    assert [row["label"] for row in found.rows] == [0, 1, 0]


def test_a_row_without_a_label_has_null(tmp_path):
    # The test splits of the hub mark such rows with -1.
    values = pa.table({"label": pa.array([1, -1, 0], pa.int64())})
    path = write(tmp_path / "a.parquet", {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}, values)
    found = read_all(ParquetSource(), path, types_of_all_rows=True)
    assert ([f.nullable for f in found.features], [row["label"] for row in found.rows]) == ([True], [1, None, 0])
    with pytest.raises(NarrowTypesError, match="row 2: expected int64"):
        read_all(ParquetSource(), path)


def test_columns_are_left_out_by_their_names(tmp_path):
    found = read_all(ParquetSource(), write(tmp_path / "a.parquet", None, table()), drop_columns=("image/path",))
    assert [f.name for f in found.features] == ["image", "label"]
    assert [row["image"] for row in found.rows] == [b"\x89PNG0", b"\x89PNG1", b"\x89PNG2"]


@pytest.mark.parametrize("described", [b"{", b"[]", b'{"info": {}}', b'{"info": {"features": {"label": 1}}}'])
def test_metadata_of_another_form_say_nothing(tmp_path, described):
    pq.write_table(table().replace_schema_metadata({"huggingface": described}), tmp_path / "a.parquet")
    found = read_all(ParquetSource(), tmp_path / "a.parquet")
    assert all(f.media_type is None and f.vocabulary is None for f in found.features)


def test_other_structs_keep_their_names(tmp_path):
    values = pa.array([{"bytes": b"x", "path": "p", "more": 1}], pa.struct([*FILE, pa.field("more", pa.int64())]))
    pq.write_table(pa.table({"image": values}), tmp_path / "a.parquet")
    found = read_all(ParquetSource(), tmp_path / "a.parquet")
    assert [f.name for f in found.features] == ["image/bytes", "image/path", "image/more"]


def test_classes_that_differ_are_refused(tmp_path):
    for name, classes in (("a", ["cat", "dog"]), ("b", ["dog", "cat"])):
        write(tmp_path / f"{name}.parquet", {"label": {"_type": "ClassLabel", "names": classes}}, table())
    with pytest.raises(UsageError, match="the classes of 'label' differ"):
        read_all(ParquetSource(), tmp_path)
