"""The frames of an MP3, counted by their headers.

An MP3 says how long it is in a first frame without sound, which encoders may leave out. libsndfile then goes by an
estimate, and reads no further than that. Specified in ISO/IEC 11172-3, 2.4.2.3; the first frame by its encoders alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_KILOBITS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_LAYER_3, _MPEG_1, _MONO = 1, 3, 3
_HEADER_BYTES = 4
_SAME = 0xFFFE0C00  # Sync, version, layer and rate: what all frames of a file share.
_BITRATE, _NO_CHECKSUM, _PADDING = 0xF000, 0x10000, 0x200
_LENGTH_TAGS = (b"Xing", b"Info", b"VBRI")
_HAS_COUNT = 1


class MpegFrames(NamedTuple):
    """What the headers of the frames say.

    Attributes:
        start: Where the first frame begins.
        end: Where the first frame ends.
        header: Of the first frame.
        num_frames: Those with sound.
        stated: How many the first frame says there are; None if it does not.
        is_tag: Whether the first frame holds no sound.
        num_missing: Bytes that the last frame lacks.
    """

    start: int
    end: int
    header: int
    num_frames: int
    stated: int | None
    is_tag: bool
    num_missing: int


def count_frames(data: memoryview) -> MpegFrames | None:
    """Returns the frames of an MP3, None if there are none of layer 3 with a known rate of bits."""
    content = bytes(data)
    start = position = _first_frame(content)
    if start < 0:
        return None
    header = _header_at(content, start)
    count, end = 0, position
    while 0 <= position < len(content):
        num_bytes = _frame_bytes(_header_at(content, position), header)
        if num_bytes:
            count, position = count + 1, position + num_bytes
            end = position
        else:
            position = content.find(b"\xff", position + 1)
    first_end = start + _frame_bytes(header, header)
    tag = next((p for p in (content.find(t, start, min(first_end, start + 44)) for t in _LENGTH_TAGS) if p >= 0), None)
    stated = None
    if tag is not None and content[tag : tag + 4] != b"VBRI" and tag + 12 <= len(content):
        flags, number = struct.unpack_from(">II", content, tag + 4)
        stated = number if flags & _HAS_COUNT else None
    return MpegFrames(
        start, first_end, header, count - (tag is not None), stated, tag is not None, max(0, end - len(content))
    )


def with_length(data: memoryview, frames: MpegFrames) -> bytes:
    """Returns the file with a first frame that says how long it is."""
    header = frames.header & ~_BITRATE & ~_PADDING | _NO_CHECKSUM | _BITRATE - 0x1000
    side_bytes = (17 if _is_mono(header) else 32) if _version(header) == _MPEG_1 else (9 if _is_mono(header) else 17)
    tag = struct.pack(">I", header) + bytes(side_bytes) + b"Info" + struct.pack(">II", _HAS_COUNT, frames.num_frames)
    first = tag.ljust(_frame_bytes(header, header), b"\0")
    return b"".join((data[: frames.start], first, data[frames.end if frames.is_tag else frames.start :]))


def _first_frame(content: bytes) -> int:
    position = 0
    while content[position : position + 3] == b"ID3" and position + 10 <= len(content):
        high, middle, low, least = content[position + 6 : position + 10]
        position += 10 + (high << 21 | middle << 14 | low << 7 | least) + 10 * (content[position + 5] >> 4 & 1)
    while (position := content.find(b"\xff", position)) >= 0:
        header = _header_at(content, position)
        num_bytes = _frame_bytes(header, header)
        behind = position + num_bytes
        # A frame is followed by another one, or by the end or a tag.
        if num_bytes and (behind + _HEADER_BYTES > len(content) or _frame_bytes(_header_at(content, behind), header)):
            return position
        position += 1
    return -1


def _header_at(content: bytes, position: int) -> int:
    return int.from_bytes(content[position : position + _HEADER_BYTES], "big")


def _frame_bytes(header: int, first: int) -> int:
    """Returns the size of a frame, 0 if it is none of layer 3 that has what the first one has."""
    version, rate, kilobits = _version(header), header >> 10 & 3, header >> 12 & 15
    is_frame = header >> 21 == 0x7FF and header >> 17 & 3 == _LAYER_3 and not (header ^ first) & _SAME
    if not is_frame or version not in _RATES or rate == 3 or kilobits in (0, 15):
        return 0
    size = (144_000 if version == _MPEG_1 else 72_000) * _KILOBITS[version != _MPEG_1][kilobits]
    return size // _RATES[version][rate] + (header >> 9 & 1)


def _version(header: int) -> int:
    return header >> 19 & 3


def _is_mono(header: int) -> bool:
    return header >> 6 & 3 == _MONO
