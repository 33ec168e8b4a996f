"""Verification names every damage at its place, and nothing that is whole."""

import bisect
import hashlib
import itertools
import shutil
from pathlib import Path

import msgspec
import pytest

from shardkit.dataset.manifest import decode_manifest, encode_manifest
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.encoding.codec import GZIP_HEADER, gzip_trailer
from shardkit.testing import write_dataset
from shardkit.verify.shards import verify_dataset
from tests.support.files.verify_makers import FEATURES, damages_of, rows, shard_file, two_splits


@pytest.fixture(params=["gzip", "none"])
def dataset(request, tmp_path):
    return two_splits(tmp_path / "set", request.param)


@pytest.fixture(params=["gzip", "none"])
def small(request, tmp_path):
    """One shard of two blocks, about a kilobyte."""
    return write_dataset(tmp_path / "small", FEATURES, {"train": rows(6)}, num_shards=1, compression=request.param)


def test_a_whole_dataset_has_no_damage_and_every_byte_is_read(dataset):
    seen = []
    report = verify_dataset(dataset, progress=seen.append, num_threads=3)
    assert report.is_whole
    assert (report.num_shards, report.num_examples, report.damages) == (4, 33, ())
    assert report.num_read_bytes == sum(seen) == report.num_bytes
    assert report.num_other_files == 0


@pytest.mark.full
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


@pytest.mark.full
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
