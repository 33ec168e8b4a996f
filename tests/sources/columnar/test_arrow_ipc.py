"""Arrow IPC files, streams and Feather read as pyarrow reads them; what is damaged or a bomb is refused."""

from __future__ import annotations

import random
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from shardkit.errors import BadInputError, DamagedFileError, UsageError
from shardkit.features import make_feature
from shardkit.sources.columnar.arrow_ipc import ArrowSource
from tests.support.files.source_makers import parts_of, table_of

TABLE = pa.table(
    {
        "bool": pa.array([True, None, False]),
        "u64": pa.array([1, None, 2**64 - 1], pa.uint64()),
        "f16": pa.array(np.array([1, 2, 3], np.float16)),
        "f64": pa.array([0.1, 1e300, None]),
        "s": pa.array(["x", "", "é"]),
        "ls": pa.array(["x", None, "é"], pa.large_string()),
        "sv": pa.array(["x", None, "long enough to lie elsewhere"], pa.string_view()),
        "b": pa.array([b"\xff", None, b""]),
        "fb": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "dict": pa.array(["x", None, "x"]).dictionary_encode(),
        "day": pa.array([1, None, 3], pa.date32()),
        "tz": pa.array([1, None, 3], pa.timestamp("us", "Europe/Paris")),
        "dec": pa.array([None, "1.50", "-2.25"]).cast(pa.decimal128(5, 2)),
        "list": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "fixed": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "names": pa.array([["a"], ["b", "c"], None], pa.large_list(pa.string())),
        "nulls": pa.nulls(3),
    }
)


def write(path: Path, table: pa.Table, *, stream: bool = False, rows: int | None = None, compression=None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def parts(path: Path, features=None, source=None, **options):
    return parts_of(source or ArrowSource(), path, features=features, **options)


def read(path: Path, features=None, source=None, **options):
    return table_of(source or ArrowSource(), path, features=features, **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type_reads_as_pyarrow_reads_it(tmp_path, stream, compression):
    features, found = read(write(tmp_path / "a", TABLE, stream=stream, compression=compression))
    for feature in features:
        assert found.column(feature.name).to_pylist() == TABLE.column(feature.name).to_pylist(), feature
    described = {f.name: (f.describe_type(), f.nullable) for f in features}
    assert described["fixed"] == ("float32[2]", True)
    assert described["dict"] == ("string", True)
    assert described["f16"] == ("float16", False)
    assert described["s"] == ("string", False)


def test_feather_is_read_as_pandas_writes_it(tmp_path):
    frame = TABLE.select(["bool", "f64", "s"]).to_pandas()
    frame.to_feather(tmp_path / "a.feather")
    _, found = read(tmp_path / "a.feather")
    assert found.column("s").to_pylist() == frame["s"].tolist()


def test_structs_are_flattened_and_their_nulls_known(tmp_path):
    rows = [{"a": {"b": 1, "c": {"d": "x"}}, "e": 1}, {"a": {"b": 2, "c": None}, "e": 2}]
    features, found = read(write(tmp_path / "a", pa.Table.from_pylist(rows)))
    assert {f.name: f.nullable for f in features} == {"a/b": False, "a/c/d": True, "e": False}
    assert found.to_pylist() == [{"a/b": 1, "a/c/d": "x", "e": 1}, {"a/b": 2, "a/c/d": None, "e": 2}]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("stream", [False, True])
def test_a_member_of_a_zip_is_read(tmp_path, compression, stream):
    write(tmp_path / "a", TABLE, stream=stream)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", compression) as archive:
        archive.write(tmp_path / "a", "a.arrow")
    _, found = read(tmp_path / "a.zip")
    assert found.column("ls").to_pylist() == TABLE.column("ls").to_pylist()


@pytest.mark.full
def test_rows_of_a_large_batch_come_in_small_ones(tmp_path):
    num_rows = 9_000_000
    table = pa.table({"a": np.arange(num_rows)})
    for stream in (False, True):
        path = write(tmp_path / "a", table, stream=stream)
        _, splits, found = parts(path)
        assert len(splits) == 4
        assert max(p.batch.nbytes for p in found) < 8 * 2**20
        assert sum(int(p.batch.column(0).to_numpy().sum()) for p in found) == num_rows * (num_rows - 1) // 2


@pytest.mark.full
def test_a_dictionary_of_long_texts_does_not_fill_the_memory(tmp_path):
    column = pa.array(["x" * 100_000, "y" * 100_000] * 2000).dictionary_encode()
    _, _, found = parts(write(tmp_path / "a", pa.table({"a": column})))
    assert max(p.batch.nbytes for p in found) < 8 * 2**20
    assert sum(p.batch.num_rows for p in found) == 4000


def test_a_stream_without_its_end_is_an_error(tmp_path):
    path = write(tmp_path / "a", TABLE, stream=True)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DamagedFileError, match="no end-of-stream mark"):
        read(path)


@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_that_announces_a_terabyte_is_refused(tmp_path, stream):
    path = write(tmp_path / "a", pa.table({"a": [0] * 1000}), stream=stream, compression="zstd")
    raw = path.read_bytes()
    announced = (8000).to_bytes(8, "little")
    assert raw.count(announced + b"\x28\xb5\x2f\xfd") == 1
    path.write_bytes(raw.replace(announced + b"\x28\xb5\x2f\xfd", (2**40).to_bytes(8, "little") + b"\x28\xb5\x2f\xfd"))
    with pytest.raises(DamagedFileError, match="too much memory"):
        read(path)


def test_feather_of_version_1_is_refused_with_what_to_do(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        feather.write_feather(pa.table({"a": [1]}), str(tmp_path / "a.feather"), version=1)
    assert ArrowSource().recognizes((tmp_path / "a.feather").read_bytes(), "a.feather")
    with pytest.raises(UsageError, match=r"version 1 are not read in a\.feather"):
        read(tmp_path / "a.feather")


def test_its_files_are_recognized(tmp_path):
    source = ArrowSource()
    for stream in (False, True):
        assert source.recognizes(write(tmp_path / "a", TABLE, stream=stream).read_bytes()[:4096], "a")
    for head in (b"ARROW1,x\n", b"PAR1", b"", b"\xff\xff\xff\xff", b"\xff" * 4096, b"FEA1,b\n"):
        assert not source.recognizes(head, "a.csv")


def test_bad_rows_are_set_aside_and_all_others_kept(tmp_path):
    texts = pa.array([b"ok", b"\xff\xfe", b"ok", b"x" * 5000, b"ok"]).view(pa.string())
    table = pa.table({"a": pa.array([1, 2, 300, 4, 5]), "s": texts})
    path = write(tmp_path / "a", table, rows=2)
    features = (make_feature("a", "int8"), make_feature("s", "string"))
    with pytest.raises(BadInputError, match="row 2"):
        read(path, features)
    _, _, found = parts(path, features, tolerates_bad_rows=True, max_record_bytes=1000)
    assert [row for p in found for row in p.batch.column("a").to_pylist()] == [1, 5]
    rejected = [r for p in found for r in p.rejected]
    assert [r.position for r in rejected] == ["row 2", "row 3", "row 4"]
    assert "not UTF-8" in rejected[0].reason
    assert "expected int8, got 300" in rejected[1].reason
    assert "too large" in rejected[2].reason
    assert rejected[0].raw == b'{"a":2,"s":{"base64":"//4="}}'
    assert rejected[1].raw == b'{"a":300,"s":"ok"}'


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
def test_damage_anywhere_is_an_error_or_loses_no_row(tmp_path, stream):
    columns = {"a": list(range(300)), "s": [f"v{i % 7}" for i in range(300)], "l": [[i] * (i % 3) for i in range(300)]}
    columns["d"] = pa.array(columns["s"]).dictionary_encode()
    raw = write(tmp_path / "a", pa.table(columns), stream=stream, rows=100, compression="lz4").read_bytes()
    rng = random.Random(0)
    path = tmp_path / "b"
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            _, _, found = parts(path, tolerates_bad_rows=rng.random() < 0.5)
        except (BadInputError, UsageError):
            continue
        assert sum(p.batch.num_rows + len(p.rejected) for p in found) == 300
