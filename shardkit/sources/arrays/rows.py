"""Rows of an array read from a file: in order as they are, or gathered from its columns."""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np

from shardkit.encoding.byte_stream import ByteStream
from shardkit.errors import DamagedFileError, UnsafeFileError
from shardkit.sources.arrays.columns import Array
from shardkit.sources.files.expansion_limit import LARGEST_BYTES
from shardkit.units import MiB

_SLAB_BYTES = 64 * MiB


class ArrayLayout(NamedTuple):
    """How an array is in a file.

    Attributes:
        dtype: In the byte order of the file.
        shape: The first axis counts the rows.
        is_fortran: Whether the first axis is the one whose neighbours are adjacent.
        data_start: Byte of the first value, counted after decompression.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    data_start: int

    @property
    def num_rows(self) -> int:
        """Size of the first axis."""
        return self.shape[0]

    @property
    def row_values(self) -> int:
        """Values of one row."""
        num_values = 1
        for size in self.shape[1:]:
            num_values *= size
        return num_values

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.row_values * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of the header and the values."""
        return self.data_start + self.num_rows * self.row_bytes


def checked(layout: ArrayLayout, where: str) -> ArrayLayout:
    """Returns the layout that a header states, if there can be such an array. Raises UnsafeFileError if not."""
    if max(layout.num_bytes, layout.row_bytes) > LARGEST_BYTES:
        why = f"its header states the shape {list(layout.shape)}, which no file holds"
        raise UnsafeFileError("the array is refused", where=where, why=why, next_step="Make it anew, or leave it out")
    return layout


class RowReader(Protocol):
    """Reads the rows of an array in order."""

    def read(self, num_rows: int) -> Array:
        """Returns the next rows, exactly so many. Raises DamagedFileError if the file ends before."""
        ...

    def finish(self) -> None:
        """Checks, after the last row, that nothing follows. Raises DamagedFileError if something does."""
        ...


class OrderedRows:
    """Rows that are stored one after the other.

    Args:
        stream: Stands at the first row that is wanted.
    """

    def __init__(self, stream: ByteStream, layout: ArrayLayout, where: str) -> None:
        self._stream = stream
        self._layout = layout
        self._where = where

    def read(self, num_rows: int) -> Array:
        """Returns the next rows."""
        layout = self._layout
        data = np.empty(num_rows * layout.row_bytes, dtype=np.uint8)
        fill_exactly(self._stream, data, self._where)
        return data.view(layout.dtype).reshape(num_rows, *layout.shape[1:])

    def finish(self) -> None:
        """Checks that the stream ends here."""
        check_end(self._stream, self._where)


class HeldRows:
    """Rows of an array that is held whole, because it is stored by columns in a file that can only be read in order.

    Args:
        stream: Stands at the first value.
    """

    def __init__(self, stream: ByteStream, layout: ArrayLayout, where: str) -> None:
        data = np.empty(layout.num_rows * layout.row_bytes, dtype=np.uint8)
        fill_exactly(stream, data, where)
        self._values = data.view(layout.dtype).reshape(layout.shape, order="F")
        self._position = 0
        check_end(stream, where)

    def read(self, num_rows: int) -> Array:
        """Returns the next rows."""
        self._position += num_rows
        return self._values[self._position - num_rows : self._position]

    def finish(self) -> None:
        """Does nothing: the end was looked at when the values were."""


class GatheredRows:
    """Rows of an array that is stored by columns, many at a time.

    Args:
        start: The first row that is wanted.
    """

    def __init__(self, raw: BinaryIO, layout: ArrayLayout, start: int, where: str) -> None:
        self._raw = raw
        self._layout = layout
        self._where = where
        self._slab_rows = max(1, _SLAB_BYTES // layout.row_bytes)
        self._slab_start = self._slab_stop = self._position = start
        self._slab: Array = np.empty((0, *layout.shape[1:]), dtype=layout.dtype)

    def read(self, num_rows: int) -> Array:
        """Returns the next rows."""
        parts = []
        while num_rows:
            if self._position == self._slab_stop:
                self._gather()
            stop = min(self._slab_stop, self._position + num_rows)
            parts.append(self._slab[self._position - self._slab_start : stop - self._slab_start])
            num_rows -= stop - self._position
            self._position = stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [self._slab[:0]])

    def finish(self) -> None:
        """Checks that the file ends with the array."""
        self._raw.seek(self._layout.num_bytes)
        check_end(cast(ByteStream, self._raw), self._where)

    def _gather(self) -> None:
        layout = self._layout
        size = layout.dtype.itemsize
        start, stop = self._position, min(layout.num_rows, self._position + self._slab_rows)
        slab = np.empty((layout.row_values, (stop - start) * size), dtype=np.uint8)
        stream = cast(ByteStream, self._raw)
        for number in range(layout.row_values):
            self._raw.seek(layout.data_start + (number * layout.num_rows + start) * size)
            fill_exactly(stream, slab[number], self._where)
        self._slab_start, self._slab_stop = start, stop
        self._slab = slab.reshape(-1).view(layout.dtype).reshape((stop - start, *layout.shape[1:]), order="F")


def fill_exactly(stream: ByteStream, data: Array, where: str) -> None:
    """Fills an array of bytes from a stream. Raises DamagedFileError if the stream ends before."""
    view = data.data
    num_read = 0
    while num_read < len(view) and (count := stream.readinto(view[num_read:])):
        num_read += count
    if num_read < len(view):
        raise DamagedFileError(
            "the array is cut off", where=where, why=f"{len(view) - num_read:,} bytes fewer than its header says"
        )


def check_end(stream: ByteStream, where: str) -> None:
    """Checks that a stream is at its end. Raises DamagedFileError if not."""
    if stream.read(1):
        raise DamagedFileError("bytes follow the array", where=where, why="its header counts fewer values")
