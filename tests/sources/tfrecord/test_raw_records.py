"""`--tfrecord-as bytes` keeps each record as it was written, and rejects damaged and long ones."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.cli import main
from shardkit.encoding.tfrecord import frame
from shardkit.errors import BadInputError
from shardkit.features import make_feature
from shardkit.sources.tfrecord.source import TfrecordSource
from tests.support.examples import draws
from tests.support.files.source_makers import read_all

PROPERTY = settings(max_examples=draws(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder, records, pack=bytes):
    path = folder / "a.tfrecord"
    path.write_bytes(pack(b"".join(map(frame, records))))
    return path


def read(path, source=None, **options):
    found = read_all(source or TfrecordSource(), path, tfrecord_as="bytes", **options)
    return [row["record"] for row in found.rows], found


@PROPERTY
@given(
    st.lists(st.binary(max_size=300), min_size=1), st.sampled_from([bytes, gzip.compress]), st.sampled_from([1, 500])
)
def test_any_records_come_back_however_the_file_is_cut(tmp_path, records, pack, split_bytes):
    path = write(tmp_path, records, pack)
    rows, found = read(path, TfrecordSource(split_bytes=split_bytes, batch_bytes=100))
    assert rows == records
    assert found.types == {"record": "bytes"}


def test_a_damaged_and_a_long_record_are_bad_rows(tmp_path):
    content = bytearray(write(tmp_path, [b"a" * 50, b"b" * 50, b"c" * 500]).read_bytes())
    content[20] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises(BadInputError, match=r"row 1.*CRC32C"):
        read(tmp_path / "a.tfrecord")
    rows, _ = read(tmp_path / "a.tfrecord", tolerates_bad_rows=True, max_record_bytes=100)
    assert rows == [b"b" * 50]


def test_text_is_declared_in_a_schema_and_checked(tmp_path):
    path = write(tmp_path, [b"one", b"\xff", "zwölf".encode(), b"\xfe"])
    features = (make_feature("record", "string"),)
    rows, _ = read(path, features=features, tolerates_bad_rows=True)
    assert rows == ["one", "zwölf"]


def test_a_declared_column_that_records_lack_has_no_values(tmp_path):
    features = (make_feature("record", "bytes"), make_feature("extra", "int64", nullable=True))
    found = read_all(TfrecordSource(), write(tmp_path, [b"a", b"b"]), features=features, tfrecord_as="bytes")
    assert [row["extra"] for row in found.rows] == [None, None]


@pytest.mark.full
def test_the_command_keeps_messages_that_are_no_examples_and_names_the_option(tmp_path, capfd):
    import tensorflow as tf

    # ELWC: a list of Examples, and one more.
    example = tf.train.Example(features=tf.train.Features(feature={"a": tf.train.Feature()})).SerializeToString()
    records = [b"\x12" + bytes([len(example)]) + example, b"\x1a\x03abc"]
    path = write(tmp_path, records)
    assert main(["convert", str(path), str(tmp_path / "out")]) == 3
    assert "--tfrecord-as bytes" in capfd.readouterr().err
    assert main(["convert", str(path), str(tmp_path / "out"), "--tfrecord-as", "bytes", "--no-shuffle"]) == 0
    (shard,) = (tmp_path / "out/data").rglob("*.gz")
    found = [
        tf.train.Example.FromString(raw).features.feature["record"].bytes_list.value[0]
        for raw in tf.data.TFRecordDataset(str(shard), "GZIP").as_numpy_iterator()
    ]
    assert found == records
    assert main(["convert", str(shard), str(tmp_path / "b"), "--tfrecord-as", "bytes", "--format", "csv"]) == 2
