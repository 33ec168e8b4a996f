"""Whether an encoded image, sound or video decodes from its first byte to its last."""

from __future__ import annotations

from collections.abc import Iterable

from shardkit.file_types import HEAD_BYTES, image_type_of, text_kind
from shardkit.media.audio_decoding import AudioError, check_audio, load_soundfile
from shardkit.media.audio_headers import audio_type_of
from shardkit.media.image_headers import ImageHeaderError, open_image, read_header
from shardkit.media.video_decoding import VideoError, check_video, load_av
from shardkit.media.video_headers import video_type_of
from shardkit.messages import reason_of

_KINDS = {"image/": "image", "audio/": "sound", "video/": "video"}


def media_kind(media_type: str | None) -> str | None:
    """Returns `image`, `sound` or `video`, by the media type of bytes; None for others."""
    return next((kind for start, kind in _KINDS.items() if (media_type or "").startswith(start)), None)


def load_decoders(kinds: Iterable[str | None]) -> None:
    """Loads the packages that decode some kinds of media.

    Raises:
        UsageError: If one is not installed.
    """
    if "sound" in kinds:
        load_soundfile()
    if "video" in kinds:
        load_av()


class DecodingError(Exception):
    """An image, a sound or a video does not decode; the text says why."""


def check_decodes(data: bytes, media_type: str, max_pixels: int) -> None:
    """Decodes an image, a sound or a video, and keeps nothing.

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
        elif media_type.startswith("video/"):
            found = video_type_of(data[:HEAD_BYTES])
            if found is None:
                raise VideoError(f"content is {text_kind(data[:HEAD_BYTES])}, not a video")
            check_video(memoryview(data), found, max_pixels)
        else:
            check_audio(memoryview(data), audio_type_of(data[:HEAD_BYTES], ".mp3") or media_type)
    except (ImageHeaderError, AudioError, VideoError) as error:
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
