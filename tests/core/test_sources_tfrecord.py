"""TFRecords of Examples and SequenceExamples: what comes out, what is refused, and where damage is."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.tfrecord_blocks import find_records, is_record_header
from shardkit.sources.tfrecord_files import TfrecordSource
from shardkit.tfrecord import frame, masked_crc32c

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")

JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values) -> bytes:
    """Returns a feature as its writers write it; None is one without a kind."""
    if values is None:
        return b""
    values = values if isinstance(values, list) else [values]
    if values and isinstance(values[0], (bytes, str)):
        return field(1, b"".join(field(1, v.encode() if isinstance(v, str) else v) for v in values))
    if values and isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(3, field(1, b"".join(varint(v % 2**64) for v in values)))


def features(row: dict) -> bytes:
    return b"".join(field(1, field(1, k.encode()) + field(2, feature(v))) for k, v in row.items())


def example(**row) -> bytes:
    return field(1, features(row))


def sequence(context: dict, **lists) -> bytes:
    entries = (
        field(1, field(1, k.encode()) + field(2, b"".join(field(1, feature(s)) for s in v))) for k, v in lists.items()
    )
    return field(1, features(context)) + field(2, b"".join(entries))


def write(folder: Path, records, name: str = "a.tfrecord", pack=bytes) -> Path:
    path = folder / name
    path.write_bytes(pack(b"".join(map(frame, records))))
    return path


def read(*inputs: Path, source=None, features=None, **options):
    """Returns features by name, rows, and what was rejected."""
    source, settings_ = source or TfrecordSource(), SourceOptions(**options)
    files = list_inputs([str(p) for p in inputs]).files
    features = features or source.infer(files, settings_)
    rows, rejected, identities = [], [], []
    for split in source.split(files, settings_):
        for part in source.read(split, files, features, settings_):
            part.batch.validate(full=True)
            assert [c.type for c in part.batch.columns] == [f.arrow_type for f in features]
            assert len(part.identities) == part.batch.num_rows
            rows += part.batch.to_pylist()
            rejected += part.rejected
            identities += part.identities.tolist()
    assert len(set(identities)) == len(rows)
    return {f.name: f for f in features}, rows, rejected


def fails(*inputs: Path, kind=BadInputError, **options) -> str:
    with pytest.raises(kind) as caught:
        read(*inputs, **options)
    return str(caught.value)


ROWS = [
    {"n": 1, "x": [0.5], "name": "één", "v": [1, 2], "raw": b"\xff\0"},
    {"n": -5, "x": [1.5], "name": "", "v": [3, 4], "raw": b"", "maybe": [7]},
    {"n": 2**63 - 1, "x": [-2.0], "name": "z", "v": [5, -6], "raw": b"abc", "many": ["a", "b"]},
]


def test_kinds_shapes_and_nulls(tmp_path):
    found, rows, rejected = read(write(tmp_path, [example(**r) for r in ROWS]))
    assert {n: (f.dtype, f.shape, f.nullable) for n, f in found.items()} == {
        "many": ("string", (2,), True),
        "maybe": ("int64", (), True),
        "n": ("int64", (), False),
        "name": ("string", (), False),
        "raw": ("bytes", (), False),
        "v": ("int64", (2,), False),
        "x": ("float32", (), False),
    }
    assert not rejected
    assert [r["n"] for r in rows] == [1, -5, 2**63 - 1]
    assert [r["x"] for r in rows] == [0.5, 1.5, -2.0]
    assert [r["name"] for r in rows] == ["één", "", "z"]
    assert [r["maybe"] for r in rows] == [None, 7, None]
    assert [r["many"] for r in rows] == [None, None, ["a", "b"]]
    assert [r["v"] for r in rows] == [[1, 2], [3, 4], [5, -6]]
    assert [r["raw"] for r in rows] == [b"\xff\0", b"", b"abc"]


def test_lists_of_different_lengths_and_features_without_a_kind(tmp_path):
    path = write(tmp_path, [example(v=[1, 2], gone=None), example(v=[]), example(v=[3], other=None)])
    found, rows, _ = read(path)
    assert {n: f.shape for n, f in found.items()} == {"v": (None,)}
    assert [r["v"] for r in rows] == [[1, 2], [], [3]]


def test_media_types(tmp_path):
    png = b"\x89PNG\r\n\x1a\n" + bytes(9)
    found, _, _ = read(write(tmp_path, [example(a=JPEG, b=JPEG, c=JPEG), example(a=JPEG, b=png, c="text")]))
    assert [found[n].media_type for n in "abc"] == ["image/jpeg", "image/*", None]
    assert found["c"].dtype == "bytes"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress, lambda d: zlib.compress(d, 0)])
def test_compression_is_found_by_content(tmp_path, pack):
    records = [example(n=i, s=f"row {i}") for i in range(5000)]
    path = write(tmp_path, records, "data.bin", pack)
    source = TfrecordSource(block_bytes=1000)
    assert source.recognizes(path.read_bytes()[:4096], "x") == (pack is not gzip.compress)
    _, rows, _ = read(path, source=source)
    assert [r["n"] for r in rows] == list(range(5000))


def test_sequence_far_behind_examples(tmp_path):
    records = [example(n=1, s=str(i) * 1000) for i in range(1200)]
    path = write(tmp_path, [*records, sequence({"n": 1, "s": "a"}, steps=[1])])
    assert "it is a SequenceExample" in fails(path)
    assert len(read(path, tolerates_bad_rows=True)[1]) == 1200


@pytest.mark.parametrize("size", [0x8B1F, 0x0178, 0x5E78, 0x9C78, 0xDA78])
def test_plain_file_whose_first_length_looks_like_compression(tmp_path, size):
    blob = b"\xff" * (size - 100)
    first = example(s=b"\xff" * (len(blob) + size - len(example(s=blob))))
    assert len(first) == size
    _, rows, _ = read(write(tmp_path, [first, example(s=b"\xfe")]))
    assert len(rows) == 2


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60), split_bytes=st.integers(50, 3000))
def test_any_cut_gives_the_same_rows(tmp_path_factory, sizes, split_bytes):
    folder = tmp_path_factory.mktemp("cut")
    path = write(folder, [example(s="x" * size, n=i) for i, size in enumerate(sizes)])
    whole = read(path)
    assert read(path, source=TfrecordSource(split_bytes=split_bytes, block_bytes=300)) == whole
    assert [r["n"] for r in whole[1]] == list(range(len(sizes)))


def test_records_that_hold_records_are_not_cut_inside(tmp_path):
    inner = b"".join(frame(example(n=i)) for i in range(200))
    path = write(tmp_path, [example(s=inner, n=i) for i in range(20)])
    source = TfrecordSource(split_bytes=3000)
    assert len(source.split(list_inputs([str(path)]).files, SourceOptions())) > 5
    _, rows, _ = read(path, source=source)
    assert [r["n"] for r in rows] == list(range(20))
    assert all(r["s"] == inner for r in rows)


def test_records_are_found_in_the_middle_of_a_file():
    data = b"".join(frame(example(n=i)) for i in range(50))
    block = find_records(data[7:])
    assert block.offset == len(frame(example(n=0))) - 7
    assert len(block.starts) == 49
    assert find_records(b"\0" * 500) is None
    assert find_records(b"") is None


def test_late_features_are_known_from_places_in_the_file(tmp_path):
    records = [example(s="x" * 1000, n=i) for i in range(9000)]
    records[6000:6100] = [example(s="x" * 1000, n=i, late=1.5) for i in range(6000, 6100)]
    records = records[:9000]
    found, rows, _ = read(write(tmp_path, records), source=TfrecordSource())
    late = [r["late"] for r in rows] if "late" in found else None
    if late is not None:
        assert late.count(1.5) == 100
    else:
        pytest.fail("the feature lies in none of the places")


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
        _, rows, (bad,) = read(path, source=TfrecordSource(block_bytes=block_bytes), tolerates_bad_rows=True)
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


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_every_cut_is_found(tmp_path, pack):
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
        else:
            for tolerates in (False, True):
                assert (
                    "cut off" in fails(path, features=known, kind=BadInputError, tolerates_bad_rows=tolerates)
                    or length < 20
                )


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
    source = TfrecordSource(block_bytes=1000)
    _, rows, (bad,) = read(path, source=source, max_record_bytes=4096, tolerates_bad_rows=True)
    assert [r["n"] for r in rows] == [1, 3]
    assert records[1].startswith(bad.raw)
    assert bad.position == "row 2"
    _, rows, _ = read(path, source=source)
    assert [len(r["s"]) for r in rows] == [1, 50_000, 1]


UNFIT = [
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


@pytest.mark.parametrize(("record", "why"), UNFIT)
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
    source = TfrecordSource(split_bytes=800, block_bytes=200)
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


def test_declared_types(tmp_path):
    stored = struct.pack("<d", 0.1)
    records = [example(label=i % 2, when=f"2020-01-0{i + 1}", x=1.5, d=stored, flag=i % 2) for i in range(4)]
    path = write(tmp_path, records)
    known = (
        make_feature("d", "float64"),
        make_feature("flag", "bool"),
        make_feature("label", "int64", vocabulary=("cat", "dog")),
        make_feature("when", "date"),
        make_feature("x", "float64"),
    )
    _, rows, _ = read(path, features=known)
    assert rows[1]["d"] == 0.1
    assert rows[1]["flag"] is True
    assert str(rows[1]["when"]) == "2020-01-02"
    assert rows[1]["x"] == 1.5
    records[2] = example(label=9, when="never", x=1.5, d=stored, flag=5)
    path = write(tmp_path, records)
    assert "row 3" in fails(path, features=known)
    _, rows, rejected = read(path, features=known, tolerates_bad_rows=True)
    assert (len(rows), len(rejected)) == (3, 1)


def test_sequences(tmp_path):
    records = [
        sequence({"id": 1}, words=["a", "b"], pairs=[[1, 2], [3, 4]], empty=[]),
        sequence({"id": 2}, words=[], pairs=[[5, 6]]),
        sequence({"id": 3, "extra": 1.5}, words=["ü"]),
    ]
    path = write(tmp_path, records)
    found, rows, _ = read(path)
    assert {n: (f.dtype, f.shape, f.nullable) for n, f in found.items()} == {
        "extra": ("float32", (), True),
        "id": ("int64", (), False),
        "pairs": ("int64", (None,), True),
        "words": ("string", (None,), False),
    }
    assert [r["words"] for r in rows] == [["a", "b"], [], ["ü"]]
    assert [r["pairs"] for r in rows] == [[1, 2, 3, 4], [5, 6], None]
    files = list_inputs([str(path)]).files
    assert "2 values a step" in TfrecordSource().notes(files, SourceOptions())[0]


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


def test_tensorflow_writes_what_is_read(tmp_path):
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    rows = [
        {
            "i": int(rng.integers(-(2**60), 2**60)),
            "f": rng.random(3, dtype=np.float32).tolist(),
            "s": [f"é{k}" for k in range(i % 3)],
        }
        for i in range(200)
    ]
    for kind in ("", "GZIP", "ZLIB"):
        path = tmp_path / f"x{kind}"
        with tf.io.TFRecordWriter(str(path), kind) as writer:
            for row in rows:
                made = tf.train.Example()
                made.features.feature["i"].int64_list.value.append(row["i"])
                made.features.feature["f"].float_list.value.extend(row["f"])
                made.features.feature["s"].bytes_list.value.extend(s.encode() for s in row["s"])
                writer.write(made.SerializeToString())
        found, read_rows, _ = read(path)
        assert found["f"].shape == (3,)
        assert read_rows == [{"f": r["f"], "i": r["i"], "s": r["s"]} for r in rows]
    made = tf.train.SequenceExample()
    made.context.feature["id"].bytes_list.value.append(b"one")
    for value in (1.5, 2.5):
        made.feature_lists.feature_list["steps"].feature.add().float_list.value.append(value)
    with tf.io.TFRecordWriter(str(tmp_path / "s")) as writer:
        writer.write(made.SerializeToString())
    assert read(tmp_path / "s")[1] == [{"id": "one", "steps": [1.5, 2.5]}]


@pytest.mark.data
@needs_data
@pytest.mark.parametrize(
    ("name", "num_rows"),
    [
        ("tfrecord-others/tfx/penguin/data", 334),
        ("tfrecord-others/tfx/tfrecord_sequence", 15_000),
        ("tfrecord-others/yggdrasil/sentences.tfe-tfrecord", 2),
        ("tfrecord-others/bigdl-mnist", 40),
        ("raccoon-detection/data/test.record", 40),
    ],
)
def test_real_files(name, num_rows):
    assert len(read(DATA / name)[1]) == num_rows


@pytest.mark.data
@needs_data
def test_real_sequences_and_events():
    folder = DATA / "tfrecord-others" / "pytorch-data"
    _, rows, _ = read(folder / "tfrecord" / "sequence_example.tfrecord")
    assert len(rows) == 4
    assert all(len(r["x_float_seq"]) % 10 == 0 for r in rows)
    assert "neither an Example" in fails(DATA / "tfrecord-others" / "tfx" / "tfevents")
