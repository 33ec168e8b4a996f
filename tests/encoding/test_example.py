"""Encoding: what goes in comes out, stock TensorFlow reads and writes the very same bytes."""

import datetime
import decimal
import math
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding.example import encode_batch
from shardkit.encoding.tfrecord import iter_records
from shardkit.errors import BadInputError, DamageError
from shardkit.features import arrow_schema, feature_from_arrow, make_feature
from tests.support.examples import draws
from tests.support.wire.example_values import decode_record

# tf.train.Example(features=tf.train.Features(feature={
#     "a": tf.train.Feature(int64_list=tf.train.Int64List(value=[-1])),
#     "b": tf.train.Feature(float_list=tf.train.FloatList(value=[1.5, -2.0])),
#     "c": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x", b""])),
# })).SerializeToString(deterministic=True) of TensorFlow 2.21
GOLDEN = bytes.fromhex(
    "0a360a130a0161120e1a0c0a0affffffffffffffffff010a110a0162120c120a0a080000c03f000000c00a0c0a016312070a050a01780a00"
)


def round_trip(batch, features):
    encoded = encode_batch(batch, features)
    records = list(iter_records(encoded.data, "x"))
    assert encoded.sizes.tolist() == [len(r) + 16 for r in records]
    return [decode_record(r, features, "x") for r in records]


def features_of(batch):
    fields = zip(batch.schema.names, batch.schema.types, strict=True)
    return tuple(feature_from_arrow(n, t, nullable=True, where="x") for n, t in fields)


def test_every_dtype_comes_back():
    batch = pa.record_batch(
        {
            "bool": pa.array([True, None, False]),
            "i8": pa.array([-128, None, 127], pa.int8()),
            "u8": pa.array([0, None, 255], pa.uint8()),
            "i64": pa.array([-(2**63), None, 2**63 - 1]),
            "u64": pa.array([2**64 - 1, None, 0], pa.uint64()),
            "f16": pa.array(np.array([1.5, 0, -2], np.float16), mask=np.array([False, True, False])),
            "f32": pa.array([1.5, None, -0.25], pa.float32()),
            "f64": pa.array([0.1, None, math.pi]),
            "date": pa.array([datetime.date(1969, 7, 20), None, datetime.date(2400, 1, 1)]),
            "ts": pa.array([datetime.datetime(2020, 1, 1, 1, 2, 3, 456789), None, None], pa.timestamp("us")),
            "tz": pa.array([datetime.datetime(2020, 1, 1), None, None], pa.timestamp("ms", tz="America/New_York")),
            "time": pa.array([datetime.time(23, 59, 59), None, None], pa.time32("s")),
            "duration": pa.array([datetime.timedelta(days=-1), None, None], pa.duration("us")),
            "decimal": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-0.01")], pa.decimal128(20, 2)),
            "bytes": pa.array([b"\xff\x00", None, b""]),
            "string": pa.array(["é\n", None, ""]),
            "ints": pa.array([[1, 2], None, []], pa.list_(pa.int16())),
            "doubles": pa.array([[0.1], None, []], pa.list_(pa.float64())),
            "strings": pa.array([["a", "b"], None, []]),
            "bools": pa.array([[True], None, []]),
            "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
            "double_pair": pa.array([[0.1, 2], None, [3, 4]], pa.list_(pa.float64(), 2)),
        }
    )
    assert round_trip(batch, features_of(batch)) == batch.to_pylist()
    assert round_trip(batch.slice(1), features_of(batch)) == batch.slice(1).to_pylist()


_VALUES = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "string": st.text(),
    "bytes": st.binary(),
    "bool": st.booleans(),
}


@st.composite
def tables(draw):
    names = draw(st.lists(st.text("ab/é日", min_size=1, max_size=5), min_size=1, max_size=4, unique=True))
    num_rows = draw(st.integers(0, 6))
    features, columns = [], []
    for name in names:
        dtype = draw(st.sampled_from(sorted(_VALUES)))
        shape = draw(st.sampled_from([(), (None,), (2,)]))
        value = _VALUES[dtype]
        item = value if shape == () else st.lists(value, min_size=shape[0] or 0, max_size=shape[0] or 3)
        features.append(make_feature(name, dtype, shape, nullable=True))
        columns.append(draw(st.lists(st.none() | item, min_size=num_rows, max_size=num_rows)))
    schema = arrow_schema(tuple(features))
    arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema), tuple(features)


@given(tables())
@settings(max_examples=draws(150))
def test_any_table_comes_back(table):
    batch, features = table
    assert round_trip(batch, features) == batch.to_pylist()


def test_bytes_are_what_tensorflow_would_write():
    batch = pa.record_batch(
        {"c": pa.array([["x", ""]]), "b": pa.array([[1.5, -2.0]], pa.list_(pa.float32())), "a": pa.array([-1])}
    )
    (record,) = iter_records(encode_batch(batch, features_of(batch)).data, "x")
    assert record == GOLDEN


def test_a_null_inside_a_list_is_refused():
    batch = pa.record_batch({"x": pa.array([[1], None, [2, None]])})
    with pytest.raises(BadInputError, match="column 'x' has a null inside a list"):
        encode_batch(batch, features_of(batch))


def test_nan_and_infinity_survive():
    batch = pa.record_batch({"x": pa.array([math.nan, math.inf, -math.inf])})
    nan, *infinities = [r["x"] for r in round_trip(batch, features_of(batch))]
    assert math.isnan(nan)
    assert infinities == [math.inf, -math.inf]


def test_absent_wrong_kind_and_wrong_size_are_damage():
    batch = pa.record_batch({"a": pa.array([1, None])})
    present, absent = iter_records(encode_batch(batch, features_of(batch)).data, "x")
    with pytest.raises(DamageError, match="'a' is absent"):
        decode_record(absent, (make_feature("a", "int64"),), "x")
    with pytest.raises(DamageError, match="expected float_list, got int64_list"):
        decode_record(present, (make_feature("a", "float32"),), "x")
    with pytest.raises(DamageError, match="expected 2, got 1"):
        decode_record(present, (make_feature("a", "int64", (2,)),), "x")
    with pytest.raises(DamageError, match=r"not a tf\.train\.Example"):
        decode_record(b"\x0a\xff", (make_feature("a", "int64"),), "x")


@pytest.mark.full
@pytest.mark.slow
def test_tensorflow_parses_what_we_write_and_we_parse_what_it_writes(tmp_path):
    batch = pa.record_batch(
        {
            "i": pa.array([1, None, -3]),
            "f": pa.array([0.5, 1.5, None], pa.float32()),
            "s": pa.array(["a", None, "ü"]),
            "d": pa.array([0.1, 0.2, 0.3]),
            "v": pa.array([[1], [], [2, 3]]),
        }
    )
    path = tmp_path / "ours.tfrecord"
    path.write_bytes(encode_batch(batch, features_of(batch)).data)
    # A process of its own: other packages may not register these messages beside TensorFlow's.
    script = textwrap.dedent(
        """
        import sys, tensorflow as tf
        spec = {
            "i": tf.io.FixedLenFeature([], tf.int64, -9), "f": tf.io.FixedLenFeature([], tf.float32, -9.0),
            "s": tf.io.FixedLenFeature([], tf.string, "none"), "d": tf.io.FixedLenFeature([], tf.string),
            "v": tf.io.RaggedFeature(tf.int64),
        }
        raw = list(tf.data.TFRecordDataset(sys.argv[1]))
        parsed = tf.io.parse_example(tf.stack(raw), spec)
        assert parsed["i"].numpy().tolist() == [1, -9, -3]
        assert parsed["f"].numpy().tolist() == [0.5, 1.5, -9.0]
        assert parsed["s"].numpy().tolist() == [b"a", b"none", "ü".encode()]
        assert tf.io.decode_raw(parsed["d"], tf.float64).numpy().tolist() == [[0.1], [0.2], [0.3]]
        assert parsed["v"].to_list() == [[1], [], [2, 3]]
        with tf.io.TFRecordWriter(sys.argv[1] + ".theirs") as writer:
            for record in raw:
                example = tf.train.Example.FromString(record.numpy())
                assert example.SerializeToString(deterministic=True) == record.numpy()
                writer.write(example.SerializeToString(deterministic=True))
        """
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    theirs = (tmp_path / "ours.tfrecord.theirs").read_bytes()
    assert theirs == path.read_bytes()
    assert [decode_record(r, features_of(batch), "x") for r in iter_records(theirs, "x")] == batch.to_pylist()
