"""Reads the header of an image: its size and channels, without decoding a pixel.

Pillow is the judge. This module reads ordinary JPEG headers, which most images have, in a tenth of Pillow's time. It
leaves every header to Pillow that Pillow might refuse. Whether the end is there is seen by the structure of the file;
BMP and PNM, which hardly have any, are decoded for that.
"""

from __future__ import annotations

import functools
import io
import struct
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from shardkit.file_types import image_type_of, text_kind
from shardkit.messages import reason_of

if TYPE_CHECKING:
    from PIL import ImageFile

_CHANNELS = {"1": 1, "L": 1, "I": 1, "F": 1, "LA": 2, "La": 2, "PA": 4, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4}
HEADER_ERRORS = (
    SyntaxError, OSError, ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError, struct.error,
    AttributeError, ZeroDivisionError,
)  # fmt: skip
_PNG_SIGNATURE_BYTES = 8
_PNG_CHUNK_OVERHEAD = 12

_MARKER_AND_LENGTH = struct.Struct(">HH")
_FRAME = struct.Struct(">BHHB")  # precision, height, width, components
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_SCAN, _TABLES = 0xFFDA, 0xFFDB
_FRAMES = frozenset({0xFFC0, 0xFFC1, 0xFFC2})
# Huffman tables, restart interval, comment, application data: what Pillow passes over, ...
_SKIPPED = frozenset({0xFFC4, 0xFFDD, 0xFFFE, *range(0xFFE3, 0xFFED), 0xFFEF})
# ... what it accepts from a certain length on, ...
_LEAST_LENGTHS = {0xFFE0: 9, 0xFFE1: 2, 0xFFE2: 16, 0xFFED: 2, 0xFFEE: 9}
# ... and what it looks into and may not like.
_EXAMINED = {0xFFE1: b"Exif", 0xFFED: b"Phot"}
_ONE_TABLE_LENGTH = 67

_GIF_END, _GIF_IMAGE, _GIF_EXTENSION = 0x3B, 0x2C, 0x21
_TIFF_TYPE_BYTES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
_STRIPS, _TILES = 273, 324  # TIFF 6.0: tags of the places of the pixels; those of the sizes are 279 and 325.


class ImageHeader(NamedTuple):
    """What an image says of itself.

    Attributes:
        media_type: Such as `image/png`.
        height: Pixels.
        width: Pixels.
        channels: 1 grey, 2 grey and alpha, 3 colour or palette, 4 colour and alpha or CMYK.
    """

    media_type: str
    height: int
    width: int
    channels: int


class ImageHeaderError(Exception):
    """The content is no image that is read, or it is cut off; the text says which."""


def read_header(data: bytes | memoryview, max_pixels: int) -> ImageHeader:
    """Returns the header of an image.

    Args:
        max_pixels: What height times width may be.

    Raises:
        ImageHeaderError: If the content is something else, is cut off, or has more pixels.
    """
    header = plain_jpeg_header(data)
    image = None
    if header is None:
        data = bytes(data)
        media_type = image_type_of(data, None)
        if media_type is None:
            raise ImageHeaderError(f"content is {text_kind(data)}, not an image")
        header, image = pillow_header(data, media_type, max_pixels)
    media_type, height, width, _ = header
    if width < 1 or height < 1:
        raise ImageHeaderError(f"its size is {width}x{height}")
    if width * height > max_pixels:
        raise ImageHeaderError(f"{width}x{height} is more than the {max_pixels:,} pixels that --max-pixels allows")
    if _is_cut_off(data, media_type, image):
        raise ImageHeaderError("it is cut off: the end of the image is missing")
    return header


def plain_jpeg_header(data: bytes | memoryview) -> ImageHeader | None:
    """Returns the header of an ordinary JPEG, None for an image that Pillow should decide.

    Ordinary: segments that follow each other without a gap up to the first scan (ISO/IEC 10918-1, B.1.1), one of them
    a baseline or progressive frame of 8 bits and 1, 3 or 4 components, and nothing in them that Pillow checks further.
    """
    if data[:3] != _JPEG_START:
        return None
    frame: tuple[int, int, int, int] | None = None
    position, end = 2, len(data)
    while position + 4 <= end:
        marker, length = _MARKER_AND_LENGTH.unpack_from(data, position)
        start, position = position + 4, position + 2 + length
        if length < 2 or position > end:
            return None
        if marker in _SKIPPED:
            continue
        if marker == _TABLES:
            if not (length == _ONE_TABLE_LENGTH and data[start] < 16) and not _are_tables(data, start, position):
                return None
        elif marker in _FRAMES:
            if frame is not None or length < 8:
                return None
            frame = _FRAME.unpack_from(data, start)
            if length != 8 + 3 * frame[3]:
                return None
        elif marker == _SCAN:
            return None if frame is None else _header_of(frame)
        elif not _is_plain(marker, length, data, start):
            return None
    return None


def _header_of(frame: tuple[int, int, int, int]) -> ImageHeader | None:
    precision, height, width, num_components = frame
    if precision != 8 or num_components not in (1, 3, 4) or not height or not width:
        return None
    return ImageHeader("image/jpeg", height, width, num_components)


def _is_plain(marker: int, length: int, data: bytes | memoryview, start: int) -> bool:
    least = _LEAST_LENGTHS.get(marker)
    if least is None or length < least:
        return False
    return marker not in _EXAMINED or data[start : start + 4] != _EXAMINED[marker]


def _are_tables(data: bytes | memoryview, start: int, stop: int) -> bool:
    while start < stop:
        start += 65 if data[start] < 16 else 129
    return start == stop


def open_image(data: bytes, media_type: str) -> ImageFile.ImageFile:
    """Returns an image whose pixels are not decoded yet.

    Args:
        media_type: What its first bytes say it is.
    """
    # Only here, because it takes longer to import than most conversions need it.
    from PIL import (
        BmpImagePlugin,
        GifImagePlugin,
        JpegImagePlugin,
        PngImagePlugin,
        PpmImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    # The classes themselves, because Image.open guesses among formats and warns or fails at another limit.
    openers: dict[str, type[ImageFile.ImageFile]] = {
        "image/jpeg": JpegImagePlugin.JpegImageFile,
        "image/png": PngImagePlugin.PngImageFile,
        "image/webp": WebPImagePlugin.WebPImageFile,
        "image/gif": GifImagePlugin.GifImageFile,
        "image/bmp": BmpImagePlugin.BmpImageFile,
        "image/tiff": TiffImagePlugin.TiffImageFile,
        "image/x-portable-anymap": PpmImagePlugin.PpmImageFile,
    }
    _silence()
    return openers[media_type](io.BytesIO(data))


@functools.cache
def _silence() -> None:
    # Pillow warns of sizes that the limit of the caller decides on, and of damage that is found without it. To change
    # filters around each image is not thread-safe.
    warnings.filterwarnings("ignore", module=r"PIL\.")


def pillow_header(data: bytes, media_type: str, max_pixels: int) -> tuple[ImageHeader, ImageFile.ImageFile]:
    """Returns the header as Pillow reads it, and the image, whose pixels are not decoded yet.

    Args:
        media_type: What its first bytes say it is.
        max_pixels: For the message where Pillow's own limit is exceeded.

    Raises:
        ImageHeaderError: If Pillow cannot read it.
    """
    from PIL import Image

    try:
        image = open_image(data, media_type)
        width, height = image.size
        channels = _channels(image.mode, has_alpha="transparency" in image.info)
        return ImageHeader(media_type, height, width, channels), image
    except Image.DecompressionBombError as error:
        raise ImageHeaderError(f"it has more than the {max_pixels:,} pixels that --max-pixels allows") from error
    except HEADER_ERRORS as error:
        raise ImageHeaderError(f"its header is cut off or damaged ({reason_of(error)})") from error


def _channels(mode: str, *, has_alpha: bool) -> int:
    if mode == "P":
        return 4 if has_alpha else 3
    if mode.startswith("I;16"):
        return 1
    return _CHANNELS.get(mode, 3)


def _is_cut_off(data: bytes | memoryview, media_type: str, image: Any) -> bool:
    if media_type == "image/jpeg":
        # The end marker must come after the last scan begins; thumbnails in the header have end markers too.
        if data[-2:] == _JPEG_END:
            return False
        data = bytes(data)
        return data.rfind(_JPEG_END) < data.rfind(b"\xff\xda")
    if media_type == "image/png":
        return not _has_png_end(data)
    if media_type == "image/webp":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    try:
        if media_type == "image/gif":
            return not _has_gif_end(data)
        if media_type == "image/tiff":
            return _tiff_end(bytes(data), image.tag_v2) > len(data)
        image.load()
    except HEADER_ERRORS:
        return True
    return False


def _has_gif_end(data: bytes | memoryview) -> bool:
    # GIF89a, section 24: blocks of parts, each part behind its size, the last one empty.
    position = 13 + _palette_bytes(data[10])
    while (kind := data[position]) != _GIF_END:
        if kind == _GIF_IMAGE:
            position += 11 + _palette_bytes(data[position + 9])
        elif kind == _GIF_EXTENSION:
            position += 2
        else:
            position += 1  # Pillow passes over it.
            continue
        while size := data[position]:
            position += 1 + size
        position += 1
    return True


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _tiff_end(data: bytes, tags: Any) -> int:
    """Returns where the first page ends: its directory, what that refers to, and its strips or tiles."""
    order = "<" if data[:1] == b"I" else ">"
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    (num_entries,) = struct.unpack_from(f"{order}H", data, start)
    ends: list[int] = [start + 2 + 12 * num_entries + 4]
    for index in range(num_entries):
        _, type_, count, place = struct.unpack_from(f"{order}HHII", data, start + 2 + 12 * index)
        size = count * _TIFF_TYPE_BYTES.get(type_, 1)
        ends.append(place + size if size > 4 else 0)
    starts, counts = (tags.get(i) or tags.get(j) or () for i, j in ((_STRIPS, _TILES), (_STRIPS + 6, _TILES + 1)))
    return max(ends + [int(start) + int(count) for start, count in zip(starts, counts, strict=False)])


def _has_png_end(data: bytes | memoryview) -> bool:
    position = _PNG_SIGNATURE_BYTES
    while position + _PNG_CHUNK_OVERHEAD <= len(data):
        if data[position + 4 : position + 8] == b"IEND":
            return True
        position += _PNG_CHUNK_OVERHEAD + int.from_bytes(data[position : position + 4], "big")
    return False
