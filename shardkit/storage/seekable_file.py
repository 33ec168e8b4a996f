"""A file of known size that is read at a position, for classes that fetch its bytes."""

from __future__ import annotations

import io


class SeekableFile(io.RawIOBase):
    """Keeps the position in a file.

    Args:
        num_bytes: Size of the file.
    """

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
        """Moves the position, also behind the end, and returns it.

        Raises:
            ValueError: If it would be negative.
        """
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position
