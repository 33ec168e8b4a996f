"""Members of an .npz file: a ZIP archive of arrays, read as streams and never unpacked to disk."""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from shardkit.encoding.byte_stream import ByteStream
from shardkit.errors import BadInputError, DamagedFileError, StorageError, UnsafeFileError, UsageError
from shardkit.messages import shown
from shardkit.sources.base import RawFile, place
from shardkit.units import MiB, format_size

_SUFFIX = ".npy"
_ENCRYPTED = 0x1
_MAX_MEMBERS = 10_000
_HARMLESS_BYTES = 64 * MiB
_ERRORS = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, ValueError,
    OverflowError, MemoryError,
)  # fmt: skip


def open_archive(raw: BinaryIO, file: RawFile) -> zipfile.ZipFile:
    """Returns the archive in a file.

    Raises:
        DamagedFileError: If it is no archive, or damaged.
        StorageError: If the store fails.
    """
    with _translated(file):
        return zipfile.ZipFile(raw)


class MemberStream(ByteStream):
    """One member of an archive as a stream; its checksum is compared at its end.

    Raises:
        DamagedFileError: If it is damaged.
    """

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: RawFile) -> None:
        self._file = file
        with _translated(file):
            self._content = archive.open(member)

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none at the end."""
        with _translated(self._file):
            return self._content.read(num_bytes)


def list_members(archive: zipfile.ZipFile, file: RawFile, max_expansion: int) -> list[tuple[str, zipfile.ZipInfo]]:
    """Returns the name and the place of each array, in order.

    Raises:
        UsageError: If a member is no array.
        BadInputError: If a member becomes more than `max_expansion` times as large and is not small.
        DamagedFileError: If members are encrypted, share bytes or names, or are compressed in an unknown way.
    """
    members = archive.infolist()
    if not members:
        raise DamagedFileError("the archive is empty", where=place(file), why="it holds no arrays")
    if len(members) > _MAX_MEMBERS:
        raise UsageError(
            f"the archive has {len(members):,} members",
            where=place(file),
            why="each is a column, which are too many",
            next_step="Save one array of many rows for each column, or each member as a separate file",
        )
    names = [m.filename.removesuffix(_SUFFIX) for m in members]
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise DamagedFileError(f"the array {shown(name)} is there {count} times", where=place(file))
    for member in members:
        _check_member(member, file, max_expansion)
    _check_places(members, file)
    return list(zip(names, members, strict=True))


def _check_member(member: zipfile.ZipInfo, file: RawFile, max_expansion: int) -> None:
    name = shown(member.filename)
    if not member.filename.endswith(_SUFFIX):
        raise UsageError(
            f"the member {name} is no array",
            where=place(file),
            why="its name does not end in .npy",
            next_step="Save the archive with numpy.savez, or read other archives without --format numpy",
        )
    if member.flag_bits & _ENCRYPTED:
        raise DamagedFileError(f"the array {name} is encrypted", where=place(file), next_step="Decrypt it first")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        why = f"its compression has the number {member.compress_type}; those that NumPy writes are read"
        raise DamagedFileError(f"the array {name} cannot be unpacked", where=place(file), why=why)
    if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
        raise DamagedFileError(f"the array {name} has two sizes", where=place(file))
    is_large = member.file_size > max(_HARMLESS_BYTES, member.compress_size * max_expansion)
    if is_large:
        raise BadInputError(
            f"the array {name} is refused",
            where=place(file),
            why=f"{format_size(member.compress_size)} become {format_size(member.file_size)}, more than "
            f"{max_expansion} times as much",
            next_step="Raise --max-expansion if you trust the file",
        )


def _check_places(members: list[zipfile.ZipInfo], file: RawFile) -> None:
    placed = sorted(members, key=lambda m: m.header_offset)
    stops = [m.header_offset + m.compress_size for m in placed]
    if any(stop > after.header_offset for stop, after in zip(stops, placed[1:], strict=False)):
        raise UnsafeFileError("arrays of the archive share bytes", where=place(file))
    if stops[-1] > file.num_bytes or placed[0].header_offset < 0:
        raise UnsafeFileError("an array lies outside of the archive", where=place(file))


@contextmanager
def _translated(file: RawFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # A place that the directory names may be before the start of the file.
        if error.errno not in (None, errno.EINVAL):
            raise StorageError("the file cannot be read", where=place(file), why=str(error)) from error
        raise _damaged(file, str(error)) from error
    except _ERRORS as error:
        raise _damaged(file, str(error)) from error


def _damaged(file: RawFile, reason: str) -> DamagedFileError:
    why = f"{reason[:1].lower()}{reason[1:200]}".rstrip(".") or "it cannot be read"
    return DamagedFileError("the .npz file is cut off or damaged", where=place(file), why=why)
