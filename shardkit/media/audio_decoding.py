"""Audio files decoded by libsndfile, and resampled by soxr; both are optional packages."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardkit.errors import missing_extra
from shardkit.media.audio_headers import fault_of
from shardkit.media.mpeg_frames import count_frames, with_length
from shardkit.units import format_size

Samples = npt.NDArray[np.floating[Any]]

_BLOCK_FRAMES = 65_536
_WIDE_SUBTYPES = ("PCM_32", "DOUBLE")
_UNKNOWN_FRAMES = 2**62


class AudioHeader(NamedTuple):
    """What an audio file says of itself.

    Attributes:
        sample_rate: Frames a second.
        num_frames: Samples of each channel.
        num_channels: Channels.
    """

    sample_rate: int
    num_frames: int
    num_channels: int


class Decoded(NamedTuple):
    """Decoded sound.

    Attributes:
        samples: Of shape (frames, channels), from -1 to 1; float64 of a file whose samples may need it, else float32.
        sample_rate: Frames a second.
    """

    samples: Samples
    sample_rate: int


class AudioError(Exception):
    """The content is no audio that is read, or it is cut off; the text says which."""


def load_soundfile() -> Any:
    """Returns the module soundfile.

    Raises:
        UsageError: If it, or libsndfile, is not installed.
    """
    try:
        return importlib.import_module("soundfile")
    except (ImportError, OSError) as error:
        raise missing_extra("audio", "soundfile") from error


def load_soxr() -> Any:
    """Returns the module soxr.

    Raises:
        UsageError: If it is not installed.
    """
    try:
        return importlib.import_module("soxr")
    except ImportError as error:
        raise missing_extra("audio", "soxr") from error


def read_audio_header(data: memoryview, media_type: str) -> AudioHeader:
    """Returns the header of an audio file.

    Raises:
        AudioError: If it cannot be read, or is seen to be cut off.
    """
    with _opened(data, media_type) as sound:
        header = AudioHeader(sound.samplerate, sound.frames, sound.channels)
        is_cut = media_type == "audio/flac" and not _has_its_end(sound)
    if is_cut:
        raise AudioError(f"it is cut off or damaged: the last of its {header.num_frames:,} frames cannot be decoded")
    if not 0 <= header.num_frames < _UNKNOWN_FRAMES:
        raise AudioError("its header does not say how long it is")
    return header


def decode_audio(data: memoryview, media_type: str, rate: int | None, max_bytes: int) -> Decoded:
    """Returns the samples of an audio file.

    Args:
        rate: Frames a second to resample to; None keeps its own.
        max_bytes: More than these are refused.

    Raises:
        AudioError: If it cannot be decoded, is cut off, or is too long.
        UsageError: If an optional package is not installed.
    """
    with _opened(data, media_type) as sound:
        samples = _read_samples(sound, rate, max_bytes)
        own_rate = int(sound.samplerate)
    if rate is None or rate == own_rate:
        return Decoded(samples, own_rate)
    if not len(samples):
        return Decoded(samples, rate)
    resampled = load_soxr().resample(samples, own_rate, rate)
    return Decoded(np.ascontiguousarray(resampled, samples.dtype), rate)


def check_audio(data: memoryview, media_type: str) -> None:
    """Decodes a file and keeps nothing.

    Raises:
        AudioError: If it cannot be decoded, or is cut off.
        UsageError: If an optional package is not installed.
    """
    with _opened(data, media_type) as sound:
        for _ in _blocks(sound):
            pass


@contextlib.contextmanager
def _opened(data: memoryview, media_type: str) -> Iterator[Any]:
    soundfile = load_soundfile()
    content = _whole(data, media_type)
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as sound:
            yield sound
    except (soundfile.SoundFileError, RuntimeError, ValueError, OSError) as error:
        raise AudioError(_reason(error)) from error


def _whole(data: memoryview, media_type: str) -> memoryview | bytes:
    """Returns the content for libsndfile, which needs the length of an MP3.

    Raises:
        AudioError: If it is seen to be cut off.
    """
    fault = fault_of(data, media_type)
    if fault is not None:
        raise AudioError(fault)
    if media_type != "audio/mpeg":
        return data
    frames = count_frames(data)
    if frames is None:
        raise AudioError("it has no frames of MPEG layer 3 that say how long they are")
    if frames.num_missing:
        raise AudioError(f"it is cut off: its last frame lacks {frames.num_missing:,} bytes")
    if frames.stated is None:
        return with_length(data, frames)
    if frames.num_frames < frames.stated:
        stated, found = f"{frames.stated:,}", f"{frames.num_frames:,}"
        raise AudioError(f"it is cut off: its header says {stated} frames of MPEG, {found} are there")
    return data


def _has_its_end(sound: Any) -> bool:
    if not 0 < sound.frames < _UNKNOWN_FRAMES:
        return True
    try:
        sound.seek(sound.frames - 1)
        return len(sound.read(1)) == 1
    except (RuntimeError, ValueError):
        return False


def _read_samples(sound: Any, rate: int | None, max_bytes: int) -> Samples:
    growth = 1.0 if rate is None else max(1.0, rate / sound.samplerate)
    max_frames = int(max_bytes / (4 * sound.channels * growth))
    parts: list[Samples] = []
    num_frames = 0
    for block in _blocks(sound):
        num_frames += len(block)
        if num_frames > max_frames:
            raise AudioError(f"its samples take up more than the {format_size(max_bytes)} that a record may have")
        parts.append(block)
    empty = np.zeros((0, sound.channels), np.float32)
    return np.concatenate(parts) if parts else empty


def _blocks(sound: Any) -> Iterator[Samples]:
    """Yields the samples.

    Raises:
        AudioError: If some are no numbers, or missing.
    """
    dtype = "float64" if sound.subtype in _WIDE_SUBTYPES else "float32"
    num_frames = 0
    while len(block := sound.read(_BLOCK_FRAMES, dtype=dtype, always_2d=True)):
        num_frames += len(block)
        if not np.isfinite(block).all():
            raise AudioError("it holds samples that are no numbers")
        yield block
    if sound.frames < _UNKNOWN_FRAMES and num_frames != sound.frames:
        raise AudioError(f"it is cut off: its header says {sound.frames:,} frames, {num_frames:,} could be decoded")


def _reason(error: Exception) -> str:
    text = str(error).rpartition(">: ")[2].strip() or type(error).__name__
    text = re.sub(r"(?i)^(internal )?error : ", "", text)
    return f"it cannot be decoded: {text[:1].lower()}{text[1:].rstrip('.')}"
