"""Which rows of decoded columns are there, and which texts are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.file_types import is_utf8


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
