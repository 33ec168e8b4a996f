"""What was encoded comes back: values, nulls and dtypes, by the kernel and by the reference."""

import subprocess
import sys

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding.decoder import RecordDecoder
from shardkit.encoding.encoder import encode_batch
from shardkit.encoding.tfrecord import frame, iter_records
from shardkit.errors import DamageError
from shardkit.features import arrow_schema, make_feature
from tests.support.examples import draws
from tests.support.wire.example_values import decode_record

_VALUES = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "uint8": st.integers(0, 255),
    "uint16": st.integers(0, 2**16 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300),
    "uint64": st.integers(0, 2**64 - 1),
    "float16": st.floats(width=16, allow_nan=False).map(np.float16),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
    "date": st.dates(),
    "time[us]": st.times(),
    "timestamp[us]": st.datetimes(),
    "duration[ms]": st.integers(-(2**40), 2**40),
    "decimal(10,2)": st.decimals(-10, 10, places=2),
}


@st.composite
def tables(draw):
    names = draw(st.lists(st.text("abcé", min_size=1, max_size=20), min_size=1, max_size=5, unique=True))
    num_rows = draw(st.integers(0, 9))
    features, columns = [], []
    for name in names:
        dtype = draw(st.sampled_from(sorted(_VALUES)))
        shape = draw(st.sampled_from([(), (), (None,), (1,), (3,), (2, 2)]))
        feature = make_feature(name, dtype, shape, nullable=draw(st.booleans()))
        if dtype in ("int8", "uint8") and draw(st.booleans()):
            feature = msgspec.structs.replace(feature, stored_as="int64_list")  # As older datasets have arrays.
        count = feature.num_values
        item = _VALUES[dtype] if shape == () else st.lists(_VALUES[dtype], min_size=count or 0, max_size=count or 9)
        value = st.none() | item if feature.nullable else item
        features.append(feature)
        columns.append(pa.array(draw(st.lists(value, min_size=num_rows, max_size=num_rows)), feature.arrow_type))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(tuple(features))), tuple(features)


@pytest.mark.full
@given(tables(), st.randoms())
@settings(max_examples=draws(400), deadline=None)
def test_what_was_encoded_comes_back(table, random):
    batch, features = table
    encoded = encode_batch(batch, features)
    decoded = RecordDecoder(features).decode(encoded.data, "block")
    decoded.validate(full=True)
    assert decoded.schema.types == batch.schema.types
    assert decoded.to_pylist() == batch.to_pylist()
    records = [decode_record(r, features, "x") for r in iter_records(bytes(encoded.data), "block")]
    assert records == batch.to_pylist()
    some = tuple(random.sample(features, random.randint(1, len(features))))
    found = RecordDecoder(some).decode(encoded.data, "block")
    assert found.to_pylist() == batch.select([f.name for f in some]).to_pylist()


def encoded_numbers(count):
    feature = make_feature("a", "int64")
    batch = pa.record_batch({"a": pa.array(range(count), pa.int64())})
    return bytes(encode_batch(batch, (feature,)).data), (feature,)


def test_damage_is_named_with_its_record():
    data, features = encoded_numbers(10)
    size = len(data) // 10
    broken = bytearray(data)
    broken[3 * size + 20] ^= 1
    with pytest.raises(DamageError, match="a record is damaged") as caught:
        RecordDecoder(features).decode(bytes(broken), "shard, block 7")
    assert caught.value.where == f"shard, block 7, uncompressed byte {3 * size}"
    with pytest.raises(DamageError, match="a record is cut off"):
        RecordDecoder(features).decode(data[:-1], "shard, block 7")


def test_a_record_that_does_not_fit_is_named_with_its_position_and_reason():
    data, features = encoded_numbers(5)
    for record, problem in ((b"\x0a\x00", "feature 'a' is absent"), (b"\xff", "not a tf.train.Example")):
        with pytest.raises(DamageError, match=problem) as caught:
            RecordDecoder(features).decode(data + frame(record) + data, "block 7")
        assert caught.value.where == "block 7, record 5"


def test_text_that_is_no_text_is_refused_when_it_is_read_as_text():
    batch = pa.record_batch({"s": pa.array([b"a", b"b", b"\xff", b"c"], pa.binary())})
    data = encode_batch(batch, (make_feature("s", "bytes"),)).data
    with pytest.raises(DamageError, match="feature 's' cannot be read") as caught:
        RecordDecoder((make_feature("s", "string"),)).decode(data, "block 7")
    assert caught.value.where == "block 7, record 2"


def test_columns_outlive_the_next_block():
    data, features = encoded_numbers(20_000)
    decoder = RecordDecoder(features)
    first = decoder.decode(data, "x").column("a")
    for _ in range(5):
        decoder.decode(encoded_numbers(1000)[0] * 20, "x")
    assert first.to_pylist() == list(range(20_000))


@pytest.mark.full
def test_without_the_kernel_the_reference_decodes():
    script = (
        "import sys; sys.modules['shardkit._kernel'] = None\n"
        "import pyarrow as pa\n"
        "from shardkit.encoding.kernel import HAS_KERNEL\n"
        "from shardkit.encoding.decoder import RecordDecoder\n"
        "from shardkit.encoding.encoder import encode_batch\n"
        "from shardkit.features import make_feature\n"
        "assert not HAS_KERNEL\n"
        "features = (make_feature('a', 'int64', (None,)), make_feature('s', 'string', nullable=True))\n"
        "batch = pa.record_batch({'a': pa.array([[1, 2], []]), 's': pa.array([None, 'x'])})\n"
        "print(RecordDecoder(features).decode(encode_batch(batch, features).data, 'x').to_pylist())"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout == "[{'a': [1, 2], 's': None}, {'a': [], 's': 'x'}]\n"
