"""Files of known size that are read at a position: those of stores, and those with another end."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

from shardkit.errors import StorageError
from shardkit.storage.clients import client_of
from shardkit.storage.locations import redact
from shardkit.storage.requests import with_retries
from shardkit.units import MiB

_BUFFER_BYTES = MiB


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


def open_object(path: str) -> BinaryIO:
    """Opens an object for reading bytes; seekable where the store knows ranges and sizes.

    Raises:
        FileNotFoundError: If it is missing.
        StorageError: If the store kept failing; so does reading.
    """
    # Some clients remember from a listing that an object is missing, or the size of one that was replaced since.
    client_of(path).invalidate_cache()
    file = with_retries(lambda left_s: client_of(path).open(path, "rb"), path)
    num_bytes = getattr(file, "size", None)
    if num_bytes is None:
        # Some web servers give a stream and nothing else.
        return cast(BinaryIO, file)
    return cast(BinaryIO, io.BufferedReader(_ObjectFile(path, file, num_bytes), _BUFFER_BYTES))


class _ObjectFile(SeekableFile):
    """The client's own file, which reads ahead and notices where an object is replaced."""

    def __init__(self, path: str, file: Any, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self._path = path
        self._file = file

    def readinto(self, buffer: Any, /) -> int:
        data = self._read(min(len(buffer), max(0, self._num_bytes - self._position)))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._read(max(0, self._num_bytes - self._position))

    def close(self) -> None:
        self._file.close()
        super().close()

    def _read(self, num_bytes: int) -> bytes:
        def request(left_s: float) -> bytes:
            self._file.seek(self._position)
            data = cast(bytes, self._file.read(num_bytes))
            if len(data) != num_bytes:
                raise StorageError(
                    "the store gave a short answer", where=redact(self._path), why=f"{len(data)} of {num_bytes} bytes"
                )
            return data

        data = with_retries(request, self._path) if num_bytes else b""
        self._position += num_bytes
        return data
