"""Decoded columns of records as Arrow arrays of stored values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.encoding.kernel_reference import ANY_NUMBER, BYTES, FLOAT, FLOAT64, INT64
from shardkit.file_types import is_utf8

STORED_TYPES = {BYTES: pa.binary(), FLOAT: pa.float32(), INT64: pa.int64(), FLOAT64: pa.float64()}
"""Arrow type of one stored value by kind."""


def stored_column(
    buffers: tuple[Any, ...], num_rows: int, type_: pa.DataType, num_values: int, *, is_scalar: bool
) -> pa.Array:
    """Returns one column that the kernel decoded, as values, lists or lists of a fixed size.

    Args:
        buffers: As `kernel_reference.Decoded` describes them.
        num_values: Values in every row, or ANY_NUMBER.
        is_scalar: Whether a row is a value, not a list of one.
    """
    validity, *rest = [None if b is None else pa.py_buffer(b) for b in buffers]
    if is_scalar:
        return pa.Array.from_buffers(type_, num_rows, [validity, *rest])
    if num_values == ANY_NUMBER:
        offsets, *rest = rest
        return _lists(type_, num_rows, validity, offsets, rest)
    if type_ != pa.binary():
        values = pa.Array.from_buffers(type_, num_rows * num_values, [None, *rest])
    elif num_values == 1:
        # One value a row, also where the row is null.
        values = pa.Array.from_buffers(type_, num_rows, [None, *rest])
    else:
        offsets, *rest = rest
        lists = _lists(type_, num_rows, validity, offsets, rest)
        return lists.cast(pa.list_(type_, num_values)) if not lists.null_count else _spread(lists, num_values)
    list_type = pa.list_(type_, num_values)
    return pa.Array.from_buffers(list_type, num_rows, [validity], children=[values])


def present_rows(buffers: tuple[Any, ...], num_rows: int) -> npt.NDArray[np.int64]:
    """Returns the positions of the rows that are not null in a column that the kernel decoded, ascending."""
    if buffers[0] is None:
        return np.arange(num_rows, dtype=np.int64)
    bits = np.unpackbits(np.frombuffer(buffers[0], np.uint8), count=num_rows, bitorder="little")
    return np.flatnonzero(bits)


def filled_rows(buffers: tuple[Any, ...], num_rows: int) -> npt.NDArray[np.int64]:
    """Returns the positions of the rows that hold a value in a column of lists of any length, ascending."""
    return np.flatnonzero(np.diff(np.frombuffer(buffers[1], np.int32)[: num_rows + 1]))


def bad_texts(values: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the positions of bytes values that are not UTF-8, ascending."""
    _, offsets, content = values.buffers()
    if content is None or not len(values):
        return np.zeros(0, np.int64)
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(content, np.uint8)[: ends[-1]]
    if not len(data) or data[ends[0] :].max(initial=0) < 0x80:
        return np.zeros(0, np.int64)
    starts = ends[:-1][ends[:-1] < ends[1:]]
    if is_utf8(data[ends[0] :]) and not ((data[starts] & 0xC0) == 0x80).any():
        # All of it is UTF-8, and no value begins in the middle of a character.
        return np.zeros(0, np.int64)
    return np.array([i for i, v in enumerate(values.to_pylist()) if v is not None and not is_utf8(v)], np.int64)


def _lists(type_: pa.DataType, num_rows: int, validity: Any, offsets: Any, rest: list[Any]) -> pa.Array:
    num_values = int(np.frombuffer(offsets, np.int32)[num_rows])
    values = pa.Array.from_buffers(type_, num_values, [None, *rest])
    return pa.Array.from_buffers(pa.list_(type_), num_rows, [validity, offsets], children=[values])


def _spread(lists: pa.Array, num_values: int) -> pa.Array:
    # A null takes up room in a list of a fixed size, and has no values in one of any size.
    is_there = np.repeat(lists.is_valid().to_numpy(zero_copy_only=False), num_values)
    positions = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
    return pa.FixedSizeListArray.from_arrays(lists.values.take(positions), num_values, mask=lists.is_null())
