"""What is not adopted: told with its place, and nothing is written."""

import gzip
import zlib

import numpy as np
import pytest

import shardkit
from shardkit.encoding.tfrecord import frame
from shardkit.errors import BadInputError, UnsafeError, UsageError
from shardkit.indexing.listing import IndexOptions
from shardkit.indexing.scan import Scan
from tests.support.files.index_makers import contents, framed, index, rows, write_gzip, write_plain
from tests.support.files.tfrecord_makers import example, sequence


def refused(folder, *patterns, kind, **options):
    """Returns the message; nothing may have been written."""
    before = contents(folder)
    with pytest.raises(kind) as caught:
        index(*(patterns or (folder,)), **options)
    assert contents(folder) == before
    assert not (folder / "manifests").exists()
    return str(caught.value)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_damaged_record_is_named(tmp_path):
    path = write_plain(tmp_path / "a.tfrecord", rows(20))
    place = len(b"".join(framed(rows(5))))
    flip(path, place + 20)
    message = refused(tmp_path, kind=BadInputError)
    assert f"a.tfrecord, row 6, byte {place:,}: it is damaged, its CRC32C does not match" in message
    assert "Nothing was written" in message


def test_no_version_is_made_in_the_dataset_behind_a_link(tmp_path):
    write_plain(tmp_path / "theirs/a.tfrecord", rows(20))
    write_plain(tmp_path / "ours/b.tfrecord", rows(5))
    index(tmp_path / "theirs")
    before = contents(tmp_path / "theirs")
    (tmp_path / "ours/manifests").symlink_to(tmp_path / "theirs/manifests")
    with pytest.raises(UnsafeError, match="manifests is a link"):
        index(tmp_path / "ours")
    assert contents(tmp_path / "theirs") == before


def test_a_record_that_is_cut_off_is_named(tmp_path):
    path = write_plain(tmp_path / "a.tfrecord", rows(20))
    place = len(b"".join(framed(rows(19))))
    path.write_bytes(path.read_bytes()[:-3])
    message = refused(tmp_path, kind=BadInputError)
    assert f"a record is cut off in a.tfrecord, byte {place:,}, behind 19 whole records" in message


@pytest.mark.parametrize("position", [0, 9, 3])
def test_a_damaged_length_is_named_and_not_taken_for_another_format(tmp_path, position):
    path = write_plain(tmp_path / "a.tfrecord", rows(20))
    flip(path, position)
    assert "the file holds no TFRecords in a.tfrecord, byte 0" in refused(tmp_path, kind=BadInputError)


def test_a_gzip_file_that_is_cut_off_damaged_or_followed_by_something_is_named(tmp_path):
    path = write_gzip(tmp_path / "a.tfrecord.gz", rows(2_000))
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:-9], whole[: len(whole) // 2]):
        path.write_bytes(data)
        message = refused(tmp_path, kind=BadInputError)
        assert "the gzip file is cut off in a.tfrecord.gz, uncompressed byte" in message
        assert "for its whole records: shardkit convert" in message
    for data in (whole + b"more", whole[:-6] + b"\0" + whole[-5:]):
        path.write_bytes(data)
        assert "the gzip file is cut off or damaged in a.tfrecord.gz" in refused(tmp_path, kind=BadInputError)


@pytest.mark.full
def test_gzip_that_becomes_too_large_is_not_followed(tmp_path):
    big = frame(example(blob=b"\0" * (80 * 2**20)))
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress(big))
    message = refused(tmp_path, kind=BadInputError)
    assert "the compressed content is too large in a.tfrecord.gz" in message
    assert "--max-expansion" in message
    with pytest.raises(BadInputError, match="too large"):
        shardkit.open_tfrecords(str(tmp_path))
    assert len(shardkit.open_tfrecords(str(tmp_path), max_expansion=2_000)) == 1


def test_a_record_that_is_too_large_is_not_held(tmp_path):
    write_plain(tmp_path / "a.tfrecord", [*rows(3), {"blob": b"x" * 5_000}])
    message = refused(tmp_path, kind=BadInputError, max_record_bytes=4_096)
    assert "a.tfrecord, row 4" in message
    assert "--max-record-size" in message


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"not a message", "it "),
        (b"\x08\x01", "it has fields that neither an Example nor a SequenceExample has"),
        (example(number=1.5), "it has float values in 'number', records before it have int64"),
    ],
)
def test_a_record_that_does_not_fit_is_named(tmp_path, record, why):
    records = [*framed(rows(4)), frame(record)]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(records))
    message = refused(tmp_path, kind=BadInputError)
    assert "a.tfrecord, row 5, byte" in message
    assert why in message


def test_sequence_examples_are_left_to_convert(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(frame(sequence({"id": 1}, steps=[[1], [2]])))
    message = refused(tmp_path, kind=UsageError)
    assert "SequenceExamples" in message
    assert "shardkit convert" in message


def test_files_that_differ_in_compression_are_refused_and_one_of_each_is_named(tmp_path):
    write_plain(tmp_path / "a.tfrecord", rows(3))
    write_gzip(tmp_path / "b.tfrecord", rows(3))
    assert "b.tfrecord is gzip and a.tfrecord is not compressed" in refused(tmp_path, kind=UsageError)


def test_files_that_differ_in_features_are_refused(tmp_path):
    write_plain(tmp_path / "a.tfrecord", [{"x": 1}])
    write_plain(tmp_path / "b.tfrecord", [{"x": 1.5}])
    assert "a.tfrecord and b.tfrecord have different features" in refused(tmp_path, kind=UsageError)


def test_files_below_no_common_folder_are_refused(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/elsewhere/a.tfrecord", b"".join(framed(rows(1))))
    path = write_plain(tmp_path / "a.tfrecord", rows(1))
    assert "no common folder" in refused(tmp_path, path, "memory://elsewhere/*", kind=UsageError)


@pytest.mark.parametrize(("name", "pack"), [("zlib", zlib.compress), ("bz2", None)])
def test_other_compressions_are_left_to_convert(tmp_path, name, pack):
    import bz2

    pack = pack or bz2.compress
    (tmp_path / "a.tfrecord").write_bytes(pack(b"".join(framed(rows(3)))))
    message = refused(tmp_path, kind=UsageError)
    assert f"compressed with {name}" in message
    assert "shardkit convert" in message


def test_a_name_that_a_manifest_may_not_hold_is_refused_before_anything_is_read(tmp_path):
    write_plain(tmp_path / "my file;.tfrecord", rows(3))
    message = refused(tmp_path, kind=UsageError)
    assert "my file;.tfrecord" in message
    assert "open_tfrecords" in message


def test_nothing_to_index_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n")
    assert "there are no TFRecords" in refused(tmp_path, kind=UsageError)
    (tmp_path / "a.tfrecord").write_bytes(b"")
    assert "there are no TFRecords" in refused(tmp_path, kind=UsageError)
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(b""))
    assert "there are no records" in refused(tmp_path, kind=BadInputError)
    with pytest.raises(UsageError):
        index(tmp_path / "nothing")


def test_a_file_that_is_named_is_never_passed_over(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are no records\n")
    assert "the file holds no TFRecords in notes.txt" in refused(tmp_path, path, kind=BadInputError)


def test_a_split_that_fits_no_file_is_refused_before_anything_is_read(tmp_path):
    write_plain(tmp_path / "a.tfrecord", rows(3))
    assert "--split test=*b* fits no file" in refused(tmp_path, kind=UsageError, splits=(("test", "*b*"),))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = write_plain(tmp_path / "a.tfrecord", rows(10))
    (file,) = _listed(tmp_path)
    path.write_bytes(b"".join(framed(rows(11))))
    with pytest.raises(BadInputError, match="changed"):
        Scan(IndexOptions(), lambda num_bytes: None).scan(file, None, with_statistics=False)


def _listed(folder):
    from shardkit.indexing.listing import list_tfrecords

    return list_tfrecords([str(folder)], IndexOptions()).files


@pytest.mark.full
def test_many_nulls_of_a_large_array_are_not_spread_out(tmp_path):
    # One array of 4 MB and 50,000 records without it: as a table of full rows these would be 200 GB.
    values = np.zeros(2**20, np.float32).tolist()
    write_plain(tmp_path / "a.tfrecord", [{"number": 0, "array": values}, *({"number": 1} for _ in range(50_000))])
    (split,) = index(tmp_path).dataset.manifest.splits
    assert split.statistics["array"].num_nulls == 50_000
