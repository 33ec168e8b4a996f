"""Reads the directory of a ZIP archive strictly: an inconsistent one is refused before any member is read.

The form is that of https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT. Members are located by the directory
alone; two that overlap, or claim more than the archive holds, are the signs of a bomb.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from shardkit.units import MiB, format_size

STORED, DEFLATED = 0, 8
LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
LOCAL_MAGIC = b"PK\x03\x04"
ENCRYPTED = 1

_ENTRY = struct.Struct("<4s6HIII5HII")
_ENTRY_MAGIC = b"PK\x01\x02"
_END = struct.Struct("<4s4HIIH")
_END_MAGIC = b"PK\x05\x06"
_LOCATOR = struct.Struct("<4sIQI")
_LOCATOR_MAGIC = b"PK\x06\x07"
_END64 = struct.Struct("<4sQHHIIQQQQ")
_END64_MAGIC = b"PK\x06\x06"
_MAX_COMMENT_BYTES = 65_535
_MAX_DIRECTORY_BYTES = 512 * MiB
_ZIP64_FIELD = 1
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_STRONG_ENCRYPTION_FLAG = 0x40
_METHODS = {1: "Shrink", 6: "Implode", 9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz", 99: "AES"}
_UNIX_TYPES = {0o10: "a FIFO", 0o20: "a character device", 0o60: "a block device", 0o120: "a symbolic link"}
_UNIX_SYSTEMS = frozenset({3, 19})


class ZipError(Exception):
    """Why an archive is not read."""


class NoDirectoryError(ZipError):
    """There is no directory where one should be: the archive is cut off, or none at all."""


class ZipUnsafeError(ZipError):
    """What no tool that packs files makes, and a bomb is: members that share bytes, or claim more than is there."""


class ZipEntry(NamedTuple):
    """One member.

    Attributes:
        name: Its path, with `/`.
        stop: Where its data end at the earliest.
    """

    name: str
    start: int
    stop: int
    num_stored_bytes: int
    num_bytes: int
    is_deflated: bool
    crc32: int


class _Directory(NamedTuple):
    start: int
    num_bytes: int
    num_entries: int


def read_directory(archive: BinaryIO, num_bytes: int, max_members: int) -> list[ZipEntry]:
    """Returns the members of an archive, folders left out, in the order of their places.

    Raises:
        NoDirectoryError: If the end of the archive is missing.
        ZipUnsafeError: If members share bytes, claim more than the archive has, or are too many.
        ZipError: If something does not add up, or a member is of a kind that is not read.
    """
    directory = _find_directory(archive, num_bytes)
    if directory.num_entries > max_members:
        raise ZipUnsafeError(f"{directory.num_entries:,} members are more than the {max_members:,} that are read")
    if directory.num_bytes > _MAX_DIRECTORY_BYTES:
        raise ZipUnsafeError(f"its directory has more than the {format_size(_MAX_DIRECTORY_BYTES)} allowed")
    data = _read_at(archive, directory.start, directory.num_bytes)
    entries = sorted(_entries(data, directory), key=lambda entry: entry.start)
    for first, second in pairwise(entries):
        if second.start < first.stop:
            raise ZipUnsafeError(f"the members {first.name!r} and {second.name!r} overlap")
    return [e for e in entries if not e.name.endswith("/")]


def _find_directory(archive: BinaryIO, num_bytes: int) -> _Directory:
    tail_start = max(0, num_bytes - _END.size - _MAX_COMMENT_BYTES)
    tail = _read_at(archive, tail_start, num_bytes - tail_start)
    position = len(tail)
    behind = None
    while (position := tail.rfind(_END_MAGIC, 0, position)) >= 0:
        if position + _END.size > len(tail):
            continue
        *_, num_comment_bytes = _END.unpack_from(tail, position)
        num_behind = len(tail) - position - _END.size - num_comment_bytes
        if num_behind == 0:
            return _directory_at(archive, tail, tail_start, position)
        behind = num_behind if num_behind > 0 else behind
    if behind is not None:
        raise ZipError(f"{behind:,} bytes behind its end")
    raise NoDirectoryError("it is cut off: the directory at its end is missing")


def _directory_at(archive: BinaryIO, tail: bytes, tail_start: int, position: int) -> _Directory:
    _, disk, first_disk, num_here, num_entries, num_bytes, start, _ = _END.unpack_from(tail, position)
    end = tail_start + position
    has_zip64 = tail[max(0, position - _LOCATOR.size) : position].startswith(_LOCATOR_MAGIC)
    if has_zip64:
        _, _, end64, _ = _LOCATOR.unpack_from(tail, position - _LOCATOR.size)
        record = _read_at(archive, end64, _END64.size) if end64 < end else b""
        if len(record) < _END64.size or not record.startswith(_END64_MAGIC):
            raise ZipError("its zip64 directory is not where it should be")
        found = _END64.unpack(record)
        classic = (num_here, num_entries, num_bytes, start)
        disk, first_disk, num_here, num_entries, num_bytes, start = found[4:]
        wide = (num_here, num_entries, num_bytes, start)
        limits = (_FULL16, _FULL16, _FULL32, _FULL32)
        if any(c not in (w, limit) for c, w, limit in zip(classic, wide, limits, strict=True)):
            raise ZipError("its two directories, zip64 and classic, disagree")
        end = end64
    if disk or first_disk or num_here != num_entries:
        raise ZipError("it is one part of several")
    if start + num_bytes != end:
        raise ZipError("its directory is not where it should be")
    return _Directory(start, num_bytes, num_entries)


def _entries(data: bytes, directory: _Directory) -> Iterator[ZipEntry]:
    position = 0
    for _ in range(directory.num_entries):
        if position + _ENTRY.size > len(data):
            raise ZipError("its directory is shorter than it says")
        fields = _ENTRY.unpack_from(data, position)
        if fields[0] != _ENTRY_MAGIC:
            raise ZipError("its directory is damaged")
        name_start = position + _ENTRY.size
        extra_start = name_start + fields[10]
        comment_start = extra_start + fields[11]
        position = comment_start + fields[12]
        if position > len(data):
            raise ZipError("its directory is shorter than it says")
        yield _entry(fields, data[name_start:extra_start], data[extra_start:comment_start], directory)
    if position != len(data):
        raise ZipError("its directory is longer than it says")


def _entry(fields: tuple[int, ...], raw_name: bytes, extra: bytes, directory: _Directory) -> ZipEntry:
    _, made_by, _, flags, method, _, _, crc32, num_stored, num_bytes, *rest = fields
    disk, attributes, start = rest[3], rest[5], rest[6]
    name = _name(raw_name)
    num_bytes, num_stored, start = _wide(name, extra, num_bytes, num_stored, start)
    if flags & (ENCRYPTED | _STRONG_ENCRYPTION_FLAG):
        raise ZipError(f"the member {name!r} is encrypted")
    if method not in (STORED, DEFLATED):
        raise ZipError(f"the member {name!r} is compressed by {_METHODS.get(method, f'method {method}')}")
    if disk not in (0, _FULL16):
        raise ZipError("it is one part of several")
    if made_by >> 8 in _UNIX_SYSTEMS and (kind := _UNIX_TYPES.get((attributes >> 16 & 0o170000) >> 9)):
        raise ZipError(f"the member {name!r} is {kind}")
    stop = start + LOCAL_HEADER.size + len(raw_name) + num_stored
    if stop > directory.start:
        raise ZipUnsafeError(f"the member {name!r} claims more bytes than the archive has")
    if name.endswith("/") and num_bytes:
        raise ZipError(f"the folder {name!r} has content")
    if method == STORED and num_stored != num_bytes:
        raise ZipError(f"the member {name!r} has two sizes")
    return ZipEntry(name, start, stop, num_stored, num_bytes, method == DEFLATED, crc32)


def _wide(name: str, extra: bytes, num_bytes: int, num_stored: int, start: int) -> tuple[int, int, int]:
    # Sizes that do not fit into 32 bits are in the ZIP64 field, in this order.
    field = _zip64_field(name, extra)
    found = []
    for value in (num_bytes, num_stored, start):
        if value == _FULL32 and field is not None:
            if len(field) < 8:
                raise ZipError(f"the member {name!r} lacks a zip64 size")
            value, field = int.from_bytes(field[:8], "little"), field[8:]
        found.append(value)
    return found[0], found[1], found[2]


def _zip64_field(name: str, extra: bytes) -> bytes | None:
    position = 0
    while position + 4 <= len(extra):
        tag, size = struct.unpack_from("<HH", extra, position)
        if position + 4 + size > len(extra):
            # Some writers pad; only the fields that are needed have to be whole.
            break
        if tag == _ZIP64_FIELD:
            return extra[position + 4 : position + 4 + size]
        position += 4 + size
    return None


def _name(raw: bytes) -> str:
    # Many writers of UTF-8 do not flag it.
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        name = raw.decode("cp437")
    # Some writers on Windows use their own separator.
    return name.replace("\\", "/")


def _read_at(archive: BinaryIO, start: int, num_bytes: int) -> bytes:
    archive.seek(start)
    return archive.read(num_bytes)
