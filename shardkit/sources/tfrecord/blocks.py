"""TFRecord files as blocks of whole records, whatever they are compressed with.

A length is used only after its CRC32C and the bytes that are left were checked. Where a length cannot be trusted,
nothing behind it can be found, so that is damage of the file; where the CRC32C of a record's own bytes does not match,
only that record is damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
from isal import igzip_lib, isal_zlib

from shardkit.encoding.byte_stream import ByteStream
from shardkit.encoding.kernel import Int64s, scan
from shardkit.encoding.tfrecord import FOOTER_BYTES, HEADER_BYTES, masked_crc32c
from shardkit.errors import BadInputError, DamagedFileError
from shardkit.sources.base import MAX_RAW_BYTES, RawFile, SourceOptions, place
from shardkit.sources.files.expansion_limit import ExpansionGuard
from shardkit.sources.files.read_ahead import read_ahead
from shardkit.sources.files.streams import open_stored, open_stream, read_exactly
from shardkit.units import KiB, MiB

Form = Literal["plain", "zlib", "compressed"]

_SNIFFED_BYTES = 512
_COMPRESSED_BYTES = 256 * KiB
_ZLIB_WINDOW = 15
_MAX_RECORD_BYTES = 2**31 - 1  # Arrow counts with 32 bits.
_LARGEST = 2**63 - 1
_MAX_CANDIDATES = 20_000
_DAMAGED = cast(type[Exception], igzip_lib.IsalError)


class CutOffError(DamagedFileError):
    """The frames end within a record; all before it are whole.

    Attributes:
        offset: Where its frame starts in the uncompressed file.
        data: What is there of it, or the first bytes of that.
    """

    offset = 0
    data = b""


class RecordBlock(NamedTuple):
    """Some records of a file.

    Attributes:
        data: Holds the frames. Of a record that is too large, only the first MAX_RAW_BYTES.
        offset: Where `data` starts in the uncompressed file.
        starts, lengths: Of the records' own bytes within `data`, without framing.
        is_damaged: Whether the CRC32C of the record's bytes does not match.
    """

    data: bytes
    offset: int
    starts: Int64s
    lengths: Int64s
    is_damaged: npt.NDArray[np.bool_]

    def record(self, row: int) -> bytes:
        """Returns the bytes of one record, or as many as are there."""
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])]

    def first_byte(self, row: int) -> int:
        """Returns where the frame of a record starts in the uncompressed file."""
        return self.offset + int(self.starts[row]) - HEADER_BYTES


def is_record_header(head: bytes) -> bool:
    """Whether bytes begin with the header of a record: a length and its masked CRC32C."""
    return len(head) >= HEADER_BYTES and int.from_bytes(head[8:12], "little") == masked_crc32c(head[:8])


def is_zlib_of_records(head: bytes) -> bool:
    """Whether bytes are the beginning of a zlib stream that begins with a record."""
    return _is_zlib_head(head) and is_record_header(unzipped_head(head))


def form_of(file: RawFile) -> Form:
    """Returns how the records of a file are stored.

    A plain file may begin like a compressed one, because it begins with a length.

    Raises:
        BadInputError, StorageError: If the file is gone or cannot be read.
    """
    with open_stored(file) as raw:
        head = read_exactly(raw, _SNIFFED_BYTES)
    if is_record_header(head) and file.compression != "archive":
        return "plain"
    if file.compression not in (None, "archive") or is_record_header(head):
        return "compressed"
    if _is_zlib_head(head) and unzipped_head(head):
        return "zlib"
    return "plain" if file.compression is None else "compressed"


def max_length(options: SourceOptions) -> int:
    """Returns the most bytes a record may have."""
    return min(options.max_record_bytes, _MAX_RECORD_BYTES)


@contextmanager
def open_records(file: RawFile, form: Form, start: int = 0, *, is_read_through: bool = False) -> Iterator[ByteStream]:
    """Opens the frames of a file for reading, decompressed.

    Args:
        start: Byte to start at; only of a plain file.
        is_read_through: Whether all of it will be read, so that a thread may decompress what follows.
    """
    if form == "zlib":
        with open_stored(file) as raw:
            unzipped = _ZlibStream(raw, ExpansionGuard(file, place(file)))
            if is_read_through:
                with read_ahead(unzipped) as ahead:
                    yield ahead
            else:
                yield unzipped
        return
    listed = file if form == "compressed" else msgspec.structs.replace(file, compression=None)
    with open_stream(listed, start, is_read_through=is_read_through) as stream:
        yield stream


def read_blocks(frames: Frames, options: SourceOptions, *, block_bytes: int) -> Iterator[RecordBlock]:
    """Yields records in blocks of about `block_bytes`.

    Args:
        frames: Holds them; nothing of it was taken.
        block_bytes: Wanted size; a longer record is a whole block.

    Raises:
        DamagedFileError: If the frames are cut off, a length is damaged, or the compressed content is.
    """
    limit = max_length(options)
    carry, offset = b"", frames.start
    while True:
        data = carry + frames.take(max(0, block_bytes - len(carry)) or block_bytes)
        if not data:
            frames.check_end(offset)
            return
        starts, lengths, states, end = scan(data)
        if end == 0:
            length = frames.checked_length(data, offset)
            needed = HEADER_BYTES + length + FOOTER_BYTES
            if length <= limit:
                carry = data + frames.take(needed - len(data))
                if len(carry) < needed:
                    raise frames.cut_off(offset, length, carry)
                continue
            carry = frames.skip(data, needed, offset)
            yield _too_large(data, offset, length)
            offset += needed
            continue
        yield RecordBlock(data, offset, starts, lengths, states != 0)
        carry, offset = data[end:], offset + end


def find_cuts(file: RawFile, options: SourceOptions, split_bytes: int, block_bytes: int) -> list[int]:
    """Returns where the splits of a plain file start, and its end: at records, about `split_bytes` apart.

    Every length is followed from the start, because records may hold bytes that look like records.

    Raises:
        DamagedFileError: If the chain breaks.
    """
    cuts = [0]
    with open_records(file, "plain", is_read_through=True) as stream:
        for block in read_blocks(Frames(stream, file, "plain", 0, file.num_bytes), options, block_bytes=block_bytes):
            firsts = block.offset + block.starts - HEADER_BYTES
            while firsts[-1] >= cuts[-1] + split_bytes:
                cuts.append(int(firsts[np.searchsorted(firsts, cuts[-1] + split_bytes)]))
    return [*cuts, file.num_bytes]


def count_records(file: RawFile, options: SourceOptions, stop: int, block_bytes: int) -> int:
    """Returns how many records of a plain file start before byte `stop`, where one of them ends.

    Raises:
        DamagedFileError: If the chain breaks.
    """
    with open_records(file, "plain") as stream:
        blocks = read_blocks(Frames(stream, file, "plain", 0, stop), options, block_bytes=block_bytes)
        return sum(len(b.starts) for b in blocks) if stop else 0


def find_records(data: bytes) -> RecordBlock | None:
    """Returns the records in bytes from the middle of a file, None if no whole one is found.

    Only good enough for a look at the data: a record may hold bytes that look like records.
    """
    view = np.frombuffer(data, np.uint8)
    if len(view) < HEADER_BYTES + FOOTER_BYTES:
        return None
    num_places = len(view) - HEADER_BYTES - FOOTER_BYTES + 1
    lengths = np.lib.stride_tricks.sliding_window_view(view, 8)[:num_places]
    short = np.flatnonzero((lengths[:, 4:] == 0).all(axis=1) & (lengths[:, 3] == 0))
    for position in short[:_MAX_CANDIDATES].tolist():
        if is_record_header(data[position : position + HEADER_BYTES]):
            rest = data[position:]
            starts, sizes, states, end = scan(rest)
            if end and states[0] == 0:
                return RecordBlock(rest, position, starts, sizes, states != 0)
    return None


class Frames(ByteStream):
    """Takes bytes from a stream, no further than the records go.

    Args:
        stream: Stands at `start`.
        start: Byte of the file at which the stream begins.
        stop: Where the records end; 0 where the stream does.
    """

    def __init__(self, stream: ByteStream, file: RawFile, form: Form, start: int, stop: int) -> None:
        self._stream = stream
        self._file = file
        self._is_compressed = form != "plain"
        self._kind = file.compression or "zlib"
        self.start = self._position = start
        self._stop = stop
        self._is_cut_off = False

    def take(self, num_bytes: int) -> bytes:
        """Returns the next bytes, fewer where the records end or compressed content is cut off."""
        if self._stop:
            num_bytes = min(num_bytes, self._stop - self._position)
        return read_exactly(self, num_bytes) if num_bytes > 0 else b""

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none where the stream ends or compressed content is cut off."""
        try:
            data = self._stream.read(num_bytes)
        except (EOFError, zlib.error, DamagedFileError) as error:
            # A stream that knows its file has made another error of what it met.
            if isinstance(error.__cause__ or error, EOFError):
                data, self._is_cut_off = b"", True
            elif isinstance(error, DamagedFileError):
                raise
            else:
                raise self._damaged(error) from error
        except OSError as error:
            if getattr(error, "errno", None) or not self._is_compressed:
                raise
            raise self._damaged(error) from error
        self._position += len(data)
        return data

    def check_end(self, offset: int) -> None:
        """Raises CutOffError if the frames end at `offset` because compressed content is cut off there."""
        if self._is_cut_off:
            raise self.cut_off(offset, None, b"")

    def skip(self, data: bytes, needed: int, offset: int) -> bytes:
        """Passes over a frame that begins with `data`, and returns the bytes of `data` behind it."""
        missing = needed - len(data)
        while missing > 0:
            part = self.take(min(missing, MiB))
            if not part:
                raise self.cut_off(offset, needed - HEADER_BYTES - FOOTER_BYTES, data, needed - missing)
            missing -= len(part)
        return data[needed:]

    def checked_length(self, data: bytes, offset: int) -> int:
        """Returns the length of the record that `data` begins with, which is not all there.

        Raises:
            DamagedFileError: If it is damaged, or longer than what is left.
        """
        if len(data) < HEADER_BYTES:
            raise self.cut_off(offset, None, data)
        if not is_record_header(data):
            what = "the length of a record is damaged" if offset else "the file holds no TFRecords"
            raise DamagedFileError(
                what, where=self._at(offset), why="the CRC32C of its length does not match, so what follows is lost"
            )
        length = int.from_bytes(data[:8], "little")
        left = self._stop - offset if self._stop else None
        if left is not None and HEADER_BYTES + length + FOOTER_BYTES > left:
            raise self.cut_off(offset, length, data, left)
        return length

    def cut_off(self, offset: int, length: int | None, data: bytes, num_bytes: int | None = None) -> CutOffError:
        """Returns the error for a frame of which only `num_bytes` are there, those of `data` if not given."""
        num_bytes = len(data) if num_bytes is None else num_bytes
        frame_bytes = None if length is None else f"{HEADER_BYTES + length + FOOTER_BYTES:,}"
        why = f"only {num_bytes:,} bytes are left" + (f", it has {frame_bytes}" if frame_bytes else "")
        what = f"the {self._kind} file is cut off" if self._is_cut_off else "a record is cut off"
        error = CutOffError(what, where=self._at(offset), why=why if num_bytes else "it ends behind a whole record")
        error.offset, error.data = offset, data
        return error

    def _at(self, offset: int) -> str:
        return byte_place(self._file, offset, is_compressed=self._is_compressed)

    def _damaged(self, error: Exception) -> BadInputError:
        text = str(error)
        return DamagedFileError(
            f"the {self._kind} file is cut off or damaged",
            where=self._at(self._position),
            why=text[:1].lower() + text[1:],
        )


def byte_place(file: RawFile, offset: int, *, is_compressed: bool, row: int | None = None) -> str:
    """Returns where a frame is, such as `a.tfrecord, row 3, byte 412`."""
    return f"{place(file, row=row)}, {byte_words(offset, is_compressed=is_compressed)}"


def byte_words(offset: int, *, is_compressed: bool) -> str:
    """Returns such as `byte 412`."""
    return f"{'uncompressed ' if is_compressed else ''}byte {offset:,}"


def _too_large(data: bytes, offset: int, length: int) -> RecordBlock:
    return RecordBlock(
        data[: HEADER_BYTES + MAX_RAW_BYTES],
        offset,
        np.array([HEADER_BYTES], np.int64),
        np.array([min(length, _LARGEST)], np.int64),
        np.zeros(1, np.bool_),
    )


def _is_zlib_head(head: bytes) -> bool:
    # Deflate, a window of at most 32 KiB, no dictionary, and a check of these two bytes.
    if len(head) < 2 or head[0] & 0x0F != 8 or head[0] >> 4 > 7 or head[1] & 0x20:
        return False
    return int.from_bytes(head[:2], "big") % 31 == 0


def unzipped_head(head: bytes, window: int = zlib.MAX_WBITS) -> bytes:
    """Returns the first bytes of a zlib stream, as many as the header of a record has; none if it is damaged.

    Args:
        window: As `zlib.decompressobj` takes it.
    """
    try:
        return zlib.decompressobj(window).decompress(head, HEADER_BYTES)
    except zlib.error:
        return b""


class _ZlibStream(ByteStream):
    """The content of a zlib stream, decompressed without holding up other threads."""

    def __init__(self, raw: ByteStream, guard: ExpansionGuard) -> None:
        self._raw = raw
        self._guard = guard
        self._rest = b""
        self._unzip: Any = isal_zlib.decompressobj(_ZLIB_WINDOW)

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none at the end.

        Raises:
            EOFError: If the stream is cut off.
            zlib.error: If it is damaged, or something follows it.
        """
        while not self._unzip.eof:
            data = self._rest or self._raw.read(_COMPRESSED_BYTES)
            try:
                found: bytes = self._unzip.decompress(data, num_bytes)
            except _DAMAGED as error:
                raise zlib.error(str(error)) from error
            self._rest = self._unzip.unconsumed_tail
            if found:
                self._guard.add(len(found))
                return found
            if not data and not self._unzip.eof:
                raise EOFError("compressed file ended before the end-of-stream marker was reached")
        if self._unzip.unused_data or self._raw.read(1):
            raise zlib.error("more bytes follow the end of the stream")
        return b""
