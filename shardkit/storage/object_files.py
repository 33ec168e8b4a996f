"""Objects that are read like files: a request that fails, or is answered in part, is made again."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

from shardkit.errors import StorageError
from shardkit.storage.clients import client_of
from shardkit.storage.locations import redact
from shardkit.storage.requests import with_retries
from shardkit.storage.seekable_file import SeekableFile
from shardkit.units import MiB

_BUFFER_BYTES = MiB


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
