"""The page that specifies the format is enough: a reader that was written from it reads what shardkit reads."""

import hashlib
import importlib.util
import math
import re

import pyarrow as pa
import pytest

import shardkit
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from tests.support.paths import ROOT

READER = ROOT / "examples/minimal_reader/read_shards.py"
PAGE = ROOT / "shardkit/dataset/FORMAT.md"

COLUMNS = {
    "id": (make_feature("id", "int64"), [1, -2, 2**63 - 1, -(2**63), 0, 5, 6, 7, 8, 9, 10]),
    "byte": (make_feature("byte", "uint8", nullable=True), [255, None]),
    "flag": (make_feature("flag", "bool", nullable=True), [True, False, None]),
    "single": (make_feature("single", "float32", nullable=True), [0.1, math.inf, None]),
    "double": (make_feature("double", "float64", nullable=True), [0.1, None, -0.0]),
    "word": (make_feature("word", "string", nullable=True), ["a", "", None, "\u00fc"]),
    "raw": (make_feature("raw", "bytes", nullable=True), [b"\x00\n", b"", None]),
    "words": (make_feature("words", "string", (None,), nullable=True), [["a", ""], [], None]),
    "numbers": (make_feature("numbers", "int32", (None,), nullable=True), [[1, -1], [], None]),
    "pixels": (make_feature("pixels", "uint8", (4,), nullable=True), [[0, 1, 254, 255], None]),
    "steps": (make_feature("steps", "int8", (None,), nullable=True), [[-128, 127], [], None]),
    "doubles": (make_feature("doubles", "float64", (None,), nullable=True), [[0.1, 0.2], [], None]),
}
FEATURES = tuple(feature for feature, _ in COLUMNS.values())


@pytest.fixture(scope="module")
def reader():
    spec = importlib.util.spec_from_file_location("read_shards", READER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder, *, num_rows=11, **options):
    rows = [[values[i % len(values)] for i in range(num_rows)] for _, values in COLUMNS.values()]
    arrays = [pa.array(column, f.arrow_type) for column, f in zip(rows, FEATURES, strict=True)]
    batch = pa.record_batch(arrays, arrow_schema(FEATURES))
    return write_dataset(folder, FEATURES, {"train": batch, "test": batch.slice(0, 3)}, **options)


def as_text(rows):
    """Returns rows so that 0.0 does not equal -0.0."""
    plain = [{name: value.tolist() if hasattr(value, "tolist") else value for name, value in r.items()} for r in rows]
    return [repr(row) for row in plain]


def expected(folder, split):
    found = shardkit.open(folder)[split]
    return as_text(found[i] for i in range(len(found)))


def test_the_reader_is_short():
    lines = [line for line in READER.read_text().splitlines() if line.strip()]
    assert len(lines) <= 60
    assert "shardkit" not in "".join(line for line in lines if re.match(r" *(import|from) ", line))


@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize(("num_shards", "block_examples"), [(1, 100), (3, 2)])
def test_it_reads_what_shardkit_reads(reader, tmp_path, compression, num_shards, block_examples):
    write(tmp_path, compression=compression, num_shards=num_shards, block_examples=block_examples)
    for split, num_rows in (("train", 11), ("test", 3)):
        found = as_text(reader.read_split(tmp_path, split))
        assert len(found) == num_rows
        assert found == expected(tmp_path, split)


def test_it_reads_the_newest_version(reader, tmp_path):
    write(tmp_path, num_rows=4)
    write(tmp_path, num_rows=7, version=2, compression="none")
    assert as_text(reader.read_split(tmp_path, "train")) == expected(tmp_path, "train")


@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize("damage", ["bit", "end", "exchanged"])
def test_it_refuses_a_damaged_shard(reader, tmp_path, compression, damage):
    write(tmp_path, num_shards=2, compression=compression)
    first, second = (p for p in sorted(tmp_path.glob("data/*/train-*")) if p.suffix != ".idx")
    content = bytearray(first.read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 4
    first.write_bytes({"bit": content, "end": content[: len(content) // 2], "exchanged": second.read_bytes()}[damage])
    with pytest.raises(ValueError, match=r"damaged: data/.*train-00000-of-00002"):
        list(reader.read_split(tmp_path, "train"))


def test_it_refuses_a_damaged_manifest_and_a_damaged_table(reader, tmp_path):
    write(tmp_path)
    table = next(tmp_path.glob("manifests/00000001-*.shards.parquet"))
    whole = table.read_bytes()
    table.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(ValueError, match="the shard table"):
        list(reader.read_split(tmp_path, "train"))
    table.write_bytes(whole)
    manifest = tmp_path / "manifests/00000001.json"
    manifest.write_text(manifest.read_text().replace('"num_shards": 2', '"num_shards": 1', 1))
    with pytest.raises(ValueError, match="the manifest"):
        list(reader.read_split(tmp_path, "train"))


def test_the_worked_example_of_the_page_is_what_shardkit_writes(reader, tmp_path):
    page = PAGE.read_text().partition("A worked example")[2]
    lines = [re.match(r" {5,}(?:\d+ {2})?((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2}|$)", line) for line in page.splitlines()]
    content = bytes.fromhex(" ".join(line.group(1) for line in lines if line))
    features = (
        make_feature("id", "int64"),
        make_feature("word", "string", nullable=True),
        make_feature("x", "float64", (None,)),
    )
    columns = {"id": [1, 2], "word": ["a", None], "x": [[0.5], []]}
    batch = pa.record_batch([pa.array(columns[f.name], f.arrow_type) for f in features], arrow_schema(features))
    write_dataset(tmp_path, features, {"train": batch}, num_shards=1, block_examples=1)
    (shard,) = tmp_path.glob("data/*/*.gz")
    assert shard.read_bytes() == content
    assert hashlib.sha256(content).hexdigest() in page
    assert list(reader.read_split(tmp_path, "train")) == [
        {"id": 1, "word": "a", "x": [0.5]},
        {"id": 2, "word": None, "x": []},
    ]
    compact = re.sub(r"\n {4}", "", page[page.index('{"accounting"') :]).strip()
    assert hashlib.sha256(compact.encode()).hexdigest() in page
