"""Encoding by the compiled kernel where it was built, by the protobuf reference elsewhere: the same bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.encoding import example
from shardkit.encoding.example import EncodedRows, stored_array
from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.features import Feature, Features

if HAS_KERNEL:
    from shardkit.encoding.kernel import _kernel


def encode_batch(batch: pa.RecordBatch, features: Features) -> EncodedRows:
    """Returns the rows of a batch as framed records; see `example.encode_batch`, which gives the same.

    Raises:
        BadInputError: If a list holds a null.
    """
    if not HAS_KERNEL:
        return example.encode_batch(batch, features)
    ordered = sorted(features, key=lambda f: f.name.encode())
    columns = [_stored_column(batch.column(f.name), f) for f in ordered]
    stored = pa.RecordBatch.from_arrays(columns, names=[f.name for f in ordered])
    data, sizes = _kernel.encode(*stored.__arrow_c_array__())
    return EncodedRows(memoryview(data), np.frombuffer(sizes, dtype=np.int64))


def _stored_column(column: pa.Array, feature: Feature) -> pa.Array:
    if feature.is_scalar:
        return stored_array(column, feature)
    lists = example.as_lists(column, feature)
    if feature.stored_as == "little_endian_bytes":
        raw = example.raw_numbers(lists.values)
        offsets = np.asarray(lists.offsets) * raw.itemsize
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw)]
        packed = pa.Array.from_buffers(pa.binary(), len(lists), buffers)
        return pc.if_else(lists.is_valid(), packed, pa.scalar(None, pa.binary()))
    values = stored_array(lists.values, feature)
    validity = None if lists.null_count == 0 else lists.is_valid().buffers()[1]
    offsets_buffer = pa.py_buffer(np.ascontiguousarray(np.asarray(lists.offsets), dtype=np.int32))
    return pa.Array.from_buffers(pa.list_(values.type), len(lists), [validity, offsets_buffer], children=[values])
