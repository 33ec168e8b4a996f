"""TFRecords that are damaged, and records that do not fit."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from shardkit.encoding.tfrecord import frame, masked_crc32c
from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.tfrecord.blocks import is_record_header
from shardkit.sources.tfrecord.source import TfrecordSource
from shardkit.units import KiB
from tests.support.files.tfrecord_makers import example, fails, field, read, sequence, write


def damaged(records, index: int, byte: int) -> tuple[bytes, int]:
    """Returns frames with one byte of one record changed, and where its frame starts."""
    start = sum(len(frame(r)) for r in records[:index])
    data = bytearray(b"".join(map(frame, records)))
    data[start + byte] ^= 1
    return bytes(data), start


def test_damaged_record_is_one_bad_row(tmp_path):
    records = [example(n=i, s="abc") for i in range(10)]
    data, start = damaged(records, 4, 15)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    message = fails(path)
    assert f"a.tfrecord, row 5, byte {start}" in message
    assert "CRC32C" in message
    for block_bytes in (10**6, 60):
        _, rows, (bad,) = read(path, source=TfrecordSource(batch_bytes=block_bytes), tolerates_bad_rows=True)
        assert [r["n"] for r in rows] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert (bad.position, bad.first_byte) == ("row 5", start)
        assert bad.raw == data[start + 12 : start + 12 + len(records[4])]


@pytest.mark.parametrize("byte", [0, 3, 7, 8, 11])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_damaged_length_loses_the_rest(tmp_path, byte, pack):
    data, start = damaged([example(n=i) for i in range(10)], 4, byte)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(pack(data))
    for tolerates in (False, True):
        message = fails(path, kind=DamagedFileError, tolerates_bad_rows=tolerates)
        assert f"byte {start}" in message


@pytest.mark.full
@pytest.mark.parametrize(
    ("pack", "unpacked"),
    [
        (bytes, bytes),
        (gzip.compress, lambda data: zlib.decompressobj(31).decompress(data)),
        (zlib.compress, lambda data: zlib.decompressobj().decompress(data)),
    ],
    ids=["plain", "gzip", "zlib"],
)
def test_every_cut_is_found(tmp_path, pack, unpacked):
    records = [example(n=i, s="abc") for i in range(6)]
    ends = {0, *np.cumsum([len(frame(r)) for r in records]).tolist()}
    data = pack(b"".join(map(frame, records)))
    path = write(tmp_path, records, pack=pack)
    files = list_inputs([str(path)]).files
    known = TfrecordSource().infer(files, SourceOptions())
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        if pack is bytes and length in ends:
            assert len(read(path)[1]) < 6
            continue
        assert "cut off" in fails(path, features=known, kind=BadInputError) or length < 20
        # The whole records are rows where bad ones are tolerated.
        num_whole = sum(0 < end <= len(unpacked(data[:length])) for end in ends)
        if num_whole:
            _, rows, (bad,) = read(path, features=known, tolerates_bad_rows=True)
            assert [row["n"] for row in rows] == list(range(num_whole))
            assert bad.first_byte == sorted(ends)[num_whole]
        else:
            assert "cut off" in fails(path, features=known, kind=BadInputError, tolerates_bad_rows=True) or length < 20


@pytest.mark.parametrize("block_bytes", [10**6, 60])
@pytest.mark.parametrize("num_left", [1, 11, 12, 20, 30])
def test_of_a_file_that_is_cut_off_the_whole_records_are_rows(tmp_path, num_left, block_bytes):
    frames = [frame(example(n=i, s="abc")) for i in range(6)]
    start = sum(map(len, frames[:4]))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(frames)[: start + num_left])
    assert f"a record is cut off in a.tfrecord, byte {start}" in fails(path, kind=DamagedFileError)
    _, rows, (bad,) = read(path, source=TfrecordSource(batch_bytes=block_bytes), tolerates_bad_rows=True)
    assert [r["n"] for r in rows] == [0, 1, 2, 3]
    assert (bad.position, bad.first_byte, bad.raw) == (f"row 5, byte {start:,}", start, frames[4][:num_left])
    assert f"a record is cut off: only {num_left} bytes are left" in bad.reason


@pytest.mark.parametrize("is_read_ahead", [False, True])
def test_of_a_gzip_file_that_is_cut_off_the_whole_records_are_rows(tmp_path, is_read_ahead):
    """What was inflated before the cut is read, also where it is more than a thread reads at once."""
    size = 40_000 if is_read_ahead else 10
    frames = [frame(example(n=i, s=random.Random(i).randbytes(size).hex())) for i in range(60)]
    path = tmp_path / "a.tfrecord.gz"
    packed = gzip.compress(b"".join(frames))[: -len(frames[0])]
    path.write_bytes(packed)
    inflated = len(zlib.decompressobj(31).decompress(packed))
    ends = np.cumsum(list(map(len, frames)))
    num_whole = int(np.searchsorted(ends, inflated, side="right"))
    assert 0 < num_whole < 60
    start = int(ends[num_whole - 1])
    assert f"the gzip file is cut off in a.tfrecord.gz, uncompressed byte {start:,}" in fails(path)
    _, rows, (bad,) = read(path, tolerates_bad_rows=True)
    assert [r["n"] for r in rows] == list(range(num_whole))
    assert bad.position == f"row {num_whole + 1}, uncompressed byte {start:,}"
    assert f"the gzip file is cut off: only {inflated - start:,} bytes are left" in bad.reason


@pytest.mark.parametrize(
    ("kind", "pack", "unpack"),
    [
        ("bz2", lambda data: bz2.compress(data, 1), lambda data: bz2.BZ2Decompressor().decompress(data)),
        ("xz", lzma.compress, lambda data: lzma.LZMADecompressor().decompress(data)),
        ("zstd", lambda data: pa.compress(data, "zstd", asbytes=True), None),
    ],
)
def test_of_other_files_that_are_cut_off_the_whole_records_are_rows(tmp_path, kind, pack, unpack):
    frames = [frame(example(n=i, s=random.Random(i).randbytes(4_000).hex())) for i in range(60)]
    path = tmp_path / f"a.tfrecord.{kind.replace('zstd', 'zst')}"
    packed = pack(b"".join(frames))
    path.write_bytes(packed[: len(packed) * 2 // 3])
    # Each block of zstd holds 128 KiB, and the third one is cut off.
    inflated = 2 * 128 * KiB if unpack is None else len(unpack(path.read_bytes()))
    ends = np.cumsum(list(map(len, frames)))
    num_whole = int(np.searchsorted(ends, inflated, side="right"))
    start = int(ends[num_whole - 1])
    assert f"the {kind} file is cut off in {path.name}, uncompressed byte {start:,}" in fails(path)
    _, rows, (bad,) = read(path, tolerates_bad_rows=True)
    assert [r["n"] for r in rows] == list(range(num_whole))
    assert bad.position == f"row {num_whole + 1}, uncompressed byte {start:,}"
    assert f"the {kind} file is cut off: only {inflated - start:,} bytes are left" in bad.reason


@pytest.mark.parametrize("num_left", [10, 7, 0])
def test_a_gzip_file_without_its_end_gives_all_records_and_a_rejected_row(tmp_path, num_left):
    """Of the 8 bytes of the trailer some are missing, or of the deflate stream its last bits."""
    records = [example(n=i, s="abc") for i in range(60)]
    packed = gzip.compress(b"".join(map(frame, records)))
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(packed[: len(packed) - 8 + num_left] if num_left < 8 else packed[:-8])
    _, rows, (bad,) = read(path, tolerates_bad_rows=True)
    assert [r["n"] for r in rows] == list(range(60))
    assert "the gzip file is cut off: it ends behind a whole record" in bad.reason


@pytest.mark.full
def test_a_turned_bit_of_a_gzip_file_is_never_a_row(tmp_path):
    """Rows are those of the file; or it is rejected as a whole, as what was inflated of it cannot be trusted."""
    records = [example(n=i, s=random.Random(i).randbytes(20).hex()) for i in range(40)]
    wanted = [{"n": i, "s": random.Random(i).randbytes(20).hex()} for i in range(40)]
    path = write(tmp_path, records, "a.tfrecord.gz", gzip.compress)
    known = TfrecordSource().infer(list_inputs([str(path)]).files, SourceOptions())
    whole = path.read_bytes()
    for byte in range(10, len(whole), 7):
        damaged_file = bytearray(whole)
        damaged_file[byte] ^= 1 << byte % 8
        path.write_bytes(damaged_file)
        try:
            _, rows, rejected = read(path, features=known, tolerates_bad_rows=True)
        except BadInputError:
            continue
        assert all(row in wanted for row in rows)
        assert rejected or rows == wanted, "bits that fill the last byte change nothing"


def test_lengths_that_nobody_wrote(tmp_path):
    for length in (2**40, 2**63, 2**64 - 1, 300 * 2**20):
        raw = struct.pack("<Q", length)
        header = raw + struct.pack("<I", masked_crc32c(raw))
        for pack in (bytes, gzip.compress):
            path = tmp_path / "a.tfrecord"
            path.write_bytes(pack(frame(example(n=1)) + header + b"abc"))
            assert "cut off" in fails(path, kind=DamagedFileError)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_record_that_is_too_large(tmp_path, pack):
    records = [example(n=1, s="a"), example(n=2, s="b" * 50_000), example(n=3, s="c")]
    path = write(tmp_path, records, pack=pack)
    assert "4.00 KiB" in fails(path, max_record_bytes=4096)
    source = TfrecordSource(batch_bytes=1000)
    _, rows, (bad,) = read(path, source=source, max_record_bytes=4096, tolerates_bad_rows=True)
    assert [r["n"] for r in rows] == [1, 3]
    assert records[1].startswith(bad.raw)
    assert bad.position == "row 2"
    _, rows, _ = read(path, source=source)
    assert [len(r["s"]) for r in rows] == [1, 50_000, 1]


BAD_RECORDS = [
    (example(n=1.5, s="a"), "expected int64 values, got float values"),
    (example(n=[1, 2], s="a"), "expected int64, got 2 values"),
    (example(s="a"), "'n' is absent"),
    (example(n=1, s="a", new=3), "'new' is no column"),
    (example(n=1, s=b"\xff"), "not UTF-8"),
    (b"\x09" + bytes(8), "fields that neither an Example"),
    (b"just some text", "fields that neither an Example"),
    (example(n=1, s="a")[:-2], "cut off inside"),
    (field(1, b"\x0a\x7f"), "does not parse"),
    (sequence({"n": 1, "s": "a"}, steps=[1, 2]), "feature list 'steps' is no column"),
    (b"", "'n' is absent"),
]


@pytest.mark.parametrize(("record", "why"), BAD_RECORDS)
def test_records_that_do_not_fit(tmp_path, record, why):
    good = [example(n=i, s="é") for i in range(4)]
    files = list_inputs([str(write(tmp_path, good))]).files
    known = TfrecordSource().infer(files, SourceOptions())
    path = write(tmp_path, [*good[:2], record, *good[2:]], "b.tfrecord")
    message = fails(path, features=known)
    assert why in message
    assert "b.tfrecord, row 3, byte" in message
    _, rows, (bad,) = read(path, features=known, tolerates_bad_rows=True)
    assert [r["n"] for r in rows] == [0, 1, 2, 3]
    assert (bad.raw, bad.position) == (record, "row 3")
    assert why in bad.reason


def test_row_numbers_count_from_the_start_of_the_file(tmp_path):
    records = [example(n=i, s="abc") for i in range(300)]
    records[250] = example(n=250, s=b"\xff")
    path = write(tmp_path, records)
    known = (make_feature("n", "int64"), make_feature("s", "string"))
    source = TfrecordSource(split_bytes=800, batch_bytes=200)
    _, rows, (bad,) = read(path, source=source, features=known, tolerates_bad_rows=True)
    assert len(rows) == 299
    assert bad.position == "row 251"
    assert bad.first_byte == sum(len(frame(r)) for r in records[:250])


def test_many_bad_rows_are_all_counted(tmp_path):
    records = [example(n=i, s=b"\xff" if i % 3 == 0 else b"ok") for i in range(3000)]
    records[1::7] = [b"\x09" + bytes(8)] * len(records[1::7])
    known = (make_feature("n", "int64"), make_feature("s", "string"))
    _, rows, rejected = read(write(tmp_path, records), features=known, tolerates_bad_rows=True)
    assert len(rows) + len(rejected) == 3000
    expected = [i for i in range(3000) if i % 3 and i % 7 != 1]
    assert [r["n"] for r in rows] == expected


def test_sequences_that_do_not_fit(tmp_path):
    good = sequence({"id": 1}, pairs=[[1, 2]])
    known = (make_feature("id", "int64"), make_feature("pairs", "int64", (None,)))
    for bad, why in [
        (sequence({"id": 1}, pairs=[[1, 2], [3]]), "2 values a step"),
        (sequence({"id": 1}, pairs=[[1.5, 2.5]]), "expected int64 values"),
        (sequence({"id": 1}), "'pairs' is absent"),
        (sequence({"id": 1}, pairs=[[1, 2]], more=[1]), "'more' is no column"),
        (sequence({"id": "a"}, pairs=[[1, 2]]), "expected int64 values"),
        (good + b"\x19" + bytes(8), "neither an Example"),
    ]:
        path = write(tmp_path, [good, bad, good])
        assert why in fails(path, features=known)
        _, rows, rejected = read(path, features=known, tolerates_bad_rows=True)
        assert (len(rows), len(rejected)) == (2, 1)


def test_sequences_that_have_no_place_in_an_example(tmp_path):
    path = write(tmp_path, [sequence({}, steps=[[1], [2, 3]])])
    assert "steps of different sizes" in fails(path, kind=UsageError)
    path = write(tmp_path, [sequence({"a": 1}, a=[1, 2])])
    assert "both a feature of the context" in fails(path, kind=UsageError)


def test_files_that_differ(tmp_path):
    a = write(tmp_path, [example(n=1, s="x")], "a.tfrecord")
    message = fails(a, write(tmp_path, [example(n=1.5, s="x")], "b.tfrecord"), kind=UsageError)
    assert "'n' is int64 in a.tfrecord and float in b.tfrecord" in message
    assert "only in" in fails(a, write(tmp_path, [example(z=1.5)], "b.tfrecord"), kind=UsageError)
    b = write(tmp_path, [example(n=5)], "b.tfrecord")
    files = list_inputs([str(a), str(b)]).files
    assert "'s'" in TfrecordSource().notes(files, SourceOptions())[0]
    assert [r["s"] for r in read(a, b)[1]] == ["x", None]


def test_nothing_to_read(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"")
    assert "there are no rows" in fails(tmp_path / "a.tfrecord")
    assert "holds no TFRecords" in fails(write_raw(tmp_path, b"x" * 100), kind=DamagedFileError)
    assert "no features" in fails(write(tmp_path, [b"", b"\x0a\x00"]))
    assert read(write(tmp_path, [example(n=1)]), write_raw(tmp_path, b""))[1] == [{"n": 1}]
    assert not is_record_header(b"")


def write_raw(folder: Path, data: bytes) -> Path:
    path = folder / "raw.tfrecord"
    path.write_bytes(data)
    return path


@pytest.mark.full
@pytest.mark.parametrize("pack", [lambda d: gzip.compress(d, 6), zlib.compress])
def test_expansion_is_capped(tmp_path, pack):
    path = write(tmp_path, [example(n=1, s="x" * 10_000)] * 10_000, pack=pack)
    (file,) = list_inputs([str(path)]).files
    for cap, is_read in ((2, False), (1000, True)):
        files = (msgspec.structs.replace(file, max_expansion=cap),)
        source, options = TfrecordSource(), SourceOptions()
        known = source.infer(files, options)
        (split,) = source.split(files, options)
        if is_read:
            assert sum(p.batch.num_rows for p in source.read(split, files, known, options)) == 10_000
        else:
            with pytest.raises(DamagedFileError, match="--max-expansion"):
                list(source.read(split, files, known, options))


@pytest.mark.full
def test_mutations_never_lose_rows(tmp_path):
    rng = random.Random(0)
    records = [example(n=i, s=f"text {i}", v=[1] * (i % 4)) for i in range(40)]
    good = b"".join(map(frame, records))
    path = write(tmp_path, records)
    known = TfrecordSource().infer(list_inputs([str(path)]).files, SourceOptions())
    outcomes = {"whole": 0, "refused": 0}
    for _ in range(400):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])
        try:
            _, rows, rejected = read(path, features=known, tolerates_bad_rows=True)
        except ShardkitError:
            outcomes["refused"] += 1
            continue
        numbers = [r["n"] for r in rows]
        assert numbers == sorted(numbers)
        assert len(rows) + len(rejected) == 40 or path.stat().st_size < len(good)
        outcomes["whole"] += 1
    assert min(outcomes.values()) > 20
