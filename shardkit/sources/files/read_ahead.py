"""A stream that a separate thread reads, so that waiting and decompressing overlap with the use of the bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from shardkit.encoding.byte_stream import ByteStream, Readable
from shardkit.runtime.threads import WorkerThreads
from shardkit.units import MiB

_PIECE_BYTES = MiB
_NUM_PIECES = 4


@contextmanager
def read_ahead(stream: Readable) -> Iterator[ReadAheadStream]:
    """Opens a stream that another thread reads, at most _NUM_PIECES pieces ahead; the thread ends with the block.

    What the other stream raises is raised where its bytes would have been read.
    """
    thread = WorkerThreads(1, "read-ahead")
    try:
        yield ReadAheadStream(lambda: thread.submit(stream.read, _PIECE_BYTES))
    finally:
        thread.shutdown(cancel_futures=True)


class ReadAheadStream(ByteStream):
    """The reading end.

    Args:
        begin: Begins to read the next piece; an empty piece or an error is the last one.
    """

    def __init__(self, begin: Callable[[], Future[bytes]]) -> None:
        self._begin = begin
        self._pieces = deque(begin() for _ in range(_NUM_PIECES))
        self._piece = memoryview(b"")

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none at the end."""
        if not self._piece:
            # The last piece stays the first one, so that a further call finds it again.
            self._piece = memoryview(self._pieces[0].result())
            if self._piece:
                self._pieces.popleft()
                self._pieces.append(self._begin())
        taken, self._piece = self._piece[:num_bytes], self._piece[num_bytes:]
        return bytes(taken)
