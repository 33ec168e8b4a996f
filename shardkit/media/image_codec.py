"""Writes one image anew: upright, of another size, as JPEG or PNG. Only its pixels are kept.

Pixels that the wanted format cannot hold become:

    palette              colours, with alpha if the palette has any
    one bit              grey
    CMYK, YCCK           RGB, by Pillow's formula without a colour profile
    16-bit grey          stays so in PNG, is rounded to 8 bits in JPEG
    fractions, 32 bits   an error, for their scale is unknown
    16-bit colour        8 bits (Pillow keeps the high ones)
    transparent parts    stay so in PNG, are laid over white in JPEG
    an animation         its first frame
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardkit.file_types import image_type_of
from shardkit.media.image_headers import (
    HEADER_ERRORS,
    ImageHeader,
    ImageHeaderError,
    open_image,
    plain_jpeg_header,
    read_header,
)
from shardkit.messages import reason_of

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_QUALITY = 90

_CHANNELS = {"L": 1, "I;16": 1, "LA": 2, "RGB": 3, "RGBA": 4}
ImageFormat = Literal["jpeg", "png"]
_MEDIA_TYPES: dict[ImageFormat, str] = {"jpeg": "image/jpeg", "png": "image/png"}
_PLAIN_MODES: dict[ImageFormat, frozenset[str]] = {
    "jpeg": frozenset({"L", "RGB"}),
    "png": frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}),
}
_MAX_16_BITS = 65_535
_ORIENTATION = 0x0112
# JPEG is decoded at an eighth, a quarter or half its size where that is still this many times the wanted one.
_REDUCING_GAP = 2


class ImageError(Exception):
    """An image cannot be used.

    Args:
        what: What went wrong, starting in lower case.
    """

    def __init__(self, what: str, why: str, raw: bytes | None = None) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why
        self.raw = raw


class ImageOptions(NamedTuple):
    """What images become.

    Attributes:
        size: Height and width; None keeps each one's own.
        format: None keeps JPEG as JPEG and makes PNG of all else.
        quality: Of JPEG.
        apply_exif: Whether to turn images upright.
        max_pixels: Images that declare more are refused before anything is decoded.
        max_bytes: A rewritten image may have so many.
    """

    size: tuple[int, int] | None
    format: ImageFormat | None
    quality: int
    apply_exif: bool
    max_pixels: int
    max_bytes: int


class EncodedImage(NamedTuple):
    """An encoded image.

    Attributes:
        data: Its bytes.
        height, width: Pixels.
        channels: 1 grey, 2 grey and alpha, 3 colour or palette, 4 colour and alpha or CMYK.
        original: Height and width that it had, upright if it is turned.
        orientation: 1 to 8, as EXIF counts, by which it was turned.
    """

    data: bytes
    height: int
    width: int
    channels: int
    original: tuple[int, int]
    orientation: int


def rewrite(data: bytes, options: ImageOptions) -> EncodedImage:
    """Returns an image as it is wanted; the same bytes where it is so already.

    Raises:
        ImageError: If it is no image, has too many pixels, or cannot be decoded or written.
    """
    try:
        header = read_header(data, options.max_pixels)
    except ImageHeaderError as error:
        raise ImageError("the image cannot be used", str(error), data) from error
    try:
        encoded = _rewrite(data, header, options)
    except MemoryError:
        # The row needs more memory than a process may take; its bytes may be sound.
        raise
    except Exception as error:
        # Decoders raise all kinds of errors at damaged data.
        raise ImageError("the image cannot be decoded and written anew", reason_of(error), data) from error
    if len(encoded.data) > options.max_bytes:
        why = f"it would have {len(encoded.data):,} bytes, more than the {options.max_bytes:,} that a record may have"
        raise ImageError("the image becomes too large", why, data)
    return encoded


def open_upright(data: bytes, max_pixels: int, reduced: Callable[[int, int], tuple[int, int]]) -> Image.Image:
    """Returns the pixels of an image, upright and without alpha, as L or RGB.

    Args:
        max_pixels: One that declares more is refused before anything is decoded.
        reduced: Says of the height and width of an upright JPEG which are needed at least: it is decoded at an eighth,
            a quarter or half of its size where that is enough.

    Raises:
        ImageError: If it is no image, has too many pixels, or cannot be decoded.
    """
    try:
        header = read_header(data, max_pixels)
    except ImageHeaderError as error:
        raise ImageError("the image cannot be used", str(error), data) from error
    try:
        image: Image.Image = open_image(data, header.media_type)
        orientation = _orientation_of(image, data)
        if header.media_type == "image/jpeg":
            is_turned = orientation >= 5
            needed = reduced(image.width, image.height) if is_turned else reduced(image.height, image.width)
            image.draft(None, needed if is_turned else needed[::-1])
        image.load()
        image = _upright(image, orientation)
        is_plain = image.mode in _PLAIN_MODES["jpeg"] and "transparency" not in image.info
        return image if is_plain else _for_jpeg(_converted(image))
    except MemoryError:
        # The row needs more memory than a process may take; its bytes may be sound.
        raise
    except Exception as error:
        # Decoders raise all kinds of errors at damaged data.
        raise ImageError("the image cannot be decoded", reason_of(error), data) from error


def orientation_of(data: bytes) -> int:
    """Returns the orientation of the EXIF data, 1 to 8; 1 is upright, and from 5 on it turns the image by a quarter.

    Args:
        data: An image whose header can be read.
    """
    if plain_jpeg_header(data) is not None:
        return 1  # It has no EXIF data.
    return _orientation_of(open_image(data, image_type_of(data, None) or ""), data)


def _rewrite(data: bytes, header: ImageHeader, options: ImageOptions) -> EncodedImage:
    wanted = options.format or ("jpeg" if header.media_type == "image/jpeg" else "png")
    image: Image.Image = open_image(data, header.media_type)
    orientation = _orientation_of(image, data) if options.apply_exif else 1
    if _is_as_wanted(image, header, wanted, orientation, options.size):
        size = header.height, header.width
        return EncodedImage(data, *size, header.channels, size, orientation)
    if options.size is not None and header.media_type == "image/jpeg":
        height, width = options.size if orientation < 5 else options.size[::-1]
        image.draft(None, (width * _REDUCING_GAP, height * _REDUCING_GAP))
    image.load()
    image = _converted(_upright(image, orientation))
    original = (header.height, header.width) if orientation < 5 else (header.width, header.height)
    if options.size is not None:
        image = _resized(image, *options.size)
    image = _for_jpeg(image) if wanted == "jpeg" else _for_png(image)
    image.info = {}
    target = io.BytesIO()
    if wanted == "jpeg":
        image.save(target, "JPEG", quality=options.quality)
    else:
        image.save(target, "PNG")
    size = image.height, image.width
    return EncodedImage(target.getvalue(), *size, _CHANNELS[image.mode], original, orientation)


def _is_as_wanted(
    image: Image.Image, header: ImageHeader, wanted: ImageFormat, orientation: int, size: tuple[int, int] | None
) -> bool:
    return (
        header.media_type == _MEDIA_TYPES[wanted]
        and orientation == 1
        and size in (None, (header.height, header.width))
        and image.mode in _PLAIN_MODES[wanted]
        and not getattr(image, "is_animated", False)
    )


def _orientation_of(image: Image.Image, data: bytes) -> int:
    """Returns the orientation of the EXIF data, 1 to 8; 1 where it cannot be read."""
    from PIL import Image

    if image.format == "PNG" and "exif" not in image.info and b"eXIf" in data:
        image.load()  # The chunk may stand behind the pixels.
    content = image.info.get("exif")
    if not isinstance(content, bytes):
        return 1
    exif = Image.Exif()
    try:
        exif.load(content)
        value = exif.get(_ORIENTATION)
    except HEADER_ERRORS:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    if orientation == 1:
        return image
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turned = image.transpose(turns[orientation])
    turned.info = dict(image.info)
    return turned


def _converted(image: Image.Image) -> Image.Image:
    """Returns the image as L, LA, RGB, RGBA, or as I, which here stands for 16 bits.

    Raises:
        ValueError: If its pixels are no whole numbers of up to 16 bits, for which no scale is known.
    """
    if image.mode == "F":
        raise ValueError("its pixels are fractions, and PNG and JPEG hold whole numbers")
    if image.mode.startswith("I"):
        wide = image.convert("I")
        least, greatest = (int(bound(np.asarray(wide))) for bound in (np.min, np.max))
        if least < 0 or greatest > _MAX_16_BITS:
            raise ValueError(f"its pixels go from {least:,} to {greatest:,}, and PNG holds 0 to {_MAX_16_BITS:,}")
        return wide
    has_alpha = "transparency" in image.info
    if image.mode in ("1", "L"):
        return image.convert("LA" if has_alpha else "L")
    if image.mode in ("P", "RGB"):
        return image.convert("RGBA" if has_alpha else "RGB")
    if image.mode in ("LA", "RGBA"):
        return image
    return image.convert("RGBA" if image.mode in ("PA", "RGBa", "La") else "RGB")


def _resized(image: Image.Image, height: int, width: int) -> Image.Image:
    from PIL.Image import Resampling

    return image.resize((width, height), Resampling.BILINEAR)


def _for_jpeg(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "I":
        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values * 255 + 32767) // _MAX_16_BITS).astype(np.uint8))
    if image.mode not in ("LA", "RGBA"):
        return image
    coloured = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, coloured).convert("L" if image.mode == "LA" else "RGB")


def _for_png(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode != "I":
        return image
    return Image.fromarray(np.asarray(image).astype(np.uint16))
