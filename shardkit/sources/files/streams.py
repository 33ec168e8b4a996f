"""Raw files as streams of bytes, decompressed on the way, and the check that a file did not change."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import pyarrow as pa

from shardkit.encoding.byte_stream import ByteStream
from shardkit.encoding.gzip_files import COMPRESSED_BYTES, CUT_OFF, GzipStream, followed
from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, StorageError, UsageError
from shardkit.sources.base import ArchiveMember, RawFile, place
from shardkit.sources.files.archive_members import archive_of, is_range, open_member, open_range
from shardkit.sources.files.expansion_limit import ExpansionGuard
from shardkit.sources.files.json_records import WHOLE_DOCUMENT, RecordsStream
from shardkit.sources.files.read_ahead import read_ahead
from shardkit.sources.files.transcoding import TranscodedStream, UncommentedStream
from shardkit.storage import files as storage
from shardkit.units import MiB, format_size

_MAX_HELD_BYTES = 256 * MiB
_READ_BYTES = 64 * MiB
_MAX_DICTIONARY_BYTES = 256 * MiB
_TRANSLATED = (EOFError, OSError, lzma.LZMAError, zlib.error)


@contextmanager
def open_stream(file: RawFile, start: int = 0, *, is_read_through: bool = False) -> Iterator[ByteStream]:
    """Opens a raw file for reading from front to back, decompressed, and as UTF-8 if it has another encoding.

    Args:
        start: Byte to start at, counted in what is read.
        is_read_through: Whether all of it will be read, so that a thread may decompress or fetch what follows.

    Raises:
        BadInputError: If the file vanished since it was listed.
        DamagedFileError: If its compressed content is damaged, or not in its encoding.
        StorageError: If the store fails.
    """
    with _translated(file), _open_stored(file) as raw, _decompressed(raw, file) as found:
        stream = found if file.encoding is None else TranscodedStream(found, file.encoding, place(file))
        if file.skip_lines or file.comment is not None:
            stream = UncommentedStream(stream, file.skip_lines, file.comment)
        if file.records not in (None, WHOLE_DOCUMENT):
            stream = RecordsStream(stream, file.records, place(file))
        if start and is_seekable(file):
            raw.seek(start)
        elif start:
            _skip(stream, start)
        if is_read_through and (file.compression is not None or not storage.is_local(file.path)):
            with read_ahead(stream) as ahead:
                yield ahead
        else:
            yield stream


def is_seekable(file: RawFile) -> bool:
    """Whether `open_stream` reads the bytes as they are stored, so that reading may start anywhere."""
    is_whole = file.comment is None and not file.skip_lines and file.records is None
    return file.compression is None and file.encoding is None and is_whole


def open_raw(file: RawFile) -> BinaryIO:
    """Opens a raw file as it is stored; seekable.

    What an archive holds compressed is held in memory.

    Raises:
        BadInputError: If it vanished since it was listed.
        DamagedFileError: If it is a member of an archive, and damaged.
        UsageError: If it would have to be held in memory and is too large for that.
        StorageError: If the store fails.
    """
    if file.member is not None:
        return _open_raw_member(file, file.member)
    try:
        return storage.open_read(file.path)
    except FileNotFoundError as error:
        raise changed(file, "it is no longer there") from error
    except OSError as error:
        raise StorageError("the file cannot be read", where=place(file), why=str(error)) from error


def _open_raw_member(file: RawFile, member: ArchiveMember) -> BinaryIO:
    with _translated(file):
        if is_range(member):
            return open_range(open_raw(archive_of(file, member)), file, member)
        if file.num_bytes > _MAX_HELD_BYTES:
            raise UsageError(
                "the file is too large to be read inside of its archive",
                where=place(file),
                why=f"its format is read in any order, for which at most {format_size(_MAX_HELD_BYTES)} are held",
                next_step="Unpack the archive first",
            )
        with open_member(file, member, _open_archive) as stream:
            return io.BytesIO(stream.read())


@contextmanager
def open_stored(file: RawFile) -> Iterator[ByteStream]:
    """Opens a raw file as it is stored, for reading from front to back; members of archives are never held whole.

    Raises:
        BadInputError, DamagedFileError, StorageError: As `open_stream`.
    """
    with _translated(file), _open_stored(file) as raw:
        yield cast(ByteStream, raw)


@contextmanager
def _open_stored(file: RawFile) -> Iterator[BinaryIO]:
    # A member of a plain tar can be sought in.
    if file.member is None or (file.member.kind == "tar" and is_range(file.member)):
        with open_raw(file) as raw:
            yield raw
    else:
        with open_member(file, file.member, _open_archive) as stream:
            yield cast(BinaryIO, stream)


@contextmanager
def _open_archive(archive: RawFile) -> Iterator[ByteStream]:
    with open_raw(archive) as raw, _decompressed(raw, archive) as stream:
        yield stream


def read_exactly(stream: ByteStream, num_bytes: int) -> bytes:
    """Returns `num_bytes` bytes, or fewer where the stream ends."""
    # Python allocates as much as is asked for before it reads: a limit of 1 GiB would cost 1 GiB for any file.
    parts, missing = [], num_bytes
    while missing and (part := stream.read(min(missing, _READ_BYTES))):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _skip(stream: ByteStream, num_bytes: int) -> None:
    while num_bytes and (part := stream.read(min(num_bytes, COMPRESSED_BYTES))):
        num_bytes -= len(part)


def read_head(file: RawFile, num_bytes: int) -> bytes:
    """Returns the first `num_bytes` bytes after decompression, or all there are.

    Raises:
        BadInputError, StorageError: As `open_stream`.
    """
    with open_stream(file) as stream:
        return read_exactly(stream, num_bytes)


@contextmanager
def guard_unchanged(file: RawFile) -> Iterator[None]:
    """Checks, after the file was read, that it is unchanged since it was listed.

    A file that changed explains whatever went wrong in it, so the change is reported rather than the damage.

    Raises:
        BadInputError: If its size or version differs, or it is gone.
    """
    try:
        yield
    except BadInputError:
        check_unchanged(file)
        raise
    check_unchanged(file)


def check_unchanged(file: RawFile) -> None:
    """Checks that a file still has the size and version that it was listed with. Raises BadInputError if not."""
    try:
        now = storage.stat_file(file.path)
    except (UsageError, FileNotFoundError) as error:
        raise changed(file, "it is no longer there") from error
    compare_listed(file, now.num_bytes, now.version)


def compare_listed(file: RawFile, num_bytes: int, version: str) -> None:
    """Checks that a file was listed with this size and version. Raises BadInputError if not."""
    listed = file.num_bytes if file.member is None else file.member.archive_num_bytes
    if num_bytes != listed:
        raise changed(file, f"it had {listed} bytes and now has {num_bytes}")
    if version != file.version:
        raise changed(file, "it was written to")


def changed(file: RawFile, why: str) -> DamagedFileError:
    """Returns the error that a file has changed since it was listed."""
    return DamagedFileError(
        "the file changed during conversion",
        where=place(file),
        why=why,
        next_step="Run the command again once nothing writes to it any more",
    )


@contextmanager
def _decompressed(raw: BinaryIO, file: RawFile) -> Iterator[ByteStream]:
    if file.compression in (None, "archive"):
        yield cast(ByteStream, raw)
        return
    guard = ExpansionGuard(file, place(file))
    if file.compression == "gzip":
        yield GuardedStream(GzipStream(raw), guard, file)
    elif file.compression == "bz2":
        yield GuardedStream(_JoinedStreams(raw, bz2.BZ2Decompressor, b"BZh"), guard, file)
    elif file.compression == "xz":
        yield GuardedStream(_JoinedStreams(raw, new_xz, b"\xfd7zXZ\0"), guard, file)
    else:
        yield GuardedStream(_ZstdStream(raw), guard, file)


class GuardedStream:
    """What a file becomes, counted; its damage is an error that names this file, whichever others are open."""

    def __init__(self, stream: ByteStream, guard: ExpansionGuard, file: RawFile) -> None:
        self._stream = stream
        self._guard = guard
        self._file = file

    def read(self, num_bytes: int, /) -> bytes:
        try:
            data = self._stream.read(num_bytes)
        except _TRANSLATED as error:
            raise _translation(error, self._file) from error
        self._guard.add(len(data))
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            num_bytes = self._stream.readinto(buffer) or 0
        except _TRANSLATED as error:
            raise _translation(error, self._file) from error
        self._guard.add(num_bytes)
        return num_bytes


def new_xz() -> lzma.LZMADecompressor:
    """Returns what decompresses xz, with a limit of memory."""
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY_BYTES)


class _JoinedStreams(ByteStream):
    # Streams of bz2 or xz, one behind the other.
    def __init__(
        self, raw: BinaryIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor], magic: bytes
    ) -> None:
        self._raw = raw
        self._new = new
        self._magic = magic
        self._stream = new()
        self._rest = b""

    def read(self, num_bytes: int, /) -> bytes:
        while not self._stream.eof or self._begin():
            data, self._rest = self._rest, b""
            if self._stream.needs_input and not data:
                data = self._raw.read(COMPRESSED_BYTES)
                if not data:
                    raise EOFError(CUT_OFF)
            found = self._stream.decompress(data, num_bytes)
            if found:
                return found
        return b""

    def _begin(self) -> bool:
        # Behind a stream there may be another one, or zeros.
        rest = self._stream.unused_data
        while not (rest := rest.lstrip(b"\0")):
            rest = self._raw.read(COMPRESSED_BYTES)
            if not rest:
                return False
        self._rest = rest
        if not self._rest.startswith(self._magic[: len(self._rest)]):
            raise followed(self._rest, self._raw)
        self._stream = self._new()
        return True


class _ZstdStream(ByteStream):
    # Arrow drops what a read found before a cut, so that is read again, at last byte by byte.
    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._num_read, self._most = 0, COMPRESSED_BYTES
        # All are kept: the end of one closes the file.
        self._streams = [self._new()]

    def read(self, num_bytes: int, /) -> bytes:
        try:
            found: bytes = self._streams[-1].read(min(num_bytes, self._most))
        except OSError as error:
            if "Truncated" not in str(error):
                raise
            self._most //= 512
            if not self._most or not hasattr(self._raw, "seek"):
                raise EOFError(CUT_OFF) from error
            self._raw.seek(0)
            self._streams.append(self._new())
            _skip(self._streams[-1], self._num_read)
            return self.read(num_bytes)
        self._num_read += len(found)
        return found

    def _new(self) -> ByteStream:
        return cast(ByteStream, pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), "zstd"))


@contextmanager
def _translated(file: RawFile) -> Iterator[None]:
    try:
        yield
    except ShardkitError:
        raise
    except MemoryError as error:
        error.add_note(place(file))  # The message at the end of a command names it.
        raise
    except _TRANSLATED as error:
        raise _translation(error, file) from error


def _translation(error: Exception, file: RawFile) -> ShardkitError:
    if file.compression is None or getattr(error, "errno", None):
        return StorageError("the file cannot be read", where=place(file), why=str(error))
    why = str(error)
    if isinstance(error, lzma.LZMAError) and "memory" in why.lower():
        return DamagedFileError(
            "the xz file is refused",
            where=place(file),
            why=f"its dictionary takes more than {format_size(_MAX_DICTIONARY_BYTES)}",
            next_step="Compress it anew by xz -9, whose dictionary has 64 MiB, or decompress it",
        )
    what = f"the {file.compression} file is cut off or damaged"
    return DamagedFileError(what, where=place(file), why=why[:1].lower() + why[1:])
