"""Whether the beginning of a file can be that of a text."""

from __future__ import annotations

from shardkit import file_types
from shardkit.errors import DamagedFileError
from shardkit.sources.base import RawFile, place

BOM = b"\xef\xbb\xbf"
_MARKS = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)

# Fewer than so many NUL bytes are a damage that its row can be named for, in whatever a small share of the text.
_FEW_NULS = 16


def check_is_text(head: bytes, file: RawFile) -> None:
    """Checks that the first bytes of a file are not compressed, no UTF-16, and hold no more than 1 % of NUL bytes.

    Raises:
        DamagedFileError: If not.
    """
    check_is_decompressed(head, file)
    name = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    if name is not None:
        raise DamagedFileError(
            f"the text is {name}, not UTF-8",
            where=place(file),
            why="not UTF-8 at byte 0",
            next_step=f"Name its encoding with --encoding {name.lower()}",
        )
    num_nuls = head.count(0)
    if num_nuls * 100 > len(head) and (num_nuls > _FEW_NULS or num_nuls * 4 > len(head)):
        order = _utf16_order(head)
        if order is None and (foreign := file_types.foreign_format(head, file.name)) is not None:
            raise DamagedFileError("the file is no text", where=place(file), why=f"it is {foreign}")
        raise DamagedFileError(
            "the file is no UTF-8 text",
            where=place(file),
            why=f"{num_nuls} of its first {len(head)} bytes are NUL; it looks "
            f"{'like UTF-16 without a byte order mark' if order else 'binary or UTF-16'}",
            next_step=f"If it is text, name its encoding with --encoding {order or 'NAME, such as utf-16-le'}",
        )


def check_is_decompressed(head: bytes, file: RawFile) -> None:
    """Checks that the first bytes of a file, after decompression, are not compressed once more.

    Raises:
        DamagedFileError: If they are.
    """
    inner = file_types.compression_of(head)
    if inner is None:
        return
    is_twice = file.compression not in (None, "archive")
    raise DamagedFileError(
        "the content is compressed twice" if is_twice else "the content is compressed",
        where=place(file),
        why=f"it is {inner} inside of {file.compression}" if is_twice else f"it is {inner}",
        next_step="Decompress it once",
    )


def _utf16_order(head: bytes) -> str | None:
    # Latin letters have their zeros on one side; binary data has them on both.
    first, second = head[::2].count(0), head[1::2].count(0)
    if min(first, second) * 10 >= max(first, second):
        return None
    return "utf-16-be" if first > second else "utf-16-le"
