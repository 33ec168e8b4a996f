"""What the header of an image says: its size and channels, without decoding a pixel."""

from __future__ import annotations

import io
import struct
import warnings
from typing import NamedTuple

from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from shardkit.sources.sniff import image_type_of, text_kind

# The classes themselves, because Image.open guesses among formats and warns or fails at a limit of its own.
_OPENERS: dict[str, type[ImageFile.ImageFile]] = {
    "image/jpeg": JpegImagePlugin.JpegImageFile,
    "image/png": PngImagePlugin.PngImageFile,
    "image/webp": WebPImagePlugin.WebPImageFile,
    "image/gif": GifImagePlugin.GifImageFile,
    "image/bmp": BmpImagePlugin.BmpImageFile,
}
_CHANNELS = {"1": 1, "L": 1, "I": 1, "F": 1, "LA": 2, "La": 2, "PA": 4, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4}
_HEADER_ERRORS = (
    SyntaxError, OSError, ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError, struct.error,
    AttributeError, ZeroDivisionError,
)  # fmt: skip
_PNG_SIGNATURE_BYTES = 8
_PNG_CHUNK_OVERHEAD = 12


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


def read_header(data: bytes, max_pixels: int) -> ImageHeader:
    """Returns what the header of an image says.

    Args:
        data: The whole file.
        max_pixels: What height times width may be.

    Raises:
        ImageHeaderError: If the content is something else, is cut off, or has more pixels.
    """
    media_type = image_type_of(data)
    if media_type is None:
        raise ImageHeaderError(f"content is {text_kind(data)}, not an image")
    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes that the limit below decides on.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = _OPENERS[media_type](io.BytesIO(data))
        width, height = image.size
        channels = _channels(image)
    except Image.DecompressionBombError as error:
        raise ImageHeaderError(f"it has more than the {max_pixels:,} pixels that --max-pixels allows") from error
    except _HEADER_ERRORS as error:
        raise ImageHeaderError(
            f"its header is cut off or damaged ({str(error)[:200] or type(error).__name__})"
        ) from error
    if width < 1 or height < 1:
        raise ImageHeaderError(f"its size is {width}x{height}")
    if width * height > max_pixels:
        raise ImageHeaderError(f"{width}x{height} is more than the {max_pixels:,} pixels that --max-pixels allows")
    if _is_cut_off(data, media_type):
        raise ImageHeaderError("it is cut off: the end of the image is missing")
    return ImageHeader(media_type, height, width, channels)


def _channels(image: ImageFile.ImageFile) -> int:
    if image.mode == "P":
        return 4 if "transparency" in image.info else 3
    if image.mode.startswith("I;16"):
        return 1
    return _CHANNELS.get(image.mode, 3)


def _is_cut_off(data: bytes, media_type: str) -> bool:
    if media_type == "image/png":
        return not _has_png_end(data)
    if media_type == "image/jpeg":
        # The end marker must come after the last scan begins; thumbnails in the header have end markers too.
        return data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda")
    if media_type == "image/webp":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    return False


def _has_png_end(data: bytes) -> bool:
    position = _PNG_SIGNATURE_BYTES
    while position + _PNG_CHUNK_OVERHEAD <= len(data):
        if data[position + 4 : position + 8] == b"IEND":
            return True
        position += _PNG_CHUNK_OVERHEAD + int.from_bytes(data[position : position + 4], "big")
    return False
