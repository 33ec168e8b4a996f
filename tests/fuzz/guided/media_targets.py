"""Parsers of images, sounds and boxes."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from PIL import Image

from shardkit.media.audio_decoding import AudioError, check_audio, read_audio_header
from shardkit.media.audio_headers import audio_type_of, fault_of, is_wav_of_16_bits
from shardkit.media.decoding import DecodingError, check_decodes
from shardkit.media.image_headers import ImageHeaderError, plain_jpeg_header, read_header
from shardkit.media.mpeg_frames import count_frames, with_length
from shardkit.sources.base import RawFile
from shardkit.sources.media.voc import parse_voc
from tests.fuzz.guided.target import Target

_MAX_PIXELS = 2**20
_SIZE = (7, 5)
_VOC = b"""<annotation><size><width>7</width><height>5</height></size><object><name>dog</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object></annotation>"""


def _encoded(mode: str, format_: str, **settings: object) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (*_SIZE, 4), np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(sink, format_, **settings)
    return sink.getvalue()


def _image_seeds() -> list[bytes]:
    frames = [Image.new("P", _SIZE, i) for i in range(3)]
    animated = io.BytesIO()
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    return [
        _encoded("RGB", "JPEG"),
        _encoded("L", "JPEG", progressive=True, comment=b"x"),
        _encoded("RGBA", "PNG"),
        _encoded("P", "PNG", transparency=1),
        animated.getvalue(),
        _encoded("RGB", "BMP"),
        _encoded("RGB", "WEBP"),
        _encoded("RGB", "TIFF", compression="tiff_lzw"),
        _encoded("L", "TIFF"),
        _encoded("L", "PPM"),
    ]


def _read_image(data: bytes) -> None:
    plain_jpeg_header(data)
    read_header(data, _MAX_PIXELS)
    check_decodes(data, "image/*", _MAX_PIXELS)


def _sound(format_: str, **settings: str) -> bytes:
    sink = io.BytesIO()
    soundfile.write(sink, (0.5 * np.sin(np.arange(300) / 9)).astype(np.float32), 8000, format=format_, **settings)
    return sink.getvalue()


def _sound_seeds() -> list[bytes]:
    kinds = ("WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "RF64", "W64")
    return [*map(_sound, kinds), _sound("WAV", endian="BIG"), _sound("WAV", subtype="FLOAT")]


def _read_sound_headers(data: bytes) -> None:
    """Reads the headers without libsndfile."""
    view = memoryview(data)
    media_type = audio_type_of(data[:4096], "a.mp3")
    is_wav_of_16_bits(data[:64])
    if media_type is not None:
        fault_of(view, media_type)
    frames = count_frames(view)
    if frames is not None:
        with_length(view, frames)


def _read_sound(data: bytes) -> None:
    media_type = audio_type_of(data[:4096], "a.mp3") or "audio/wav"
    read_audio_header(memoryview(data), media_type)
    check_audio(memoryview(data), media_type)


def _read_boxes(data: bytes) -> None:
    parse_voc(data, RawFile(path="/a.xml", name="a.xml", num_bytes=len(data), version="1"))


def media_targets() -> list[Target]:
    """Returns the targets."""
    return [
        Target("images", _image_seeds, _read_image, (ImageHeaderError, DecodingError)),
        Target("audio-headers", _sound_seeds, _read_sound_headers),
        Target("audio", _sound_seeds, _read_sound, (AudioError,)),
        Target("voc", lambda: [_VOC], _read_boxes),
    ]
