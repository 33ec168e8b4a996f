"""Headers of tar archives, read strictly: a damaged header is an error, not the end of the archive.

Python's `tarfile` takes a damaged header behind the first one, or the end of a file that is cut off, for the end of
the archive, without an error. This module reads the forms of POSIX (ustar and pax) and of GNU tar:
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html and
https://www.gnu.org/software/tar/manual/html_node/Standard.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

BLOCK_BYTES = 512
ZERO_BLOCK = bytes(BLOCK_BYTES)

LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL = "L", "K", "x", "g"
_NAMES_OF_KINDS = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a character device",
    "4": "a block device",
    "6": "a FIFO",
    "D": "a folder of an incremental archive",
    "M": "a part of a file",
    "S": "a sparse file",
    "V": "a volume label",
}
_FILES = frozenset({"0", "\0", "7"})
_FOLDER = "5"
_HAVE_DATA = _FILES | {LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL, "D", "M", "S"}
_OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_POSIX, _GNU = b"ustar\0", b"ustar "
_TAR_NAME = re.compile(r"\.(tar(\.[A-Za-z0-9]+)?|tgz|tbz2?|tzst|txz)$", re.IGNORECASE)
_DIGITS = re.compile(rb"[1-9][0-9]{0,19}")


class TarHeaderError(Exception):
    """A header that cannot be trusted, and so nothing behind it."""


class TarHeader(NamedTuple):
    """One header block.

    Attributes:
        name: As stored.
        num_bytes: Size of what follows it.
    """

    name: bytes
    num_bytes: int
    type_: str

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.type_ in _FILES and not self.is_folder

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder; old archives mark those by a slash only."""
        return self.type_ == _FOLDER or (self.type_ == "\0" and self.name.endswith(b"/"))

    @property
    def has_data(self) -> bool:
        """Whether blocks of data follow; links and devices may state a size without."""
        return self.type_ in _HAVE_DATA or self.type_ not in {*_NAMES_OF_KINDS, _FOLDER}


def kind_of(header: TarHeader) -> str:
    """Returns the kind of a member that is neither file nor folder, in words."""
    return _NAMES_OF_KINDS.get(header.type_, f"of the unknown type {header.type_!r}")


def parse_header(block: bytes) -> TarHeader:
    """Returns the header of a block. Raises TarHeaderError if its checksum is wrong or a number is none."""
    stated = _number(block[148:156], "checksum")
    total = sum(block) - sum(block[148:156]) + 8 * 0x20
    # Some old writers added up signed bytes.
    if stated != total and stated != total - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise TarHeaderError("bad header checksum")
    name = _text(block[:100])
    type_ = chr(block[156])
    if block[257:263] == _POSIX and (prefix := _text(block[345:500])) and type_ not in (LONG_NAME, LONG_LINK):
        name = prefix + b"/" + name
    elif block[257:263] == _GNU and type_ in _FILES and block[386:482].strip(b"\0") and block[482]:
        type_ = "S"
    return TarHeader(name, _number(block[124:136], "size"), type_)


def is_header(block: bytes) -> bool:
    """Whether a block is the header of a member."""
    if len(block) < BLOCK_BYTES:
        return False
    try:
        parse_header(block[:BLOCK_BYTES])
    except TarHeaderError:
        return False
    return True


def is_tar(head: bytes, name: str) -> bool:
    """Returns whether a file is a tar archive; one that is called so may begin with a damaged header, or be empty.

    Args:
        head: Its first bytes after decompression.
    """
    if is_header(head):
        return True
    block = head[:BLOCK_BYTES]
    return _TAR_NAME.search(name) is not None and (block == ZERO_BLOCK or block[257:262] == _GNU[:5])


def parse_pax(data: bytes) -> dict[str, bytes]:
    """Returns the records of an extended header by keyword; an empty value withdraws a record.

    Raises:
        TarHeaderError: If a record does not have the length that it states.
    """
    return dict(_pax_records(data))


def pax_number(value: bytes) -> int:
    """Returns a size from an extended header. Raises TarHeaderError if it is none."""
    if value != b"0" and not _DIGITS.fullmatch(value):
        raise TarHeaderError(f"an extended header states the size {value[:20]!r}")
    return int(value)


def padding_of(num_bytes: int) -> int:
    """Returns how many bytes fill the last block of so much data."""
    return -num_bytes % BLOCK_BYTES


def _pax_records(data: bytes) -> Iterator[tuple[str, bytes]]:
    data = data.rstrip(b"\0")
    position = 0
    while position < len(data):
        length, space, _ = data[position : position + 21].partition(b" ")
        stop = position + int(length) if space and _DIGITS.fullmatch(length) else 0
        if not position + len(length) + 3 <= stop <= len(data) or data[stop - 1] != 0x0A:
            raise TarHeaderError("an extended header holds a record of the wrong length")
        keyword, equals, value = data[position + len(length) + 1 : stop - 1].partition(b"=")
        if not keyword or not equals:
            raise TarHeaderError("an extended header holds a record without a keyword")
        yield keyword.decode("utf-8", "replace"), value
        position = stop


def _number(field: bytes, what: str) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    found = _OCTAL.fullmatch(field)
    if found is None:
        raise TarHeaderError(f"bad header: its {what} is {field!r}")
    return int(found.group(1) or b"0", 8)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
