"""What kind of audio a file holds, and whether it is all there, by its own bytes."""

from __future__ import annotations

import re

_WAV = re.compile(rb"RIFF....WAVE", re.DOTALL)
_MPEG_FRAME = re.compile(rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]")
_CHUNK_HEADER_BYTES = 8
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # What writers leave that could not go back to the header.
_PAGE_HEADER_BYTES = 27
_MAX_PAGE_BYTES = _PAGE_HEADER_BYTES + 255 + 255 * 255
_LAST_PAGE = 4


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


def missing_part(data: memoryview, media_type: str) -> str | None:
    """Returns what is missing at the end of a file, None if nothing is seen to be.

    libsndfile reads WAV and Ogg files that were cut off as shorter ones. Of FLAC and MP3 only decoding tells.
    """
    if media_type == "audio/wav":
        return _missing_of_wav(data)
    if media_type == "audio/ogg":
        return _missing_of_ogg(data)
    return None


def _missing_of_wav(data: memoryview) -> str | None:
    position = 12
    while position + _CHUNK_HEADER_BYTES <= len(data):
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        left = len(data) - position - _CHUNK_HEADER_BYTES
        if bytes(data[position : position + 4]) == b"data":
            if size in _UNKNOWN_SIZES or size <= left:
                return None
            return f"it is cut off: its header says {size:,} bytes of sound, {left:,} are there"
        position += _CHUNK_HEADER_BYTES + size + size % 2
    return "it is cut off before its sound begins"


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
