"""A tar archive read from front to back, member by member, in bounded memory and to its very end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from shardkit.encoding.byte_stream import ByteStream
from shardkit.errors import DamagedFileError, UnsafeFileError
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.expansion_limit import LARGEST_BYTES
from shardkit.sources.files.streams import read_exactly
from shardkit.sources.files.tar_headers import (
    BLOCK_BYTES,
    LONG_LINK,
    LONG_NAME,
    PAX,
    PAX_GLOBAL,
    ZERO_BLOCK,
    TarHeader,
    TarHeaderError,
    kind_of,
    padding_of,
    parse_header,
    parse_pax,
    pax_number,
)
from shardkit.units import KiB, MiB, format_size

_MAX_EXTENSION_BYTES = MiB
_MAX_EXTENSIONS = 16
_PIECE_BYTES = 256 * KiB
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")
_SPARSE = "GNU.sparse."


class TarDamageError(Exception):
    """Why nothing of an archive can be trusted from some byte on."""


class TarUnsafeError(TarDamageError):
    """What no honest tool writes, such as a size that no archive has."""


class TarMember(NamedTuple):
    """One member that is no folder.

    Attributes:
        name: Its path in the archive, without `./` at the start.
        refusal: Why its data is not used, None if nothing speaks against it.
    """

    name: str
    num_bytes: int
    first_byte: int
    data_start: int
    refusal: str | None
    header: bytes


class TarStream:
    """The members of an archive.

    Args:
        stream: The archive, decompressed.
        seekable: The same archive where it can be sought in, so that unused data is not read.
        num_bytes: Size of the archive; None if only reading tells.
    """

    def __init__(self, stream: ByteStream, seekable: BinaryIO | None = None, num_bytes: int | None = None) -> None:
        self._stream = stream
        self._seekable = seekable
        self._num_bytes = num_bytes
        self._position = 0
        self._data_left = 0
        self._padding = 0

    def members(self) -> Iterator[TarMember]:
        """Yields the members; unread data of a member is passed over.

        Raises:
            TarDamageError: At the first byte that does not belong, or if the archive has no end.
        """
        defaults: dict[str, bytes] = {}
        while (found := self._next_header(defaults)) is not None:
            member, has_data = found
            if has_data:
                self._begin_data(member)
            if not _is_folder(member):
                yield member
            self._pass_over()
        self._check_end()

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes of the data of the present member, none at its end.

        Raises:
            TarDamageError: If the archive ends before the member does.
        """
        wanted = min(num_bytes, self._data_left)
        data = self._stream.read(wanted) if wanted else b""
        if wanted and not data:
            raise TarDamageError(f"it is cut off at byte {self._position:,}, inside a member")
        self._position += len(data)
        self._data_left -= len(data)
        return data

    def _next_header(self, defaults: dict[str, bytes]) -> tuple[TarMember, bool] | None:
        # The next member with all its extended headers applied, None at the mark that ends the archive.
        first_byte, records, blocks = self._position, dict[str, bytes](), list[bytes]()
        for _ in range(_MAX_EXTENSIONS):
            header_start = self._position
            block = self._read_block(is_first=not blocks)
            if block == ZERO_BLOCK:
                if blocks:
                    raise TarDamageError(f"an extended header at byte {first_byte:,} has no member")
                return None
            blocks.append(block)
            try:
                header = parse_header(block)
                if header.type_ not in (LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL):
                    return self._member(header, first_byte, {**defaults, **records}, b"".join(blocks))
                data = self._read_extension(header)
                blocks.append(data)
                _apply(header, data[: header.num_bytes], records, defaults)
            except TarHeaderError as error:
                raise TarDamageError(f"{error} at byte {header_start:,}") from error
        raise TarUnsafeError(f"more than {_MAX_EXTENSIONS} extended headers at byte {first_byte:,}")

    def _read_block(self, is_first: bool) -> bytes:
        block = read_exactly(self._stream, BLOCK_BYTES)
        if not block and is_first:
            raise TarDamageError(f"no end-of-archive mark: it is cut off at byte {self._position:,}")
        if len(block) < BLOCK_BYTES:
            raise TarDamageError(f"no end-of-archive mark: it is cut off inside the header at byte {self._position:,}")
        self._position += BLOCK_BYTES
        return block

    def _read_extension(self, header: TarHeader) -> bytes:
        if header.num_bytes > _MAX_EXTENSION_BYTES:
            size = format_size(header.num_bytes)
            raise TarUnsafeError(
                f"an extended header claims {size}, more than {format_size(_MAX_EXTENSION_BYTES)}, "
                f"at byte {self._position - BLOCK_BYTES:,}"
            )
        wanted = header.num_bytes + padding_of(header.num_bytes)
        data = read_exactly(self._stream, wanted)
        if len(data) < wanted:
            raise TarHeaderError("no end-of-archive mark: it is cut off inside the extended header")
        self._position += wanted
        return data

    def _member(
        self, header: TarHeader, first_byte: int, records: dict[str, bytes], blocks: bytes
    ) -> tuple[TarMember, bool]:
        num_bytes = pax_number(records["size"]) if records.get("size") else header.num_bytes
        raw_name = records.get("path") or header.name
        if num_bytes > LARGEST_BYTES:
            raise TarUnsafeError(f"a member claims {format_size(num_bytes)} at byte {self._position - BLOCK_BYTES:,}")
        refusal = None
        if records and any(key.startswith(_SPARSE) for key in records):
            refusal = "it is a sparse file"
        elif header.is_folder:
            raw_name += b"" if raw_name.endswith(b"/") else b"/"
        elif not header.is_file:
            refusal = f"it is {kind_of(header)}"
        name, unsafe = member_name(raw_name)
        member = TarMember(name, num_bytes, first_byte, self._position, unsafe or refusal, blocks)
        return member, header.has_data

    def _begin_data(self, member: TarMember) -> None:
        self._data_left, self._padding = member.num_bytes, padding_of(member.num_bytes)
        stop = self._position + member.num_bytes
        if self._num_bytes is not None and stop > self._num_bytes:
            raise TarDamageError(
                f"the header at byte {member.first_byte:,} claims {format_size(member.num_bytes)}, "
                f"and {format_size(self._num_bytes - self._position)} are left"
            )

    def _pass_over(self) -> None:
        if self._seekable is not None and self._data_left > _PIECE_BYTES:
            self._position += self._data_left
            self._data_left = 0
            self._seekable.seek(self._position)
        while self._data_left:
            self.read(_PIECE_BYTES)
        if self._padding:
            # Zeros as a rule; some writers leave old bytes of their buffer there.
            padding = read_exactly(self._stream, self._padding)
            if len(padding) < self._padding:
                raise TarDamageError(f"no end-of-archive mark: it is cut off at byte {self._position + len(padding):,}")
            self._position += self._padding
            self._padding = 0

    def _check_end(self) -> None:
        end = self._position
        if read_exactly(self._stream, BLOCK_BYTES) != ZERO_BLOCK:
            raise TarDamageError(f"no end-of-archive mark: a lone block of zeros in front of byte {end:,}")
        num_bytes, first = BLOCK_BYTES, None
        while data := self._stream.read(_PIECE_BYTES):
            if first is None and (rest := data.lstrip(b"\0")):
                first = end + num_bytes + len(data) - len(rest)
            num_bytes += len(data)
        if first is not None:
            raise TarDamageError(f"{end + num_bytes - first:,} bytes after the end of the archive, from byte {first:,}")


def tar_error(error: TarDamageError, file: RawFile) -> DamagedFileError:
    """Returns the error for an archive that cannot be trusted."""
    is_unsafe = isinstance(error, TarUnsafeError)
    return (UnsafeFileError if is_unsafe else DamagedFileError)(
        f"the tar archive is {'refused' if is_unsafe else 'cut off or damaged'}",
        where=place(file),
        why=str(error),
        next_step="Fetch or make it anew, or leave it out",
    )


def member_name(raw: bytes) -> tuple[str, str | None]:
    """Returns the name of a member and, if it is refused, why. Honest archives have no such names.

    Args:
        raw: As stored.
    """
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace"), "its name is not UTF-8"
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name, unsafe_name(name)


def unsafe_name(name: str) -> str | None:
    """Returns why a name in an archive is refused, None if it is not."""
    if "\0" in name:
        return "unsafe member name: it holds a NUL"
    # Backslashes are letters here, and separators where an archive was made to harm.
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        return "unsafe member name: it is absolute"
    if ".." in re.split(r"[/\\]", name):
        return "unsafe member name: it leads out of the archive"
    return None


def _is_folder(member: TarMember) -> bool:
    return member.refusal is None and (member.name.endswith("/") or member.name in ("", "."))


def _apply(header: TarHeader, data: bytes, records: dict[str, bytes], defaults: dict[str, bytes]) -> None:
    if header.type_ == LONG_NAME:
        records["path"] = data.rstrip(b"\0")
    elif header.type_ in (PAX, PAX_GLOBAL):
        (records if header.type_ == PAX else defaults).update(parse_pax(data))


def cut_name(name: str) -> tuple[str, str] | None:
    """Returns the key and the extension of a member, None if its name has no dot behind other characters."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot or not extension:
        return None
    return f"{folder}{slash}{stem}", extension.lower()
