"""Avro files read as fastavro reads them, however they are cut; damage and bombs are named."""

from __future__ import annotations

import bz2
import datetime
import io
import itertools
import json
import lzma
import math
import random
import zlib
from decimal import Decimal
from pathlib import Path

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError, UsageError
from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.avro.source import AvroSource
from shardkit.sources.base import SourceOptions
from tests.support.examples import draws
from tests.support.files.source_makers import parts_of, table_of
from tests.support.paths import DATA

UTC = datetime.UTC


def record(*fields: tuple[str, object]) -> dict:
    return {"type": "record", "name": "row", "fields": [{"name": n, "type": t} for n, t in fields]}


def logical(type_: str, name: str, **more) -> dict:
    return {"type": type_, "logicalType": name, **more}


def write(path: Path, schema, rows, **settings_) -> Path:
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, **settings_)
    return path


def parts(path: Path, source=None, **options):
    return parts_of(source or AvroSource(), path, **options)


def read(path: Path, source=None, **options):
    return table_of(source or AvroSource(), path, **options)


def flatten(row: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in row.items():
        flat |= flatten(value, f"{prefix}{key}/") if isinstance(value, dict) else {prefix + key: value}
    return flat


SCHEMA = record(
    ("i", "int"),
    ("l", ["null", "long"]),
    ("f", "float"),
    ("d", ["double", "null"]),
    ("b", "boolean"),
    ("s", "string"),
    ("y", "bytes"),
    ("e", {"type": "enum", "name": "Colour", "symbols": ["red", "green"]}),
    ("e2", ["null", "Colour"]),
    ("x", {"type": "fixed", "name": "Four", "size": 4}),
    ("a", {"type": "array", "items": "long"}),
    ("t", ["null", {"type": "array", "items": "string"}]),
    ("w", ["null", "int", "long"]),
    ("r", record(("p", "int"), ("q", record(("z", ["null", "string"])) | {"name": "inner"})) | {"name": "outer"}),
    ("day", logical("int", "date")),
    ("ms", logical("long", "timestamp-millis")),
    ("us", ["null", logical("long", "timestamp-micros")]),
    ("at", logical("long", "local-timestamp-micros")),
    ("time", logical("long", "time-micros")),
    ("dec", logical("bytes", "decimal", precision=30, scale=2)),
    ("fix", logical("fixed", "decimal", precision=8, scale=3) | {"name": "Fixed", "size": 5}),
)


def make_row(i: int) -> dict:
    when = datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=i)
    return {
        "i": i - 5,
        "l": 2**60 + i if i % 3 else None,
        "f": i / 4,
        "d": i / 3 if i % 4 else None,
        "b": i % 2 == 0,
        "s": f"é{i}" * (i % 5),
        "y": bytes([i % 256]) * (i % 4),
        "e": ("red", "green")[i % 2],
        "e2": "red" if i % 2 else None,
        "x": b"abcd",
        "a": list(range(i % 4)),
        "t": ["x", "y"] if i % 3 else None,
        "w": i * 2**33 if i % 3 else None,
        "r": {"p": i, "q": {"z": "v" if i % 2 else None}},
        "day": datetime.date(2020, 1, 1) + datetime.timedelta(days=i),
        "ms": when.replace(tzinfo=UTC),
        "us": when.replace(tzinfo=UTC) if i % 2 else None,
        "at": when,
        "time": datetime.time(1, 2, 3, i),
        "dec": Decimal(10**25 * (i - 3)).scaleb(-2),
        "fix": Decimal(i - 3).scaleb(-3),
    }


@pytest.mark.full
@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_every_type_reads_as_fastavro_reads_it(tmp_path, codec):
    path = write(tmp_path / "a.avro", SCHEMA, [make_row(i) for i in range(500)], codec=codec, sync_interval=1000)
    features, found = read(path)
    with path.open("rb") as file:
        assert found.to_pylist() == [flatten(row) for row in fastavro.reader(file)]
    described = {f.name: (f.describe_type(), f.nullable) for f in features}
    assert described["i"] == ("int32", False)
    assert described["l"] == described["w"] == ("int64", True)
    assert described["t"] == ("string[*]", True)
    assert described["r/q/z"] == ("string", True)
    assert described["ms"] == ("timestamp[ms] UTC", False)
    assert described["at"] == ("timestamp[us]", False)
    assert described["dec"] == ("decimal(30,2)", False)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "n": st.none() | st.integers(-(2**63), 2**63 - 1),
                "s": st.text(max_size=40),
                "a": st.lists(st.floats(allow_nan=False), max_size=3),
            }
        ),
        min_size=1,
        max_size=60,
    ),
    split_bytes=st.integers(1, 2000),
    batch_bytes=st.integers(1, 500),
    sync_interval=st.integers(1, 300),
)
@settings(max_examples=draws(60), deadline=None)
def test_any_rows_and_any_cut_give_the_same_rows(tmp_path_factory, rows, split_bytes, batch_bytes, sync_interval):
    schema = record(("n", ["null", "long"]), ("s", "string"), ("a", {"type": "array", "items": "double"}))
    path = write(tmp_path_factory.mktemp("a") / "a.avro", schema, rows, sync_interval=sync_interval)
    source = AvroSource(split_bytes=split_bytes, batch_bytes=batch_bytes)
    features, splits, found = parts(path, source)
    assert pa.Table.from_batches([p.batch for p in found], schema=arrow_schema(features)).to_pylist() == rows
    identities = np.concatenate([p.identities for p in found]).tolist()
    assert len(set(identities)) == len(rows)
    assert all(one.stop == other.start for one, other in itertools.pairwise(splits))


def test_a_large_file_is_cut_and_rows_keep_their_numbers(tmp_path):
    schema = record(("n", "long"), ("s", "string"))
    rows = [{"n": i, "s": "x" * 20} for i in range(3000)]
    path = write(tmp_path / "a.avro", schema, rows, sync_interval=2000)
    raw = path.read_bytes()
    # The only row with this number gets bytes that are no UTF-8.
    marker = b"\xe8\x2d\x28" + b"x" * 20
    assert raw.count(marker) == 1
    path.write_bytes(raw.replace(marker, marker[:-1] + b"\xff"))
    source = AvroSource(split_bytes=10_000)
    with pytest.raises(BadInputError) as caught:
        read(path, source)
    assert "row 2933" in str(caught.value)
    _, splits, found = parts(path, source, tolerates_bad_rows=True)
    assert len(splits) > 5
    (rejected,) = [r for p in found for r in p.rejected]
    assert rejected.position == "row 2933"
    assert "not UTF-8" in rejected.reason
    assert json.loads(rejected.raw)["n"] == 2932
    assert sum(p.batch.num_rows for p in found) == 2999


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ({"type": "map", "values": "int"}, [{"k": 1}, {}]),
        (["int", "string"], [1, "x"]),
        (["null", "row"], [None, {"fine": 3, "a": {"fine": 4, "a": None}}]),
        ({"type": "array", "items": "null"}, [[None], []]),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[[1, 2], []], []]),
        ({"type": "record", "name": "none", "fields": []}, [{}, {}]),
        ({"type": "array", "items": {"type": "record", "name": "p", "fields": [{"name": "x", "type": "float"}]}},
         [[{"x": 0.5}], []]),
    ],
)  # fmt: skip
def test_what_is_nested_is_json(tmp_path, type_, values):
    rows = [{"fine": i, "a": value} for i, value in enumerate(values)]
    path = write(tmp_path / "a.avro", record(("fine", "int"), ("a", type_)), rows)
    features, found = read(path)
    assert [f.describe_type() for f in features] == ["int32", "json"]
    with path.open("rb") as file:
        wanted = [row["a"] for row in fastavro.reader(file)]
    assert [None if row["a"] is None else json.loads(row["a"]) for row in found.to_pylist()] == wanted == values


def test_numbers_that_json_does_not_know_are_words_in_it(tmp_path):
    type_ = {"type": "array", "items": {"type": "array", "items": ["double", "bytes"]}}
    path = write(tmp_path / "a.avro", record(("a", type_)), [{"a": [[math.nan, -math.inf, b"\xff"]]}])
    assert [json.loads(row["a"]) for row in read(path)[1].to_pylist()] == [[["NaN", "-Infinity", "/w=="]]]


def test_schemas_that_differ_are_refused_with_their_differences(tmp_path):
    write(tmp_path / "1.avro", record(("a", "int"), ("b", "string")), [{"a": 1, "b": "x"}])
    write(tmp_path / "2.avro", record(("a", "string"), ("c", "string")), [{"a": "1", "c": "x"}])
    with pytest.raises(UsageError) as caught:
        AvroSource().infer(list_inputs([str(tmp_path)]).files, SourceOptions())
    assert "'a' is int32 in 1.avro and string in 2.avro" in str(caught.value)
    assert "'c' is only in 2.avro" in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_file_that_is_cut_off_is_damaged(tmp_path, codec):
    path = write(tmp_path / "a.avro", SCHEMA, [make_row(i) for i in range(100)], codec=codec, sync_interval=1000)
    raw = path.read_bytes()
    ends = {0}
    with path.open("rb") as file:
        ends |= {block.offset + block.size for block in fastavro.block_reader(file)}
    for keep in range(1, len(raw), len(raw) // 60):
        path.write_bytes(raw[:keep])
        if keep not in ends:
            with pytest.raises(DamagedFileError, match=r"cut off or damaged in a\.avro"):
                read(path)


def damaged_block(tmp_path: Path, num_rows: int, data: bytes, codec: str = "null", sync: bytes | None = None) -> Path:
    """Returns a file of records of one string whose only block says what is given."""
    out = io.BytesIO()
    fastavro.writer(out, record(("s", "string")), [], codec="null")
    raw = out.getvalue().replace(b"\x08null", b"%c%s" % (2 * len(codec), codec.encode()))
    block = io.BytesIO()
    for number in (num_rows, len(data)):
        fastavro.schemaless_writer(block, "long", number)
    (tmp_path / "a.avro").write_bytes(raw + block.getvalue() + data + (sync or raw[-16:]))
    return tmp_path / "a.avro"


def test_a_block_that_is_right_reads(tmp_path):
    assert read(damaged_block(tmp_path, 1, b"\x02x"))[1].to_pylist() == [{"s": "x"}]


@pytest.mark.parametrize(
    ("num_rows", "data", "settings_", "part"),
    [
        (1, b"\x02x", {"sync": b"0123456789abcdef"}, "does not end with the sync marker"),
        (2, b"\x02x", {}, "row 2 of a block cannot be decoded, it is cut off"),
        (1, b"\x02x\x02y", {}, "2 bytes behind its last row"),
        (10**12, b"\x02x", {}, "says that it has 1000000000000 rows"),
        (-1, b"\x02x", {}, "is damaged"),
        (1, b"\x02x", {"codec": "lzma"}, "unknown way, 'lzma'"),
        (1, b"no deflate", {"codec": "deflate"}, "a deflate block is damaged"),
        (1, b"\xff\xff\xff\xff\x0f\0\0\0\0", {"codec": "snappy"}, "a snappy block of 5 B becomes"),
        (1, pa.compress(b"\x02x", "snappy", asbytes=True) + b"\0\0\0\0", {"codec": "snappy"}, "checksum is wrong"),
        (1, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01x", {}, "cannot be decoded"),
    ],
)
def test_a_damaged_block_is_named(tmp_path, num_rows, data, settings_, part):
    with pytest.raises(DamagedFileError) as caught:
        read(damaged_block(tmp_path, num_rows, data, **settings_))
    assert part in str(caught.value)
    assert "a.avro" in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "zstandard", "snappy"])
def test_a_block_that_becomes_too_large_is_refused(tmp_path, codec):
    content = b"\0" * 30 * 2**20
    if codec in ("zstandard", "snappy"):
        data = pa.compress(content, {"zstandard": "zstd"}.get(codec, codec), asbytes=True) + b"\0\0\0\0"
    else:
        data = compress(content, codec)
    with pytest.raises(DamagedFileError, match=f"a {codec} block of .* becomes"):
        read(damaged_block(tmp_path, 1, data, codec), max_record_bytes=20 * 2**20)


def compress(content: bytes, codec: str) -> bytes:
    """Returns a block as Avro has it compressed."""
    if codec == "deflate":
        deflate = zlib.compressobj(wbits=-15)
        return deflate.compress(content) + deflate.flush()
    return bz2.compress(content) if codec == "bzip2" else lzma.compress(content)


def test_a_number_that_its_type_cannot_hold_is_damage(tmp_path):
    path = write(tmp_path / "a.avro", record(("i", "int")), [{"i": 7}])
    raw = path.read_bytes()
    block = b"\x02\x02\x0e"
    assert raw.count(block) == 1
    path.write_bytes(raw.replace(block, b"\x02\x0a\x80\x80\x80\x80\x20"))
    with pytest.raises(DamagedFileError, match="more than 32 bits"):
        read(path)


@pytest.mark.full
def test_damage_anywhere_is_an_error_or_loses_no_row(tmp_path):
    path = tmp_path / "a.avro"
    rng = random.Random(0)
    for codec in ("null", "deflate"):
        raw = write(path, SCHEMA, [make_row(i) for i in range(100)], codec=codec, sync_interval=1000).read_bytes()
        for _ in range(150):
            damaged = bytearray(raw)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(damaged))
            try:
                _, _, found = parts(path, AvroSource(split_bytes=2000), tolerates_bad_rows=rng.random() < 0.5)
            except (BadInputError, UsageError):
                continue
            assert sum(p.batch.num_rows + len(p.rejected) for p in found) == 100


def real_files() -> list[Path]:
    folders = [DATA / "avro-apache", DATA / "chicago-taxi-4formats"]
    found = sorted(p for folder in folders if folder.is_dir() for p in folder.rglob("*.avro") if p.is_file())
    # fastavro refuses the metadata of one, of which a value is no UTF-8.
    return [p for p in found if p.name != "syncInMeta.avro"]


@pytest.mark.full
@pytest.mark.data
@pytest.mark.parametrize("path", real_files(), ids=lambda p: p.name)
def test_real_files_read_as_fastavro_reads_them_or_are_refused(path):
    try:
        features, found = read(path)
    except (BadInputError, UsageError) as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert path.name in str(refusal)
        return
    assert len(features) == found.num_columns
    if any(codec in path.name for codec in ("snappy", "zstd")):
        path = path.with_name("weather.avro")
    with path.open("rb") as file:
        wanted = [flatten(row) for row in fastavro.reader(file)]
    rows = found.to_pylist()
    for name in (f.name for f in features if f.is_json):
        for row in rows:
            row[name] = None if row[name] is None else json.loads(row[name])
    # A record that is null has no keys.
    found, wanted = (
        [{k: v for k, v in flatten(row).items() if v is not None} for row in side] for side in (rows, wanted)
    )
    np.testing.assert_equal(found, wanted)


def test_its_files_are_recognized(tmp_path):
    path = write(tmp_path / "a", record(("i", "int")), [{"i": 7}])
    assert AvroSource().recognizes(path.read_bytes()[:4096], "a")
    assert not AvroSource().recognizes(b"Object,price\n", "a.csv")
