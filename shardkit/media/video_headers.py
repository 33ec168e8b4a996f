"""What kind of video a file holds, and whether its end is there, by its own bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import BinaryIO

from shardkit.file_types import foreign_format

_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_AVI = re.compile(rb"RIFF....AVI ", re.DOTALL)
# QuickTime files before 2001 have no box that names their kind.
_OLD_BOXES = frozenset({b"moov", b"mdat", b"wide"})
_MAX_BOXES = 100_000
_HEAD_BYTES = 64
DEMUXERS = {
    "video/mp4": "mov",
    "video/quicktime": "mov",
    "video/x-matroska": "matroska",
    "video/webm": "matroska",
    "video/x-msvideo": "avi",
}
"""By media type, the reader of FFmpeg for it: no other one may guess that a file is its own."""


def video_type_of(head: bytes) -> str | None:
    """Returns the media type of a video, None for anything else.

    Args:
        head: The first bytes, 64 or more.
    """
    if head.startswith(_EBML):
        return "video/webm" if b"webm" in head[:_HEAD_BYTES] else "video/x-matroska"
    if _AVI.match(head):
        return "video/x-msvideo"
    if head[4:8] == b"ftyp" and foreign_format(head) == "an MP4 file":
        return "video/quicktime" if head[8:12] == b"qt  " else "video/mp4"
    return "video/quicktime" if head[4:8] in _OLD_BOXES and head[:1] < b" " else None


def fault_of(file: BinaryIO, media_type: str) -> str | None:
    """Returns how a file is seen to be cut off, by the sizes that it states; None if it is not.

    Args:
        file: Seekable; its place is changed.
    """
    num_bytes = file.seek(0, os.SEEK_END)
    stated = _STATED[DEMUXERS[media_type]](file, num_bytes)
    missing = stated - num_bytes
    return f"it is cut off: {missing:,} of the {stated:,} bytes that it states are missing" if missing > 0 else None


def _riff_end(file: BinaryIO, num_bytes: int) -> int:
    file.seek(4)
    return 8 + int.from_bytes(file.read(4), "little")


def _boxes_end(file: BinaryIO, num_bytes: int) -> int:
    # ISO/IEC 14496-12, 4.2: 0 is a box up to the end of the file, 1 is followed by a size of 64 bits.
    end = 0
    for _ in range(_MAX_BOXES):
        file.seek(end)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        size = int.from_bytes(head[8:16], "big") if size == 1 else size
        # Some writers leave a few bytes behind the last box.
        if len(head) < 8 or size < 8:
            break
        end += size
        if end >= num_bytes:
            break
    return end


def _segment_end(file: BinaryIO, num_bytes: int) -> int:
    # RFC 8794, 4 to 6: an element is its name, its size and its content. Live streams do not know their size.
    file.seek(0)
    head = file.read(4096)
    start = head.find(_SEGMENT)
    if start < 0 or len(head) <= start + 4:
        return 0
    first = head[start + 4]
    length = 9 - first.bit_length()
    size = int.from_bytes(head[start + 4 : start + 4 + length], "big") & ((1 << 7 * length) - 1)
    return 0 if size == (1 << 7 * length) - 1 else start + 4 + length + size


_STATED: dict[str, Callable[[BinaryIO, int], int]] = {
    "mov": _boxes_end,
    "matroska": _segment_end,
    "avi": _riff_end,
}
