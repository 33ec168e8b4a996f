"""Whether an encoded image or sound decodes from its first byte to its last."""

from __future__ import annotations

from shardkit.file_types import HEAD_BYTES, image_type_of
from shardkit.media.audio_decoding import AudioError, check_audio
from shardkit.media.audio_headers import audio_type_of
from shardkit.media.image_headers import ImageHeaderError, open_image, read_header
from shardkit.messages import reason_of

_KINDS = ("image/", "audio/")


def is_media(media_type: str | None) -> bool:
    """Whether bytes of a media type are images or sound."""
    return (media_type or "").startswith(_KINDS)


class DecodingError(Exception):
    """An image or a sound does not decode; the text says why."""


def check_decodes(data: bytes, media_type: str, max_pixels: int) -> None:
    """Decodes an image or a sound, and keeps nothing.

    Args:
        media_type: What they should be, such as `image/*`.
        max_pixels: What height times width may be; of an animation, frames are decoded up to so many.

    Raises:
        DecodingError: If they do not decode.
    """
    try:
        if media_type.startswith("image/"):
            read_header(data, max_pixels)
            _decode_image(data, max_pixels)
        else:
            check_audio(memoryview(data), audio_type_of(data[:HEAD_BYTES], ".mp3") or media_type)
    except (ImageHeaderError, AudioError) as error:
        raise DecodingError(str(error)) from error


def _decode_image(data: bytes, max_pixels: int) -> None:
    media_type = image_type_of(data, None) or ""
    try:
        if media_type == "image/png":
            # Pillow compares checksums only here, and only before it decodes.
            open_image(data, media_type).verify()
        image = open_image(data, media_type)
        num_pixels = 0
        for frame in range(getattr(image, "n_frames", 1)):
            image.seek(frame)
            num_pixels += image.width * image.height
            if frame and num_pixels > max_pixels:
                break
            image.load()
    except MemoryError:
        # The row needs more memory than a process may take; its bytes may be sound.
        raise
    except Exception as error:
        # Decoders raise all kinds of errors at damaged data.
        raise DecodingError(f"it cannot be decoded: {reason_of(error)}") from error
