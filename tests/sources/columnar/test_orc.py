"""ORC files read as pyarrow reads them, a stripe or many at a time; damage is named."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pytest

from shardkit.errors import BadInputError, DamagedFileError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.columnar.orc import OrcSource
from shardkit.sources.columnar.orc_footer import read_tail
from tests.support.files.source_makers import parts_of, table_of

NUM_ROWS = 3000
LONG, LIST, UNION = 4, 10, 13  # Kinds of types.
TABLE = pa.table(
    {
        "i": pa.array(range(NUM_ROWS)),
        "b": pa.array([i % 3 == 0 if i % 7 else None for i in range(NUM_ROWS)]),
        "f": pa.array([i / 3 for i in range(NUM_ROWS)], pa.float32()),
        "s": pa.array([f"v{i % 100}" if i % 7 else None for i in range(NUM_ROWS)]),
        "by": pa.array([b"\xff" * (i % 3) for i in range(NUM_ROWS)]),
        "list": pa.array([[i] * (i % 3) for i in range(NUM_ROWS)]),
        "st": pa.array([{"x": i, "y": {"z": "q"}} if i % 5 else None for i in range(NUM_ROWS)]),
        "ts": pa.array(range(NUM_ROWS), pa.timestamp("ns")),
        "day": pa.array([i % 50 for i in range(NUM_ROWS)], pa.date32()),
        "dec": pa.array([f"{i}.25" for i in range(NUM_ROWS)]).cast(pa.decimal128(10, 2)),
    }
)


def write(path: Path, table: pa.Table = TABLE, **settings) -> Path:
    orc.write_table(table, str(path), **{"stripe_size": 20_000, "batch_size": 100, **settings})
    return path


def parts(path: Path, features=None, source=None, **options):
    return parts_of(source or OrcSource(), path, features=features, **options)


def read(path: Path, features=None, source=None, **options):
    return table_of(source or OrcSource(), path, features=features, **options)


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_every_compression_and_type_reads_as_pyarrow_reads_it(tmp_path, compression):
    path = write(tmp_path / "a.orc", compression=compression)
    source = OrcSource(split_bytes=1, batch_bytes=20_000)
    features, splits, found = parts(path, source=source)
    assert len(splits) == orc.ORCFile(path).nstripes
    table = pa.Table.from_batches([p.batch for p in found], schema=arrow_schema(features))
    wanted = orc.read_table(path).flatten().flatten()
    assert table.num_rows == NUM_ROWS
    for column, other in zip(table.columns, wanted.columns, strict=True):
        assert column.to_pylist() == other.to_pylist()
    assert max(p.batch.nbytes for p in found) < 60_000
    identities = np.concatenate([p.identities for p in found]).tolist()
    assert len(set(identities)) == NUM_ROWS
    nullable = {f.name for f in features if f.nullable}
    assert nullable == {"b", "s", "st/x", "st/y/z"}


@pytest.mark.full
def test_repeated_values_do_not_fill_the_memory(tmp_path):
    path = write(
        tmp_path / "a.orc", pa.table({"a": pa.array(["x" * 100_000, "y" * 100_000] * 500)}), compression="zstd"
    )
    _, _, found = parts(path)
    assert sum(p.batch.num_rows for p in found) == 1000
    assert max(p.batch.nbytes for p in found) < 16 * 2**20


def test_a_map_is_json(tmp_path):
    table = pa.table({"fine": [1], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    features, found = read(write(tmp_path / "a.orc", table))
    assert [f.describe_type() for f in features] == ["int64", "json"]
    assert found.to_pylist() == [{"fine": 1, "m": '{"k":1}'}]


@pytest.mark.full
def test_damage_in_the_footer_is_an_error_or_loses_no_row(tmp_path):
    raw = write(tmp_path / "a.orc", compression="uncompressed").read_bytes()
    path = tmp_path / "b.orc"
    with (tmp_path / "a.orc").open("rb") as file:
        start = read_tail(file, len(raw)).content_bytes
    rng = random.Random(0)
    for _ in range(80):
        damaged = bytearray(raw)
        damaged[rng.randrange(start, len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            _, _, found = parts(path, tolerates_bad_rows=True)
        except (BadInputError, UsageError):
            continue
        assert sum(p.batch.num_rows + len(p.rejected) for p in found) == NUM_ROWS


def test_a_footer_that_counts_rows_wrongly_is_damage(tmp_path):
    path = write(tmp_path / "a.orc", pa.table({"a": list(range(777))}), compression="uncompressed")
    raw = path.read_bytes()
    count = b"\x30" + bytes([777 & 127 | 128, 777 >> 7])
    assert raw.count(count) == 1
    path.write_bytes(raw.replace(count, b"\x30" + bytes([776 & 127 | 128, 776 >> 7])))
    with pytest.raises(DamagedFileError, match="its footer says 776 rows, its stripes 777"):
        read(path)


def nest(types, depth: int) -> None:
    del types[1:]
    for number in range(1, depth + 1):
        types.add(kind=LIST).subtypes.append(number + 1)
    types.add(kind=LONG)


def share_children(types) -> None:
    nest(types, 60)
    for number in range(1, 60):
        types[number].kind = UNION
        types[number].subtypes.append(number + 2)


def make_precision_too_large(types) -> None:
    types[1].precision = 74


@pytest.mark.parametrize("edit", [lambda types: nest(types, 100_000), share_children, make_precision_too_large])
def test_types_that_bring_arrow_down_are_damage(tmp_path, edit):
    raw = write(tmp_path / "a.orc", pa.table({"a": [1]}), compression="uncompressed").read_bytes()
    tail = read_tail(io.BytesIO(raw), len(raw))
    edit(tail.footer.types)
    footer, post_script = tail.footer.SerializeToString(), tail.post_script
    post_script.footer_bytes = len(footer)
    post_script.metadata_bytes = post_script.stripe_statistics_bytes = 0
    end = post_script.SerializeToString()
    (tmp_path / "b.orc").write_bytes(raw[: tail.content_bytes] + footer + end + bytes([len(end)]))
    with pytest.raises(DamagedFileError, match="its types are damaged"):
        read(tmp_path / "b.orc")


def test_bad_rows_are_set_aside_and_all_others_kept(tmp_path):
    texts = pa.array([b"ok", b"\xff\xfe", b"ok", b"ok"]).view(pa.string())
    path = write(tmp_path / "a.orc", pa.table({"a": [1, 2, 300, None], "s": texts}))
    features = (make_feature("a", "int8"), make_feature("s", "string"))
    with pytest.raises(BadInputError, match="row 2"):
        read(path, features)
    _, _, found = parts(path, features, tolerates_bad_rows=True)
    assert [row for p in found for row in p.batch.column("a").to_pylist()] == [1]
    rejected = [r for p in found for r in p.rejected]
    assert [r.position for r in rejected] == ["row 2", "row 3", "row 4"]
    assert [r.raw for r in rejected] == [
        b'{"a":2,"s":{"base64":"//4="}}',
        b'{"a":300,"s":"ok"}',
        b'{"a":null,"s":"ok"}',
    ]


def test_row_numbers_count_from_the_start_of_the_file(tmp_path):
    path = write(tmp_path / "a.orc", compression="uncompressed")
    features = (make_feature("i", "int64"), make_feature("b", "bool", nullable=True), make_feature("s", "string"))
    _, splits, found = parts(path, features, OrcSource(split_bytes=1), tolerates_bad_rows=True)
    assert len(splits) > 3
    assert [r.position for p in found for r in p.rejected] == [f"row {i + 1}" for i in range(0, NUM_ROWS, 7)]


def test_its_files_are_recognized(tmp_path):
    head = write(tmp_path / "a.orc").read_bytes()[:4096]
    assert OrcSource().recognizes(head, "a.orc")
    assert OrcSource().recognizes(head, "part-0")
    assert not OrcSource().recognizes(b"ORC,price\n1,2\n", "a.csv")


@pytest.mark.parametrize(
    ("num_left", "kind"), [(10, MemoryError), (10**12, DamagedFileError), (None, DamagedFileError)]
)
def test_too_much_at_once_is_of_memory_if_a_sound_file_may_ask_for_more_than_is_left(
    tmp_path, monkeypatch, num_left, kind
):
    def fail(*arguments):
        raise OSError("std::bad_alloc")

    path = write(tmp_path / "a.orc")
    features, *_ = parts(path)
    monkeypatch.setattr("shardkit.sources.columnar.orc._batches", fail)
    monkeypatch.setattr("shardkit.sources.columnar.source.bytes_left", lambda: num_left)
    with pytest.raises(kind) as caught:
        read(path, features)
    assert "a.orc" in f"{caught.value} {getattr(caught.value, '__notes__', ())}"
