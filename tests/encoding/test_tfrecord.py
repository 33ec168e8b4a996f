"""Framing: golden bytes, and every damage found at its place."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.encoding.tfrecord import OVERHEAD_BYTES, frame, iter_records, masked_crc32c
from shardkit.errors import DamageError

# tf.io.TFRecordWriter("x").write(b"shardkit") of TensorFlow 2.21, uncompressed.
GOLDEN = bytes.fromhex("0800000000000000ff86240f73686172646b6974434d377f")


def test_a_framed_record_is_what_tensorflow_writes():
    assert frame(b"shardkit") == GOLDEN


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_records_come_back_as_they_were(records):
    framed = b"".join(map(frame, records))
    assert list(iter_records(framed, "x")) == records
    assert len(framed) == sum(map(len, records)) + OVERHEAD_BYTES * len(records)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.data())
def test_every_flipped_bit_is_found(records, data):
    framed = bytearray(b"".join(map(frame, records)))
    bit = data.draw(st.integers(0, len(framed) * 8 - 1))
    framed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamageError):
        list(iter_records(bytes(framed), "x"))


def test_every_truncation_inside_a_record_is_found():
    framed = frame(b"first") + frame(b"second")
    for length in range(1, len(framed)):
        if length == len(frame(b"first")):
            continue
        with pytest.raises(DamageError, match="cut off"):
            list(iter_records(framed[:length], "x"))


def test_a_huge_length_with_a_right_crc_is_refused_before_it_is_used():
    header = struct.pack("<Q", 2**40)
    with pytest.raises(DamageError, match="claims 1099511627776 bytes"):
        list(iter_records(header + struct.pack("<I", masked_crc32c(header)) + bytes(10), "x"))


def test_messages_name_file_and_byte():
    framed = frame(b"first") + frame(b"second")[:-1]
    with pytest.raises(DamageError, match=r"in a\.tfrecord, uncompressed byte 121:"):
        list(iter_records(framed, "a.tfrecord", first_byte=100))
