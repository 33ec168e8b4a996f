"""TFRecords of Examples and SequenceExamples: what comes out, what is refused, and where damage is."""

from __future__ import annotations

import gzip
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding.tfrecord import frame
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.tfrecord.blocks import find_records
from shardkit.sources.tfrecord.source import TfrecordSource
from tests.support.examples import draws
from tests.support.files.tfrecord_makers import example, fails, read, sequence, write
from tests.support.paths import DATA

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")


JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


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


def test_features_that_are_never_filled_are_noted(tmp_path):
    paths = [
        write(tmp_path, [example(a=1, never=None, later=None)] * 3, "a"),
        write(tmp_path, [example(a=1, later=5)], "b"),
        write(tmp_path, [sequence({"a": 1}, steps=[])], "c"),
    ]
    notes = TfrecordSource().notes(list_inputs([str(p) for p in paths]).files, SourceOptions())
    left_out = [n for n in notes if n.endswith("is empty in all records looked at and is left out")]
    assert [n.split()[1] for n in left_out] == ["'never'", "'steps'"]


def test_media_types(tmp_path):
    png = b"\x89PNG\r\n\x1a\n" + bytes(9)
    found, _, _ = read(write(tmp_path, [example(a=JPEG, b=JPEG, c=JPEG), example(a=JPEG, b=png, c="text")]))
    assert [found[n].media_type for n in "abc"] == ["image/jpeg", "image/*", None]
    assert found["c"].dtype == "bytes"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress, lambda d: zlib.compress(d, 0)])
def test_compression_is_found_by_content(tmp_path, pack):
    records = [example(n=i, s=f"row {i}") for i in range(5000)]
    path = write(tmp_path, records, "data.bin", pack)
    source = TfrecordSource(batch_bytes=1000)
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


@settings(max_examples=draws(40), deadline=None)
@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60), split_bytes=st.integers(50, 3000))
def test_any_cut_gives_the_same_rows(tmp_path_factory, sizes, split_bytes):
    folder = tmp_path_factory.mktemp("cut")
    path = write(folder, [example(s="x" * size, n=i) for i, size in enumerate(sizes)])
    whole = read(path)
    assert read(path, source=TfrecordSource(split_bytes=split_bytes, batch_bytes=300)) == whole
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


@pytest.mark.full
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


@pytest.mark.full
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
