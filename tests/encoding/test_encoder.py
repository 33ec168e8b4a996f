"""The compiled kernel and the protobuf reference give the same bytes."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding import encoder, example
from shardkit.features import arrow_schema, feature_from_arrow, make_feature
from tests.support.examples import draws

needs_kernel = pytest.mark.skipif(not encoder.HAS_KERNEL, reason="the kernel was not built here")

_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=130)
_VALUES = {
    "int64": st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 127, 128, 2**14 - 1, 2**14, 2**56, 2**63 - 1]),
    "uint64": st.integers(0, 2**64 - 1),
    "int8": st.integers(-128, 127),
    "uint8": st.integers(0, 255),
    "bool": st.booleans(),
    "float16": st.floats(width=16),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
    "timestamp[us]": st.integers(-(2**62), 2**62),
    "date": st.integers(-(2**31), 2**31 - 1),
}


@st.composite
def sliced_tables(draw):
    names = draw(st.lists(_NAMES, min_size=1, max_size=5, unique=True))
    num_rows = draw(st.integers(0, 8))
    features, columns = [], []
    for name in names:
        dtype = draw(st.sampled_from(sorted(_VALUES)))
        shape = draw(st.sampled_from([(), (), (None,), (3,)]))
        value = _VALUES[dtype]
        item = value if shape == () else st.lists(value, min_size=shape[0] or 0, max_size=shape[0] or 40)
        features.append(make_feature(name, dtype, shape, nullable=True))
        columns.append(draw(st.lists(st.none() | item, min_size=num_rows, max_size=num_rows)))
    schema = arrow_schema(tuple(features))
    arrays = [_array(c, f, t) for c, f, t in zip(columns, features, schema.types, strict=True)]
    first = draw(st.integers(0, num_rows))
    return pa.record_batch(arrays, schema=schema).slice(first, draw(st.integers(0, num_rows))), tuple(features)


def _array(values, feature, type_):
    if feature.dtype == "float16":
        as_half = [
            None if v is None else np.float16(v) if feature.is_scalar else [np.float16(x) for x in v] for v in values
        ]
        return pa.array(as_half, type_)
    if feature.dtype not in ("timestamp[us]", "date"):
        return pa.array(values, type_)
    width = pa.int64() if feature.dtype == "timestamp[us]" else pa.int32()
    plain = make_feature("x", "int64" if width == pa.int64() else "int32", feature.shape).arrow_type
    return pa.array(values, plain).cast(type_)


@pytest.mark.full
@needs_kernel
@given(sliced_tables())
@settings(max_examples=draws(300), deadline=None)
def test_kernel_and_reference_agree_on_any_table(table):
    batch, features = table
    fast, slow = encoder.encode_batch(batch, features), example.encode_batch(batch, features)
    assert fast.data == slow.data
    assert fast.sizes.tolist() == slow.sizes.tolist()


@pytest.mark.full
@needs_kernel
def test_kernel_and_reference_agree_on_long_values_and_many_rows():
    rng = np.random.default_rng(0)
    batch = pa.record_batch(
        {
            "image": pa.array([rng.bytes(n) for n in (0, 127, 128, 16_383, 16_384, 3_000_000)] * 50),
            "ids": pa.array([rng.integers(-5, 2**40, n) for n in (0, 1, 100, 10_000, 3, 2)] * 50),
            "vector": pa.array([rng.normal(size=n).astype(np.float32) for n in (0, 31, 32, 4096, 1, 2)] * 50),
        }
    )
    fields = zip(batch.schema.names, batch.schema.types, strict=True)
    features = tuple(feature_from_arrow(n, t, nullable=False, where="x") for n, t in fields)
    assert encoder.encode_batch(batch, features).data == example.encode_batch(batch, features).data


@needs_kernel
def test_portable_callers_cannot_crash_the_kernel():
    batch = pa.record_batch({"a": pa.array([1], pa.int32())})
    with pytest.raises(ValueError, match="the kernel takes"):
        encoder._kernel.encode(*batch.__arrow_c_array__())
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        encoder._kernel.encode(object(), object())


@pytest.mark.full
def test_without_the_kernel_the_reference_takes_over():
    script = (
        "import sys; sys.modules['shardkit._kernel'] = None\n"
        "import pyarrow as pa\n"
        "from shardkit.encoding import encoder\n"
        "from shardkit.features import make_feature\n"
        "assert not encoder.HAS_KERNEL\n"
        "batch = pa.record_batch({'a': pa.array([1, 2])})\n"
        "print(encoder.encode_batch(batch, (make_feature('a', 'int64'),)).sizes.tolist())"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout == "[30, 30]\n"
