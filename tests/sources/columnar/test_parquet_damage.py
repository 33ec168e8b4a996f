"""Parquet files that are damaged, and rows that do not fit."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.columnar.parquet import ParquetSource
from tests.support.examples import draws
from tests.support.files.parquet_makers import read, read_parts, write


def test_flipped_bits_under_a_checksum_are_damage(tmp_path):
    path = write(tmp_path, {"a": np.random.default_rng(0).random(10_000)}, write_page_checksum=True, compression="none")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(BadInputError, match="cut off or damaged"):
        read(path)


@pytest.mark.full
def test_damage_anywhere_is_an_error_or_does_no_harm(tmp_path):
    columns = {"a": list(range(300)), "s": [f"v{i % 7}" for i in range(300)], "l": [[i] * (i % 3) for i in range(300)]}
    good = pa.table(columns)
    raw = write(tmp_path, good).read_bytes()
    rng = random.Random(0)
    path = tmp_path / "b.parquet"
    for _ in range(150):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged) - 8)] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            features, found = read(path)
        except (BadInputError, UsageError):
            continue
        assert found.num_rows == 300
        assert len(features) == 3


def test_text_that_is_no_utf8_is_named_by_row(tmp_path):
    column = pa.array([b"ok", b"\xff\xfe", b"ok"]).view(pa.string())
    with pytest.raises(BadInputError) as caught:
        read(write(tmp_path, {"a": column}))
    assert "row 2" in str(caught.value)
    assert "not UTF-8" in str(caught.value)


@pytest.mark.parametrize(
    ("feature", "values", "parts"),
    [
        (make_feature("a", "int8"), [1, 2, 300], ["row 3", "'a'", "expected int8, got 300"]),
        (make_feature("a", "int64"), [1, None], ["row 2", "got null"]),
        (make_feature("a", "int64", vocabulary=("x", "y")), ["y", "z"], ["row 2", "one of 'x', 'y', got 'z'"]),
        (make_feature("a", "int64", vocabulary=("x", "y")), [1, 2], ["row 2", "an index below 2, got 2"]),
        (make_feature("a", "float32", (2,)), [[1, 2], [1]], ["row 2", "expected float32[2], got 1 values"]),
        (make_feature("a", "float32", (None,)), [[1], [2, None]], ["row 2", "null"]),
        (make_feature("a", "float32"), [1.0, 1e300], ["row 2", "1e+300"]),
    ],
)
def test_rows_that_do_not_fit_what_is_declared(tmp_path, feature, values, parts):
    with pytest.raises(BadInputError) as caught:
        read(write(tmp_path, {"a": values}, row_group_size=1), features=(feature,))
    for part in parts:
        assert part in str(caught.value)


def test_a_row_beyond_the_limit_is_refused(tmp_path):
    with pytest.raises(BadInputError) as caught:
        read(write(tmp_path, {"a": ["x", "y" * 5000]}), max_record_bytes=1000)
    assert "row 2" in str(caught.value)


@pytest.mark.full
@given(
    bad=st.sets(st.integers(0, 199), max_size=60),
    kinds=st.lists(st.sampled_from(["null", "range", "utf8", "items"]), min_size=1, max_size=60),
    group_rows=st.integers(20, 200),
    batch_bytes=st.integers(300, 10_000),
)
@settings(max_examples=draws(40), deadline=None)
def test_bad_rows_are_set_aside_and_all_others_kept(tmp_path_factory, bad, kinds, group_rows, batch_bytes):
    ids, numbers = list(range(200)), [i % 100 for i in range(200)]
    texts, lists = [b"ok"] * 200, [[i, i] for i in range(200)]
    for row, kind in zip(sorted(bad), kinds * 60, strict=False):
        if kind == "null":
            numbers[row] = None
        elif kind == "range":
            numbers[row] = 128 + row
        elif kind == "utf8":
            texts[row] = b"\xc3"
        else:
            lists[row] = [row]
    table = {"id": ids, "n": numbers, "s": pa.array(texts).view(pa.string()), "l": lists}
    path = write(tmp_path_factory.mktemp("a"), table, row_group_size=group_rows)
    features = (
        make_feature("id", "int64"),
        make_feature("n", "int8"),
        make_feature("s", "string"),
        make_feature("l", "int64", (2,)),
    )
    found = read_parts(path, features, ParquetSource(split_bytes=1, batch_bytes=batch_bytes), tolerates_bad_rows=True)
    kept = [row for p in found for row in p.batch.to_pylist()]
    assert [row["id"] for row in kept] == [i for i in ids if i not in bad]
    assert all(row["n"] == row["id"] % 100 and row["l"] == [row["id"]] * 2 for row in kept)
    rejected = [r for p in found for r in p.rejected]
    assert [r.position for r in rejected] == [f"row {row + 1}" for row in sorted(bad)]
    assert [json.loads(r.raw)["id"] for r in rejected] == sorted(bad)
    strict = read_parts(path, (features[0],), ParquetSource(split_bytes=1, batch_bytes=batch_bytes))
    identities = np.concatenate([p.identities for p in strict])
    assert (
        np.concatenate([p.identities for p in found]).tolist() == identities[[i for i in ids if i not in bad]].tolist()
    )


def test_the_error_names_the_first_bad_row(tmp_path):
    path = write(tmp_path, {"a": [1, 2, None, 300], "b": [1, 300, 1, 1]})
    features = (make_feature("a", "int8"), make_feature("b", "int8"))
    with pytest.raises(BadInputError, match=r"column 'b' does not fit in a\.parquet, row 2: expected int8, got 300"):
        read_parts(path, features)


def test_rejected_rows_are_whole_and_readable(tmp_path):
    table = {
        "n": [None],
        "f": [float("nan")],
        "b": [b"\xff\0"],
        "d": pa.array(["1.50"]).cast(pa.decimal128(5, 2)),
        "t": pa.array([1], pa.timestamp("ns", "UTC")),
        "l": [[1, 2]],
        "st": [{"x": {"y": "z"}}],
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    }
    (part,) = read_parts(write(tmp_path, table), (make_feature("n", "int64"),), tolerates_bad_rows=True)
    assert part.batch.num_rows == 0
    row = json.loads(part.rejected[0].raw)
    assert row | {"t": "", "m": ""} == {
        "n": None,
        "f": "nan",
        "b": {"base64": "/wA="},
        "d": "1.50",
        "t": "",
        "l": [1, 2],
        "st": {"x": {"y": "z"}},
        "m": "",
    }
    assert row["t"].startswith("1970-01-01 00:00:00.000000001")


def test_rows_beyond_the_limit_are_set_aside_with_their_start(tmp_path):
    path = write(tmp_path, {"a": ["x", "y" * 3_000_000, "z"]})
    found = read_parts(path, tolerates_bad_rows=True, max_record_bytes=2_000_000)
    assert [v for p in found for v in p.batch.column(0).to_pylist()] == ["x", "z"]
    (rejected,) = [r for p in found for r in p.rejected]
    assert rejected.position == "row 2"
    assert rejected.raw.startswith(b'{"a":"yyy')
    assert len(rejected.raw) <= 2**20


@pytest.mark.full
def test_every_other_row_may_be_bad(tmp_path):
    num_rows = 20_000
    path = write(tmp_path, {"a": [f"{i}" if i % 2 else "x" for i in range(num_rows)]})
    found = read_parts(path, (make_feature("a", "int64"),), tolerates_bad_rows=True)
    assert sum(len(p.rejected) for p in found) == num_rows // 2
    assert sum(p.batch.num_rows for p in found) == num_rows // 2


@pytest.mark.parametrize("content", [b"PAR1PAR1", b"PAR1" + b"\0" * 100, b"PAR1\x15\0PAR1", b"PAR1\0\0\0\xffPAR1"])
def test_files_without_a_footer_are_damaged_as_a_whole(tmp_path, content):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"in a\.parquet"):
        read_parts(path, tolerates_bad_rows=True)


def test_decimals_of_too_many_digits_are_set_aside(tmp_path):
    column = pa.array([1, 10**9, 2]).cast(pa.decimal128(19, 0))
    buffers = [None, column.buffers()[1]]
    path = write(tmp_path, {"a": pa.Array.from_buffers(pa.decimal128(5, 0), 3, buffers)})
    (part,) = read_parts(path, tolerates_bad_rows=True)
    assert [str(v) for v in part.batch.column(0).to_pylist()] == ["1", "2"]
    assert [r.position for r in part.rejected] == ["row 2"]


def test_damage_is_an_error_even_where_bad_rows_are_tolerated(tmp_path):
    path = write(tmp_path, {"a": np.random.default_rng(0).random(10_000)}, write_page_checksum=True, compression="none")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(DamagedFileError, match="cut off or damaged"):
        read_parts(path, tolerates_bad_rows=True)


def test_a_footer_that_counts_rows_wrongly_is_damage(tmp_path):
    path = write(tmp_path, {"a": list(range(7777))}, compression="none")
    raw = path.read_bytes()
    # Numbers of rows of the group and of the file; the values of the page are as many as before.
    count = b"\x16\xc2\x79"
    assert raw.count(count) >= 2
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    path.write_bytes(raw[:footer] + raw[footer:].replace(count, b"\x16\xc4\x79"))
    with pytest.raises(DamagedFileError, match=r"7778|damaged"):
        read_parts(path, tolerates_bad_rows=True)


def test_a_footer_whose_counts_of_rows_differ_is_damage(tmp_path):
    path = write(tmp_path, {"a": list(range(7777))}, compression="none", row_group_size=7776)
    raw = path.read_bytes()
    # The second row group would be read as empty.
    last = raw.rindex(b"\x16\x02")
    path.write_bytes(raw[:last] + b"\x16\x00" + raw[last + 2 :])
    with pytest.raises(DamagedFileError, match="counts its rows in two ways"):
        read_parts(path, tolerates_bad_rows=True)


def test_an_unknown_compression_is_named_before_reading(tmp_path):
    path = write(tmp_path, {"a": list(range(100))}, compression="snappy")
    raw = path.read_bytes()
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    # Field 4 of ColumnMetaData, after a list of strings: SNAPPY is 1, LZO is 3.
    codec = b"\x18\x01a\x15\x02"
    path.write_bytes(raw[:footer] + raw[footer:].replace(codec, b"\x18\x01a\x15\x06"))
    assert path.read_bytes() != raw
    with pytest.raises(DamagedFileError, match=r"not read in a\.parquet: LZO"):
        ParquetSource().infer(list_inputs([str(path)]).files, SourceOptions())
