"""Verification names every damage at its place, and nothing that is whole."""

import bisect
import hashlib
import itertools
import shutil
import struct
from pathlib import Path

import google_crc32c
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.codec import GZIP_HEADER, compress_block, crc32, gzip_trailer
from shardkit.dataset import Dataset, open_dataset
from shardkit.decoder import RecordDecoder
from shardkit.errors import DamageError
from shardkit.example import encode_batch, parse_record, stored_values
from shardkit.features import arrow_schema, make_feature
from shardkit.manifest import decode_manifest, encode_manifest, encode_shard_table
from shardkit.testing import write_dataset
from shardkit.tfrecord import frame
from shardkit.verify import MAX_LISTED, verify_dataset

FEATURES = (
    make_feature("age", "int64", nullable=True),
    make_feature("city", "string"),
    make_feature("scores", "float32", (None,)),
    make_feature("weight", "float64"),
)


def rows(num_rows, first=0):
    numbers = range(first, first + num_rows)
    columns = [
        [None if i % 5 == 0 else i * 1000 - 7 for i in numbers],
        [f"city {i % 7} " * (1 + i % 3) for i in numbers],
        [[i / 3] * (i % 4) for i in numbers],
        [i * 0.1 for i in numbers],
    ]
    arrays = [pa.array(c, f.arrow_type) for c, f in zip(columns, FEATURES, strict=True)]
    return pa.record_batch(arrays, schema=arrow_schema(FEATURES))


@pytest.fixture(params=["gzip", "none"])
def dataset(request, tmp_path):
    splits = {"train": rows(24), "test": rows(9, first=100)}
    return write_dataset(tmp_path / "set", FEATURES, splits, compression=request.param)


@pytest.fixture(params=["gzip", "none"])
def small(request, tmp_path):
    """One shard of two blocks, about a kilobyte."""
    return write_dataset(tmp_path / "small", FEATURES, {"train": rows(6)}, num_shards=1, compression=request.param)


def shard_file(dataset, split="train", index=0):
    shard = dataset.split_shards(split)[index]
    return Path(dataset.shard_url(shard)), shard


def damages_of(dataset, **options):
    return verify_dataset(open_dataset(dataset.url), **options).damages


def test_a_whole_dataset_has_no_damage_and_every_byte_is_read(dataset):
    seen = []
    report = verify_dataset(dataset, progress=seen.append, num_threads=3)
    assert report.is_whole
    assert (report.num_shards, report.num_examples, report.damages) == (4, 33, ())
    assert report.num_read_bytes == sum(seen) == report.num_bytes
    assert report.num_other_files == 0


def test_every_flipped_bit_of_a_byte_is_found_and_placed_in_its_block(small):
    path, shard = shard_file(small)
    whole = path.read_bytes()
    sizes = [len(GZIP_HEADER) if small.manifest.compression == "gzip" else 0, *shard.block_num_bytes]
    ends = list(itertools.accumulate(sizes))
    num_unplaced = 0
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :])
        damages = verify_dataset(small).damages
        assert {d.path for d in damages} == {shard.path}, position
        block = bisect.bisect_right(ends, position) - 1
        in_block = 0 <= block < len(shard.block_num_bytes)
        # A bit of deflate that changes no output shows in the hash of the file alone.
        places = {d.block for d in damages}
        assert places in ({None}, {block if in_block else None}), position
        num_unplaced += in_block and places == {None}
    assert num_unplaced <= 0.02 * len(whole)
    path.write_bytes(whole)
    assert verify_dataset(small).is_whole


def test_every_truncation_is_found(small):
    path, shard = shard_file(small)
    whole = path.read_bytes()
    for num_bytes in range(len(whole)):
        path.write_bytes(whole[:num_bytes])
        damages = verify_dataset(small).damages
        assert [d.path for d in damages] == [shard.path]
        assert damages[0].problem == f"the file is cut off: {num_bytes} of {len(whole)} bytes are there"


@pytest.mark.parametrize("tail", [b"\0", b"more", GZIP_HEADER + gzip_trailer(0, 0)])
def test_bytes_after_the_end_are_found(dataset, tail):
    path, shard = shard_file(dataset)
    path.write_bytes(path.read_bytes() + tail)
    (damage,) = damages_of(dataset)
    assert str(damage) == f"{shard.path}: the file goes on after its end, by {len(tail)} bytes"


def test_missing_swapped_and_copied_shards_are_named(dataset):
    first, first_shard = shard_file(dataset, "train", 0)
    second, second_shard = shard_file(dataset, "train", 1)
    other, other_shard = shard_file(dataset, "test", 1)
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    other.unlink()
    report = verify_dataset(dataset, num_threads=2)
    assert [str(d) for d in report.damages] == [
        f"{first_shard.path}: it holds the bytes of {second_shard.path}",
        f"{second_shard.path}: it holds the bytes of {first_shard.path}",
        f"{other_shard.path}: the file is missing",
    ]
    assert (report.num_damages, report.num_damaged_shards) == (3, 3)
    assert damages_of(dataset, splits=["test"]) == report.damages[2:]


def test_several_damages_of_one_shard_are_all_listed(dataset):
    path, shard = shard_file(dataset)
    data = bytearray(path.read_bytes())
    first = len(GZIP_HEADER) if dataset.manifest.compression == "gzip" else 0
    for block in (0, 2):
        data[first + sum(shard.block_num_bytes[:block]) + 2] ^= 0x5A
    path.write_bytes(data)
    assert [d.block for d in damages_of(dataset)] == [0, 2]


def test_an_unreadable_shard_and_a_folder_in_its_place_are_damage(dataset):
    path, shard = shard_file(dataset)
    path.unlink()
    path.mkdir()
    (damage,) = damages_of(dataset)
    assert damage.path == shard.path
    assert "cannot be read" in damage.problem


def test_other_files_are_counted_and_are_no_damage(dataset):
    path, _ = shard_file(dataset)
    (path.parent / "train-00000-of-00009.tfrecord.gz").write_bytes(b"of another version")
    report = verify_dataset(dataset)
    assert report.is_whole
    assert report.num_other_files == 1


def test_a_record_index_that_does_not_fit_is_named(tmp_path):
    dataset = write_dataset(tmp_path, FEATURES, {"train": rows(8)}, compression="none")
    path, shard = shard_file(dataset)
    index = Path(f"{path}.idx")
    index.write_text(index.read_text().replace("\n", "0\n", 1))
    assert [d.path for d in damages_of(dataset)] == [f"{shard.path}.idx"]
    index.unlink()
    assert damages_of(dataset) == ()


def test_a_shard_table_that_is_not_the_manifests_is_damage(dataset):
    table = Path(dataset.url) / dataset.manifest.shard_table.path
    table.write_bytes(table.read_bytes() + b"\0")
    report = verify_dataset(open_dataset(dataset.url))
    assert [d.path for d in report.damages] == [dataset.manifest.shard_table.path]
    table.unlink()
    (damage,) = damages_of(dataset)
    assert damage.problem == "the shard table is missing"


def test_a_manifest_that_contradicts_itself_is_damage(dataset):
    path = Path(dataset.url) / "manifests/00000001.json"
    manifest = decode_manifest(path.read_bytes(), "")
    split = msgspec.structs.replace(
        manifest.splits[0],
        statistics={
            **manifest.splits[0].statistics,
            "city": msgspec.structs.replace(manifest.splits[0].statistics["city"], count=3),
        },
    )
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, splits=(split, *manifest.splits[1:]))))
    (damage,) = damages_of(dataset)
    assert damage.path == "manifests/00000001.json"
    assert "'city'" in damage.problem


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


def test_an_index_that_claims_more_than_there_is_ends_at_the_end_of_the_file(small):
    (shard,) = small.shards
    sizes = (2**62, *shard.block_num_bytes[1:])
    lie = msgspec.structs.replace(shard, block_num_bytes=sizes, num_bytes=2**63 - 1)
    table = encode_shard_table([lie])
    (Path(small.url) / small.manifest.shard_table.path).write_bytes(table)
    manifest = msgspec.structs.replace(
        small.manifest,
        splits=(msgspec.structs.replace(small.manifest.splits[0], num_bytes=2**63 - 1),),
        shard_table=msgspec.structs.replace(small.manifest.shard_table, sha256=hashlib.sha256(table).hexdigest()),
    )
    report = verify_dataset(Dataset(small.url, 1, manifest))
    assert report.damages[0].problem.startswith("the file is cut off")
    assert report.num_read_bytes == shard.num_bytes


def test_a_block_that_claims_to_inflate_to_more_than_it_can_is_not_tried(tmp_path):
    dataset = write_dataset(tmp_path, FEATURES, {"train": rows(6)}, num_shards=1)
    (shard,) = dataset.shards
    sizes = (2**62, *shard.block_num_uncompressed_bytes[1:])
    lie = msgspec.structs.replace(shard, block_num_uncompressed_bytes=sizes, num_uncompressed_bytes=sum(sizes))
    table = encode_shard_table([lie])
    (tmp_path / dataset.manifest.shard_table.path).write_bytes(table)
    split = msgspec.structs.replace(dataset.manifest.splits[0], num_uncompressed_bytes=sum(sizes))
    info = msgspec.structs.replace(dataset.manifest.shard_table, sha256=hashlib.sha256(table).hexdigest())
    manifest = msgspec.structs.replace(dataset.manifest, splits=(split,), shard_table=info)
    (damage,) = verify_dataset(Dataset(dataset.url, 1, manifest)).damages
    assert damage.block == 0
    assert "more than deflate can hold" in damage.problem


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


@settings(max_examples=60, deadline=None)
@given(st.lists(varied_rows, min_size=1, max_size=4))
def test_what_the_encoder_writes_is_accepted(examples):
    data, sizes = encode_varied(examples)
    assert RecordDecoder(VARIED).find_problems(data, *spans_of(sizes)) == []


@settings(max_examples=300, deadline=None)
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


@pytest.mark.parametrize("num_threads", [1, 4, 50])
def test_the_report_does_not_depend_on_the_threads(tmp_path, num_threads):
    dataset = write_dataset(tmp_path, FEATURES, {"train": rows(40)}, num_shards=10)
    for index in (1, 4, 8):
        path, _ = shard_file(dataset, index=index)
        path.write_bytes(path.read_bytes()[:-1])
    report = verify_dataset(dataset, num_threads=num_threads)
    names = [Path(d.path).name for d in report.damages]
    assert names == [f"train-{i:05d}-of-00010.tfrecord.gz" for i in (1, 4, 8)]


def test_an_interrupt_ends_the_reading(tmp_path):
    dataset = write_dataset(tmp_path, FEATURES, {"train": rows(40)}, num_shards=10)

    def interrupt(num_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_dataset(dataset, progress=interrupt, num_threads=4)


def test_an_older_version_of_the_same_data_is_still_whole(tmp_path):
    write_dataset(tmp_path, FEATURES, {"train": rows(10)})
    second = write_dataset(tmp_path, FEATURES, {"train": rows(10)}, version=2)
    assert verify_dataset(second).is_whole
    assert verify_dataset(open_dataset(str(tmp_path), 1)).is_whole
    shutil.rmtree(tmp_path / "data")
    assert [d.problem for d in damages_of(second)] == ["the file is missing"] * 2
