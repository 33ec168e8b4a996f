"""Members of archives, read where they are: nothing is ever extracted.

A member of a plain tar, or one that a ZIP archive stores, is a range of bytes. A deflated one is decompressed by
itself. To reach a member of a compressed tar, all bytes in front of it are decompressed. So the place where reading
stopped is kept open, and the head of a member that was looked at is remembered. Members that are asked for in the order
of the archive then cost one pass over it, however often each is opened.
"""

from __future__ import annotations

import io
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, BinaryIO, cast

from isal import igzip_lib, isal_zlib

from shardkit.encoding.byte_stream import Readable
from shardkit.sources.base import ArchiveMember, RawFile
from shardkit.sources.files.zip_directory import DEFLATED, ENCRYPTED, LOCAL_HEADER, LOCAL_MAGIC, STORED
from shardkit.storage.seekable_file import SeekableFile
from shardkit.units import KiB, MiB

_PIECE_BYTES = 256 * KiB
_RAW_WINDOW = -15
_MAX_IDLE = 8
_MAX_HEAD_BYTES, _MAX_HEADS_BYTES = 2 * MiB, 64 * MiB
_DAMAGED = cast(type[Exception], igzip_lib.IsalError)


OpenArchive = Callable[[RawFile], AbstractContextManager[Readable]]


def archive_of(file: RawFile, member: ArchiveMember) -> RawFile:
    """Returns the archive that a file is in."""
    return RawFile(
        path=file.path,
        name=file.name,
        num_bytes=member.archive_num_bytes,
        version=file.version,
        compression=member.archive_compression,
        max_expansion=file.max_expansion,
    )


def is_range(member: ArchiveMember) -> bool:
    """Whether a member is a range of the bytes of its archive, so that it can be read anywhere."""
    return not member.is_deflated and member.archive_compression is None


def open_range(archive: BinaryIO, file: RawFile, member: ArchiveMember) -> BinaryIO:
    """Returns a member that is a range as a file; closing it closes the archive.

    Raises:
        zlib.error: If there is no member.
    """
    start = member.start if member.kind == "tar" else _find_data(archive, member)
    return cast(BinaryIO, io.BufferedReader(_Range(archive, start, file.num_bytes), _PIECE_BYTES))


@contextmanager
def open_member(file: RawFile, member: ArchiveMember, open_archive: OpenArchive) -> Iterator[_MemberStream]:
    """Opens a member for reading from front to back; read to its end, its checksum is checked.

    Args:
        open_archive: Opens the archive, decompressed if it is compressed as a whole.

    Raises:
        EOFError: On reading, if the archive is cut off.
        zlib.error: On reading, if the member is damaged.
    """
    place = _Place(archive_of(file, member), member.start, open_archive)
    try:
        yield _MemberStream(place, member, file.num_bytes)
    finally:
        place.give_back()


def remember_head(file: RawFile, member: ArchiveMember, head: bytes) -> None:
    """Keeps the first bytes of a member until it is opened, if there is room for them."""
    if not is_range(member) and len(head) + _HEADS.num_bytes <= _MAX_HEADS_BYTES:
        _HEADS.put(_Heads.key(archive_of(file, member), member.start), head)


class _Cursor:
    # An open archive and the place where it was last read.
    def __init__(self, archive: RawFile, open_archive: OpenArchive) -> None:
        self.archive = archive
        self.process = os.getpid()
        self.position = 0
        self.is_sound = True
        self._stack = ExitStack()
        self._stream = self._stack.enter_context(open_archive(archive))

    def read(self, num_bytes: int) -> bytes:
        self.is_sound = False
        data = self._stream.read(num_bytes)
        self.is_sound = True
        self.position += len(data)
        return data

    def move_to(self, position: int) -> None:
        if self.archive.compression is None:
            cast(BinaryIO, self._stream).seek(position)
            self.position = position
            return
        while self.position < position:
            if not self.read(min(_PIECE_BYTES, position - self.position)):
                raise EOFError("the archive is cut off")

    def close(self) -> None:
        self._stack.close()


class _Idle:
    # Archives that were read from and may be again; a child process must not share the places of its parent.
    def __init__(self) -> None:
        self._cursors: list[_Cursor] = []
        self._lock = threading.Lock()

    def take(self, archive: RawFile, position: int, *, is_forward_only: bool) -> _Cursor | None:
        with self._lock:
            candidates = [
                c
                for c in self._cursors
                if (c.archive.path, c.archive.version, c.process) == (archive.path, archive.version, os.getpid())
                and not (is_forward_only and c.position > position)
            ]
            if not candidates:
                return None
            best = max(candidates, key=lambda c: c.position)
            self._cursors.remove(best)
            return best

    def give(self, cursor: _Cursor) -> None:
        with self._lock:
            self._cursors.append(cursor)
            surplus = self._cursors.pop(0) if len(self._cursors) > _MAX_IDLE else None
        if surplus is not None:
            surplus.close()


_IDLE = _Idle()


class _Heads:
    # The first bytes of members that are in compressed archives, those that were used last.
    def __init__(self) -> None:
        self.num_bytes = 0
        self._heads: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def key(archive: RawFile, start: int) -> tuple[str, str, int]:
        return archive.path, archive.version, start

    def get(self, key: tuple[str, str, int]) -> bytes:
        with self._lock:
            if key not in self._heads:
                return b""
            self._heads.move_to_end(key)
            return self._heads[key]

    def put(self, key: tuple[str, str, int], head: bytes) -> None:
        with self._lock:
            known = self._heads.pop(key, b"")
            self._heads[key] = max(known, head, key=len)
            self.num_bytes += len(self._heads[key]) - len(known)
            while self.num_bytes > _MAX_HEADS_BYTES:
                self.num_bytes -= len(self._heads.popitem(last=False)[1])


_HEADS = _Heads()


class _Place:
    # The place of a member in its archive, which is opened when the remembered bytes are not enough.
    def __init__(self, archive: RawFile, start: int, open_archive: OpenArchive) -> None:
        self._archive = archive
        self._start = start
        self._open_archive = open_archive
        self._is_forward_only = archive.compression is not None
        self._head = _HEADS.get(_Heads.key(archive, start)) if self._is_forward_only else b""
        self._read: list[bytes] = []
        self._num_read = 0
        self._cursor: _Cursor | None = None

    def read(self, num_bytes: int) -> bytes:
        if self._num_read < len(self._head):
            data = self._head[self._num_read : self._num_read + num_bytes]
        else:
            data = self._find_cursor().read(num_bytes)
        self._num_read += len(data)
        if self._is_forward_only and self._num_read <= _MAX_HEAD_BYTES:
            self._read.append(data)
        return data

    def give_back(self) -> None:
        if self._cursor is not None and self._cursor.is_sound:
            _IDLE.give(self._cursor)
        elif self._cursor is not None:
            self._cursor.close()
        if len(self._head) < self._num_read <= _MAX_HEAD_BYTES:
            _HEADS.put(_Heads.key(self._archive, self._start), b"".join(self._read))

    def _find_cursor(self) -> _Cursor:
        if self._cursor is None:
            position = self._start + self._num_read
            cursor = _IDLE.take(self._archive, position, is_forward_only=self._is_forward_only)
            self._cursor = cursor if cursor is not None else _Cursor(self._archive, self._open_archive)
            self._cursor.move_to(position)
        return self._cursor


class _MemberStream(io.RawIOBase):
    def __init__(self, place: _Place, member: ArchiveMember, num_bytes: int) -> None:
        self._place = place
        self._member = member
        self._num_bytes = num_bytes
        self._num_read = 0
        self._crc32 = 0
        self._stored_left = member.num_stored_bytes
        self._inflater: Any = isal_zlib.decompressobj(_RAW_WINDOW) if member.is_deflated else None
        self._rest = b""
        if member.kind == "zip":
            _find_data(place, member)

    def readable(self) -> bool:
        return True

    def read(self, num_bytes: int | None = -1, /) -> bytes:
        if num_bytes is None or num_bytes < 0:
            return b"".join(iter(lambda: self.read(_PIECE_BYTES), b""))
        if not num_bytes:
            return b""
        # One byte more is asked for, to find a member that is too long.
        wanted = min(num_bytes, self._num_bytes - self._num_read + 1)
        data = self._inflate(wanted) if self._inflater is not None else self._read_stored(wanted)
        self._num_read += len(data)
        if self._num_read > self._num_bytes:
            raise zlib.error("a member is larger than the archive says")
        if self._member.crc32 is not None:
            self._crc32 = isal_zlib.crc32(data, self._crc32)
        if not data:
            self._check_end()
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _read_stored(self, num_bytes: int) -> bytes:
        wanted = min(num_bytes, self._stored_left)
        data = self._place.read(wanted) if wanted else b""
        if wanted and not data:
            raise EOFError("the archive is cut off")
        self._stored_left -= len(data)
        return data

    def _inflate(self, num_bytes: int) -> bytes:
        while not self._inflater.eof:
            data = self._rest or self._read_stored(_PIECE_BYTES)
            try:
                found: bytes = self._inflater.decompress(data, num_bytes)
            except _DAMAGED as error:
                raise zlib.error(str(error)) from error
            self._rest = self._inflater.unconsumed_tail
            if found:
                return found
            if not data and not self._inflater.eof:
                raise EOFError("a member ends too early")
        return b""

    def _check_end(self) -> None:
        if self._num_read < self._num_bytes:
            raise zlib.error(f"a member has {self._num_read:,} bytes where the archive says {self._num_bytes:,}")
        if self._inflater is not None and (self._inflater.unused_data or self._stored_left):
            raise zlib.error("bytes behind the end of a member")
        if self._member.crc32 is not None and self._crc32 != self._member.crc32:
            raise zlib.error("the checksum of a member is wrong")


class _Range(SeekableFile):
    def __init__(self, archive: BinaryIO, start: int, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self._archive = archive
        self._start = start

    def readinto(self, buffer: Any, /) -> int:
        wanted = max(0, min(len(buffer), self._num_bytes - self._position))
        if not wanted:
            return 0
        self._archive.seek(self._start + self._position)
        data = self._archive.read(wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._archive.close()
        super().close()


def _find_data(archive: Any, member: ArchiveMember) -> int:
    # Leaves a ZIP archive where the data of a member start.
    if not isinstance(archive, _Place):
        archive.seek(member.start)
    header = archive.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size:
        raise EOFError("the archive is cut off")
    magic, _, flags, method, *_, num_name_bytes, num_extra_bytes = LOCAL_HEADER.unpack(header)
    if magic != LOCAL_MAGIC:
        raise zlib.error("there is no member where the directory says")
    if flags & ENCRYPTED or method != (DEFLATED if member.is_deflated else STORED):
        raise zlib.error("the header of a member disagrees with the directory")
    num_bytes = int(num_name_bytes + num_extra_bytes)
    archive.read(num_bytes)
    return member.start + LOCAL_HEADER.size + num_bytes
