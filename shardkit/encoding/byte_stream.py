"""What is read from front to back."""

from __future__ import annotations

from typing import Protocol

from shardkit.units import MiB

_PIECE_BYTES = MiB


class Readable(Protocol):
    """What is read in pieces."""

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none at the end."""
        ...


class ByteStream(Readable, Protocol):
    """What also fills buffers; a class that derives from it need only read."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fills a buffer as far as it can, and returns how many bytes that were; 0 at the end."""
        found = self.read(min(len(buffer), _PIECE_BYTES))
        buffer[: len(found)] = found
        return len(found)
