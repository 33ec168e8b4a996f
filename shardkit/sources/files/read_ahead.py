"""A stream that a separate thread reads, so that waiting and decompressing overlap with the use of the bytes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shardkit.encoding.byte_stream import ByteStream, Readable
from shardkit.runtime.threads import start_thread
from shardkit.units import MiB

_PIECE_BYTES = MiB
_NUM_PIECES = 4
_WAIT_S = 0.1


@contextmanager
def read_ahead(stream: Readable) -> Iterator[ReadAheadStream]:
    """Opens a stream that another thread fills, at most _NUM_PIECES pieces ahead; the thread ends with the block.

    What the other stream raises is raised where its bytes would have been read.
    """
    pieces: queue.Queue[bytes | BaseException] = queue.Queue(_NUM_PIECES)
    is_over = threading.Event()
    thread = threading.Thread(target=_fill, args=(stream, pieces, is_over), name="read ahead", daemon=True)
    start_thread(thread)
    try:
        yield ReadAheadStream(pieces)
    finally:
        is_over.set()
        thread.join()


class ReadAheadStream(ByteStream):
    """The reading end.

    Args:
        pieces: What follows, in order; an empty piece or an error is the last one.
    """

    def __init__(self, pieces: queue.Queue[bytes | BaseException]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._end: bytes | BaseException | None = None

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none at the end."""
        while not self._piece and self._end is None:
            item = self._pieces.get()
            if isinstance(item, bytes) and item:
                self._piece = memoryview(item)
            else:
                self._end = item
        if not self._piece and isinstance(self._end, BaseException):
            raise self._end
        taken, self._piece = self._piece[:num_bytes], self._piece[num_bytes:]
        return bytes(taken)


def _fill(stream: Readable, pieces: queue.Queue[bytes | BaseException], is_over: threading.Event) -> None:
    item: bytes | BaseException = b""
    while not is_over.is_set():
        try:
            item = stream.read(_PIECE_BYTES)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the reader is to know.
            item = error
        while not is_over.is_set():
            try:
                pieces.put(item, timeout=_WAIT_S)
                break
            except queue.Full:
                continue
        if not isinstance(item, bytes) or not item:
            return
