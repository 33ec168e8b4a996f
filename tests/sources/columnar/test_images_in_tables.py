"""Bytes that begin like images are images, whether or not a file says so."""

import io

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import feather, orc

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions

pytestmark = pytest.mark.full


def picture(form):
    sink = io.BytesIO()
    Image.new("RGB", (8, 6), (9, 0, 0)).save(sink, form)
    return sink.getvalue()


def write_avro(table, path):
    types = [{"name": "picture", "type": ["null", "bytes"]}, {"name": "hash", "type": "bytes"}]
    with open(path, "wb") as sink:
        fastavro.writer(sink, {"type": "record", "name": "r", "fields": types}, table.to_pylist())


WRITERS = {"parquet": pq.write_table, "orc": orc.write_table, "arrow": feather.write_feather, "avro": write_avro}


def types_of(path):
    files = list_inputs([str(path)]).files
    return {f.name: f.describe_type() for f in choose_source(files, SourceOptions()).infer(files, SourceOptions())}


@pytest.mark.parametrize("form", WRITERS)
def test_in_every_format(tmp_path, form):
    rows = [{"picture": None, "hash": b"12345"}]
    rows += [{"picture": picture(kind), "hash": b"\x89PN"} for kind in ("PNG", "JPEG", "PNG")]
    WRITERS[form](pa.Table.from_pylist(rows), tmp_path / f"a.{form}")
    assert types_of(tmp_path / f"a.{form}") == {"picture": "bytes image/*", "hash": "bytes"}


@pytest.mark.parametrize("path", ["a.png", None])
def test_files_of_hugging_face_without_its_metadata(tmp_path, path):
    table = pa.Table.from_pylist([{"image": {"bytes": picture("PNG"), "path": path}}] * 2)
    pq.write_table(table, tmp_path / "a.parquet")
    assert types_of(tmp_path / "a.parquet") == {"image": "bytes image/*", "image/path": "string"}


def test_a_cast_to_bytes_leaves_them_bytes(tmp_path):
    pq.write_table(pa.table({"a": [picture("PNG")] * 3}), tmp_path / "a.parquet")
    assert main(["convert", str(tmp_path / "a.parquet"), str(tmp_path / "out"), "--cast", "a=bytes"]) == 0
    (feature,) = open_dataset(str(tmp_path / "out")).manifest.features
    assert feature.describe_type() == "bytes"


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_dictionaries_of_bytes(tmp_path, form):
    columns = {"a": [picture("PNG"), None] * 3, "b": [b"x", b"y"] * 3}
    table = pa.table({name: pa.array(values, pa.binary()).dictionary_encode() for name, values in columns.items()})
    WRITERS[form](table, tmp_path / f"a.{form}")
    assert types_of(tmp_path / f"a.{form}") == {"a": "bytes image/*", "b": "bytes"}


@pytest.mark.parametrize("values", [[b"other", "PNG"], [None, None], ["PNG", b""]])
def test_other_bytes_are_bytes(tmp_path, values):
    rows = [picture(value) if isinstance(value, str) else value for value in values]
    pq.write_table(pa.table({"a": pa.array(rows, pa.binary())}), tmp_path / "a.parquet")
    assert types_of(tmp_path / "a.parquet") == {"a": "bytes"}
