"""What kind of audio a file holds, and whether it is all there, by its own bytes."""

from __future__ import annotations

import re
import struct

_WAV = re.compile(rb"RIFF....WAVE", re.DOTALL)
_MPEG_FRAME = re.compile(rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]")
_CHUNK_HEADER_BYTES = 8
_UNKNOWN_SIZE = 0xFFFFFFFF  # What writers leave that could not go back to the header.
_FORMAT = struct.Struct("<HHIIHH")
_PCM, _FLOAT = 1, 3
_MAX_RATE = 2**31 - 1
_PAGE_HEADER_BYTES = 27
_MAX_PAGE_BYTES = _PAGE_HEADER_BYTES + 255 + 255 * 255
_LAST_PAGE = 4

AUDIO_NUMBERS = ("sample_rate", "num_frames", "channels")
"""Columns of an audio file beside its samples."""


def audio_type_of(head: bytes, name: str = "") -> str | None:
    """Returns the media type of WAV, FLAC, Ogg and MP3, None for anything else.

    Args:
        head: The first bytes, 16 or more.
        name: Of the file; settles what may be an MP3 without tags.
    """
    if _WAV.match(head):
        return "audio/wav"
    if head.startswith(b"fLaC"):
        return "audio/flac"
    if head.startswith(b"OggS"):
        return "audio/ogg"
    if head.startswith(b"ID3") or (name.lower().endswith(".mp3") and _MPEG_FRAME.match(head)):
        return "audio/mpeg"
    return None


def fault_of(data: memoryview, media_type: str) -> str | None:
    """Returns the fault of a file that libsndfile would read all the same, None if none is found.

    It reads WAV and Ogg files that were cut off as shorter ones, and samples of a wrong width where the header of a WAV
    contradicts itself. Of FLAC and MP3 only decoding tells.
    """
    if media_type == "audio/wav":
        return _fault_of_wav(data)
    if media_type == "audio/ogg":
        return _missing_of_ogg(data)
    return None


def _fault_of_wav(data: memoryview) -> str | None:
    position = 12
    while position + _CHUNK_HEADER_BYTES <= len(data):
        name, size = _chunk(data, position)
        position += _CHUNK_HEADER_BYTES
        left = len(data) - position
        if name == b"data":
            if size == 0 and not _is_rest_chunks(data, position):
                return f"its header says 0 bytes of sound, {left:,} are there"
            if size == _UNKNOWN_SIZE or size <= left:
                return None
            return f"it is cut off: its header says {size:,} bytes of sound, {left:,} are there"
        if name == b"fmt " and size >= _FORMAT.size and (fault := _fault_of_format(data, position)) is not None:
            return fault
        position += size + size % 2
    return "it is cut off before its sound begins"


def _chunk(data: memoryview, position: int) -> tuple[bytes, int]:
    start = position + 4
    return bytes(data[position:start]), int.from_bytes(data[start : start + 4], "little")


def _is_rest_chunks(data: memoryview, position: int) -> bool:
    while position + _CHUNK_HEADER_BYTES <= len(data):
        _, size = _chunk(data, position)
        position += _CHUNK_HEADER_BYTES + size + size % 2
    return position >= len(data) - 1 and position <= len(data) + 1


def _fault_of_format(data: memoryview, position: int) -> str | None:
    if position + _FORMAT.size > len(data):
        return None
    tag, num_channels, rate, _, frame_bytes, num_bits = _FORMAT.unpack_from(data, position)
    if not num_channels or not 0 < rate <= _MAX_RATE:
        return f"its header says {num_channels} channels at {rate:,} frames a second"
    widths = (-(-num_bits // 8), 4 if num_bits == 24 else 0)  # Some keep 24 bits in 32.
    if tag in (_PCM, _FLOAT) and frame_bytes not in [width * num_channels for width in widths]:
        return f"its header contradicts itself: {num_channels} channels of {num_bits} bits in {frame_bytes} bytes"
    return None


def _missing_of_ogg(data: memoryview) -> str | None:
    tail = bytes(data[-_MAX_PAGE_BYTES:])
    start = tail.rfind(b"OggS")
    while start >= 0:
        header = tail[start : start + _PAGE_HEADER_BYTES]
        if len(header) == _PAGE_HEADER_BYTES:
            sizes = tail[start + _PAGE_HEADER_BYTES : start + _PAGE_HEADER_BYTES + header[26]]
            end = start + _PAGE_HEADER_BYTES + header[26] + sum(sizes)
            if end == len(tail):
                return None if header[5] & _LAST_PAGE else "it is cut off: no page is marked as the last one"
        start = tail.rfind(b"OggS", 0, start)
    return "it is cut off: its last page is not whole"
