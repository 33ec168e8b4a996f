"""What kind of audio a file holds, and whether it is all there, by its own bytes."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

_MPEG_FRAME = re.compile(rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]")
_W64_SOUND = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
_UNKNOWN_SIZES = (0xFFFFFFFF, 2**64 - 1)  # What writers leave that could not go back to the header.
_FORMAT = struct.Struct("<HHIIHH")
_PCM, _FLOAT = 1, 3
_MAX_RATE = 2**31 - 1
_PAGE_HEADER_BYTES = 27
_MAX_PAGE_BYTES = _PAGE_HEADER_BYTES + 255 + 255 * 255
_LAST_PAGE = 4

AUDIO_NUMBERS = ("sample_rate", "num_frames", "channels")
"""Columns of an audio file beside its samples."""


class _Container(NamedTuple):
    """How a file of chunks is laid out; each has a name, a size and content.

    Attributes:
        start: Where the first one begins.
        name_bytes: Of a name.
        size: How a size is written.
        counts_header: Whether it counts name and size too.
        multiple: What chunks are filled up to a multiple of.
        sound: Name of the chunk of sound.
    """

    start: int
    name_bytes: int
    size: struct.Struct
    counts_header: bool
    multiple: int
    sound: bytes


_RIFF = _Container(12, 4, struct.Struct("<I"), False, 2, b"data")
_CONTAINERS = {
    "audio/wav": _RIFF,
    "audio/x-rf64": _RIFF,
    "audio/x-rifx": _RIFF._replace(size=struct.Struct(">I")),
    "audio/aiff": _Container(12, 4, struct.Struct(">I"), False, 2, b"SSND"),
    "audio/x-w64": _Container(40, 16, struct.Struct("<Q"), True, 8, _W64_SOUND),
    "audio/x-svx": _Container(12, 4, struct.Struct(">I"), False, 2, b"BODY"),
    "audio/x-caf": _Container(8, 4, struct.Struct(">Q"), False, 1, b"data"),
}
_SPHERE_FIELD = re.compile(rb"^(\w+) -i (\d{1,18})\s*$", re.MULTILINE)
_TYPES = (
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"RIFX....WAVE", re.DOTALL), "audio/x-rifx"),
    (re.compile(rb"RF64....WAVEds64", re.DOTALL), "audio/x-rf64"),
    (re.compile(rb"FORM....AIF[FC]", re.DOTALL), "audio/aiff"),
    (re.compile(rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"), "audio/x-w64"),
    (re.compile(rb"FORM....(?:8SVX|16SV)", re.DOTALL), "audio/x-svx"),
    (re.compile(rb"NIST_1A\n"), "audio/x-nist"),
    (re.compile(rb"caff\x00\x01"), "audio/x-caf"),
    (re.compile(rb"\.snd\x00|dns\..\x00"), "audio/basic"),
    (re.compile(rb"fLaC"), "audio/flac"),
    (re.compile(rb"OggS"), "audio/ogg"),
    (re.compile(rb"ID3"), "audio/mpeg"),
)


def audio_type_of(head: bytes, name: str = "") -> str | None:
    """Returns the media type of a file that libsndfile reads, None for anything else.

    Args:
        head: The first bytes, 16 or more.
        name: Of the file; settles what may be an MP3 without tags.
    """
    found = next((media_type for magic, media_type in _TYPES if magic.match(head)), None)
    if found is None and name.lower().endswith(".mp3") and _MPEG_FRAME.match(head):
        return "audio/mpeg"
    return found


def is_wav_of_16_bits(head: bytes) -> bool:
    """Whether a WAV holds plain samples of 16 bits, as `tf.audio.decode_wav` needs them.

    Args:
        head: The first bytes, 36 or more.
    """
    if head[12:16] != b"fmt " or len(head) < 36:
        return True  # Another chunk comes first: nothing is known.
    tag, _, _, _, _, num_bits = _FORMAT.unpack_from(head, 20)
    return bool(tag == _PCM and num_bits == 16)


def fault_of(data: memoryview, media_type: str) -> str | None:
    """Returns the fault of a file that libsndfile would read all the same, None if none is found.

    It reads files that were cut off as shorter ones, and samples of a wrong width where the header of a WAV
    contradicts itself. Of FLAC and MP3 only decoding tells.
    """
    if media_type == "audio/ogg":
        return _missing_of_ogg(data)
    if media_type == "audio/x-nist":
        return _fault_of_sphere(data)
    if media_type == "audio/basic":
        start, size = (
            struct.unpack_from(">II" if bytes(data[:1]) == b"." else "<II", data, 4) if len(data) >= 24 else (24, 0)
        )
        return _shorter(size, len(data) - start)
    container = _CONTAINERS.get(media_type)
    return None if container is None else _fault_of_chunks(data, container)


def _fault_of_sphere(data: memoryview) -> str | None:
    # The header is text: its kind, its size, and a field a line.
    lines = bytes(data[:16]).split()
    start = int(lines[1]) if len(lines) > 1 and lines[1].isdigit() else len(data) + 1
    fields = {found[1]: int(found[2]) for found in _SPHERE_FIELD.finditer(bytes(data[:start]))}
    size = 1
    for name in (b"sample_count", b"channel_count", b"sample_n_bytes"):
        size *= fields.get(name, 1 if name == b"channel_count" else 0)
    return _shorter(size, len(data) - start)


def _shorter(stated: int, left: int) -> str | None:
    if left < 0:
        return "it is cut off before its sound begins"
    if stated in _UNKNOWN_SIZES or stated <= left:
        return None
    return f"it is cut off: its header says {stated:,} bytes of sound, {left:,} are there"


def _fault_of_chunks(data: memoryview, container: _Container) -> str | None:
    position, header_bytes, long_size = container.start, container.name_bytes + container.size.size, None
    while position + header_bytes <= len(data):
        name, size = _chunk(data, position, container)
        position += header_bytes
        left = len(data) - position
        if name == container.sound:
            if size == 0 and not _is_rest_chunks(data, position, container):
                return f"its header says 0 bytes of sound, {left:,} are there"
            return _shorter(long_size if long_size is not None and size in _UNKNOWN_SIZES else size, left)
        if name == b"ds64" and size >= 16 and left >= 16:
            (long_size,) = struct.unpack_from("<Q", data, position + 8)
        is_format = container is _RIFF and name == b"fmt " and size >= _FORMAT.size
        if is_format and (fault := _fault_of_format(data, position)) is not None:
            return fault
        position += size + -size % container.multiple
    return "it is cut off before its sound begins"


def _chunk(data: memoryview, position: int, container: _Container) -> tuple[bytes, int]:
    start = position + container.name_bytes
    (size,) = container.size.unpack_from(data, start)
    if container.counts_header and size not in _UNKNOWN_SIZES:
        size = max(0, size - container.name_bytes - container.size.size)
    return bytes(data[position:start]), size


def _is_rest_chunks(data: memoryview, position: int, container: _Container) -> bool:
    header_bytes = container.name_bytes + container.size.size
    while position + header_bytes <= len(data):
        _, size = _chunk(data, position, container)
        position += header_bytes + size + -size % container.multiple
    return len(data) - 1 <= position <= len(data) + 1


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
