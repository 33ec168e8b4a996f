"""A file of known size that is read at a position, for classes that fetch its bytes."""

from __future__ import annotations

import io
from typing import BinaryIO


class SeekableFile(io.RawIOBase):
    """Keeps the position in a file."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        """Returns that it can be read."""
        return True

    def seekable(self) -> bool:
        """Returns that it has positions."""
        return True

    def tell(self) -> int:
        """Returns the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves the position, also behind the end, and returns it. Raises ValueError if it would be negative."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position


class SplicedFile(SeekableFile):
    """The start of one file, and behind it something else.

    Args:
        raw: The file, seekable.
        num_bytes: How much of it is read.
        rest: What follows.
    """

    def __init__(self, raw: BinaryIO, num_bytes: int, rest: bytes) -> None:
        super().__init__(num_bytes + len(rest))
        self._raw, self._num_raw_bytes, self._rest = raw, num_bytes, rest

    def read(self, num_bytes: int = -1, /) -> bytes:
        """Returns up to `num_bytes` bytes, all there are if that is negative."""
        stop = self._num_bytes if num_bytes < 0 else min(self._num_bytes, self._position + num_bytes)
        data = b""
        if self._position < min(stop, self._num_raw_bytes):
            self._raw.seek(self._position)
            data = self._raw.read(min(stop, self._num_raw_bytes) - self._position)
        if stop > self._num_raw_bytes:
            data += self._rest[max(0, self._position - self._num_raw_bytes) : stop - self._num_raw_bytes]
        self._position += len(data)
        return data
