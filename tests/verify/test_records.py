"""Records that do not fit the features are named, though every size and hash agrees."""

import hashlib
import itertools
import struct
from pathlib import Path

import google_crc32c
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.dataset.manifest import encode_manifest
from shardkit.dataset.open import open_dataset
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.encoding.codec import GZIP_HEADER, compress_block, crc32, gzip_trailer
from shardkit.encoding.decoder import RecordDecoder
from shardkit.encoding.example import encode_batch, parse_record, stored_values
from shardkit.encoding.tfrecord import frame
from shardkit.errors import DamageError
from shardkit.features import arrow_schema, make_feature
from shardkit.verify.shards import MAX_LISTED, verify_dataset
from tests.support.examples import draws
from tests.support.files.verify_makers import FEATURES, rows, shard_file, two_splits


@pytest.fixture(params=["gzip", "none"])
def dataset(request, tmp_path):
    return two_splits(tmp_path / "set", request.param)


def rewrite(dataset, change):
    """Replaces the framed blocks of the first shard and makes sizes and hashes agree, as a faulty writer would."""
    folder = Path(dataset.url)
    path, shard = shard_file(dataset)
    data, sizes = encode_batch(rows(12), FEATURES)
    ends = [0, *sizes.cumsum().tolist()]
    records = [data[a + 12 : b - 4] for a, b in itertools.pairwise(ends)]
    blocks = change([b"".join(map(frame, records[i : i + 4])) for i in range(0, 12, 4)], records)
    kind = dataset.manifest.compression
    packed = [compress_block(b, kind) for b in blocks]
    whole = b"".join(blocks)
    content = b"".join(packed)
    if kind == "gzip":
        content = GZIP_HEADER + content + gzip_trailer(crc32(whole), len(whole))
    path.write_bytes(content)
    changed = msgspec.structs.replace(
        shard,
        num_bytes=len(content),
        num_uncompressed_bytes=len(whole),
        crc32c=google_crc32c.value(content),
        sha256=hashlib.sha256(content).hexdigest(),
        block_num_bytes=tuple(map(len, packed)),
        block_num_uncompressed_bytes=tuple(map(len, blocks)),
        block_crc32c=tuple(map(google_crc32c.value, packed)),
    )
    shards = [changed, *dataset.shards[1:]]
    table = encode_shard_table(shards)
    (folder / dataset.manifest.shard_table.path).write_bytes(table)
    own = [s for s in shards if s.split == "train"]
    split = msgspec.structs.replace(
        dataset.manifest.splits[0],
        num_bytes=sum(s.num_bytes for s in own),
        num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in own),
    )
    manifest = msgspec.structs.replace(
        dataset.manifest,
        splits=(split, *dataset.manifest.splits[1:]),
        shard_table=msgspec.structs.replace(dataset.manifest.shard_table, sha256=hashlib.sha256(table).hexdigest()),
    )
    (folder / "manifests/00000001.json").write_bytes(encode_manifest(manifest))
    for index in folder.rglob("*.idx"):
        index.unlink()
    return verify_dataset(open_dataset(dataset.url))


def example_bytes(**changes):
    columns = {f.name: rows(2).column(f.name)[1:] for f in FEATURES}
    features = {f.name: f for f in FEATURES}
    for name, change in changes.items():
        columns.pop(name, None)
        features.pop(name, None)
        if change is not None:
            features[name], columns[name] = change[0], pa.array([change[1]], change[0].arrow_type)
    ordered = tuple(features.values())
    batch = pa.record_batch([columns[f.name] for f in ordered], schema=arrow_schema(ordered))
    return encode_batch(batch, ordered).data[12:-4]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b"\xff\xff", "a record is not a tf.train.Example"),
        (b"", "feature 'city' is absent"),
        (example_bytes(city=None), "feature 'city' is absent"),
        (example_bytes(city=(make_feature("city", "int64"), 3)), "feature 'city' has the wrong kind"),
        (example_bytes(age=(make_feature("age", "int64", (2,)), [1, 2])), "feature 'age' has the wrong size"),
        (example_bytes(weight=(make_feature("weight", "bytes"), b"1234")), "feature 'weight' has the wrong size"),
        (example_bytes(extra=(make_feature("extra", "int64"), 1)), "it has the feature 'extra'"),
    ],
    ids=["noise", "empty", "absent", "kind", "scalar", "width", "extra"],
)
def test_a_record_that_does_not_fit_the_features_is_named_though_all_hashes_agree(dataset, record, problem):
    def change(blocks, records):
        return [blocks[0], b"".join(map(frame, [*records[4:6], record, records[7]])), blocks[2]]

    report = rewrite(dataset, change)
    assert [(d.block, d.record) for d in report.damages] == [(1, 6)]
    assert problem in report.damages[0].problem


def test_a_nullable_feature_may_be_absent(dataset):
    def change(blocks, records):
        return [blocks[0], b"".join(map(frame, [*records[4:7], example_bytes(age=None)])), blocks[2]]

    assert rewrite(dataset, change).is_whole


def test_a_length_that_lies_is_bounded_by_the_bytes_that_are_left(dataset):
    def change(blocks, records):
        length = struct.pack("<Q", 2**40)
        crc = google_crc32c.value(length)
        header = length + struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
        return [blocks[0], header + b"x" * 60, blocks[2]]

    (damage,) = rewrite(dataset, change).damages
    assert (damage.block, damage.record) == (1, 4)
    assert damage.problem == "a record is cut off: it claims 1099511627776 bytes, 56 are left"


def test_a_lost_record_is_found_though_all_hashes_agree(dataset):
    report = rewrite(dataset, lambda blocks, records: [blocks[0], b"".join(map(frame, records[4:7])), blocks[2]])
    assert [(d.block, d.problem) for d in report.damages] == [(1, "it holds 3 records, the index says 4")]


def test_every_bad_record_is_counted_and_the_rest_still_read(dataset):
    def change(blocks, records):
        return [blocks[0], frame(b"\xff") * 200, blocks[2][:-1] + bytes([blocks[2][-1] ^ 1])]

    report = rewrite(dataset, change)
    assert report.num_damages == 202
    assert len(report.damages) == MAX_LISTED


VARIED = (
    make_feature("a" * 200, "int8", nullable=True),
    make_feature("b", "int64"),
    make_feature("c", "int64", (None,)),
    make_feature("d", "int32", (3,)),
    make_feature("e", "float32", (2,)),
    make_feature("f", "float32", (None,)),
    make_feature("g", "string", (None,)),
    make_feature("h", "string", (2,), nullable=True),
    make_feature("i", "bytes"),
    make_feature("j", "float64", (2,)),
    make_feature("k", "float64", (None,)),
    make_feature("é", "bool"),
)
varied_rows = st.tuples(
    st.none() | st.integers(-128, 127),
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.lists(st.integers(-300, 300), min_size=3, max_size=3),
    st.lists(st.floats(width=32), min_size=2, max_size=2),
    st.lists(st.floats(width=32), max_size=3),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3),
    st.none() | st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), min_size=2, max_size=2),
    st.binary(max_size=300),
    st.lists(st.floats(), min_size=2, max_size=2),
    st.lists(st.floats(), max_size=3),
    st.booleans(),
)


def encode_varied(examples):
    arrays = [pa.array(c, f.arrow_type) for c, f in zip(zip(*examples, strict=True), VARIED, strict=True)]
    return encode_batch(pa.record_batch(arrays, schema=arrow_schema(VARIED)), VARIED)


def spans_of(sizes):
    ends = sizes.cumsum()
    return ends - sizes + 12, sizes - 16


@settings(max_examples=draws(60), deadline=None)
@given(st.lists(varied_rows, min_size=1, max_size=4))
def test_what_the_encoder_writes_is_accepted(examples):
    data, sizes = encode_varied(examples)
    assert RecordDecoder(VARIED).find_problems(data, *spans_of(sizes)) == []


@pytest.mark.full
@settings(max_examples=draws(300), deadline=None)
@given(st.data())
def test_bulk_checking_accepts_nothing_that_protobuf_refuses(data):
    encoded, sizes = encode_varied([data.draw(varied_rows) for _ in range(2)])
    starts, lengths = spans_of(sizes)
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 2))):
        position = data.draw(st.integers(int(starts[0]), int(starts[0] + lengths[0]) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    record = bytes(damaged[starts[0] : starts[0] + lengths[0]])
    found = RecordDecoder(VARIED).find_problems(bytes(damaged), starts, lengths)
    assert [i for i, _ in found] == ([] if is_accepted_by_protobuf(record) else [0])


def is_accepted_by_protobuf(record):
    try:
        stored = parse_record(record, "")
        for feature in VARIED:
            stored_values(stored, feature, "")
    except DamageError:
        return False
    return set(stored) <= {f.name for f in VARIED}
