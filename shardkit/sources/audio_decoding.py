"""Audio files decoded by libsndfile, and resampled by soxr; both are optional packages."""

from __future__ import annotations

import importlib
import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardkit.errors import missing_extra
from shardkit.sources.audio_headers import missing_part
from shardkit.units import format_size

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
        samples: float32 of shape (frames, channels), from -1 to 1.
        sample_rate: Frames a second.
        num_rounded: Samples that float32 does not hold.
    """

    samples: npt.NDArray[np.float32]
    sample_rate: int
    num_rounded: int


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
    """Returns what an audio file says of itself.

    Raises:
        AudioError: If it cannot be read, or is seen to be cut off.
    """
    soundfile = load_soundfile()
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            header = AudioHeader(sound.samplerate, sound.frames, sound.channels)
    except (soundfile.SoundFileError, RuntimeError, ValueError, OSError) as error:
        raise AudioError(_reason(error)) from error
    missing = missing_part(data, media_type)
    if missing is not None:
        raise AudioError(missing)
    if not 0 <= header.num_frames < _UNKNOWN_FRAMES:
        raise AudioError("its header does not say how long it is")
    return header


def decode_audio(data: memoryview, media_type: str, rate: int | None, max_bytes: int) -> Decoded:
    """Returns the samples of an audio file.

    Args:
        data: The file.
        media_type: Of it.
        rate: Frames a second to resample to; None keeps its own.
        max_bytes: More than these are refused.

    Raises:
        AudioError: If it cannot be decoded, is cut off, or is too long.
        UsageError: If an optional package is not installed.
    """
    soundfile = load_soundfile()
    missing = missing_part(data, media_type)
    if missing is not None:
        raise AudioError(missing)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            samples, num_rounded = _read_samples(sound, rate, max_bytes)
            own_rate = int(sound.samplerate)
    except (soundfile.SoundFileError, RuntimeError, ValueError, OSError) as error:
        raise AudioError(_reason(error)) from error
    if not np.isfinite(samples).all():
        raise AudioError("it holds samples that are no numbers")
    if rate is None or rate == own_rate:
        return Decoded(samples, own_rate, num_rounded)
    if not len(samples):
        return Decoded(samples, rate, num_rounded)
    resampled = load_soxr().resample(samples, own_rate, rate)
    return Decoded(np.ascontiguousarray(resampled, np.float32), rate, num_rounded)


def _read_samples(sound: Any, rate: int | None, max_bytes: int) -> tuple[npt.NDArray[np.float32], int]:
    growth = 1.0 if rate is None else max(1.0, rate / sound.samplerate)
    max_frames = int(max_bytes / (4 * sound.channels * growth))
    dtype = "float64" if sound.subtype in _WIDE_SUBTYPES else "float32"
    parts: list[npt.NDArray[np.float32]] = []
    num_frames = num_rounded = 0
    while True:
        block = sound.read(_BLOCK_FRAMES, dtype=dtype, always_2d=True)
        if not len(block):
            break
        num_frames += len(block)
        if num_frames > max_frames:
            raise AudioError(f"its samples take up more than the {format_size(max_bytes)} that a record may have")
        with np.errstate(over="ignore"):
            narrow = block.astype(np.float32, copy=False)
        if dtype == "float64":
            num_rounded += int(np.count_nonzero(narrow != block))
        parts.append(narrow)
    if sound.frames < _UNKNOWN_FRAMES and num_frames != sound.frames:
        raise AudioError(f"it is cut off: its header says {sound.frames:,} frames, {num_frames:,} could be decoded")
    empty = np.zeros((0, sound.channels), np.float32)
    return np.concatenate(parts) if parts else empty, num_rounded


def _reason(error: Exception) -> str:
    text = str(error).rpartition(">: ")[2].strip() or type(error).__name__
    return f"it cannot be decoded: {text[:1].lower()}{text[1:].rstrip('.')}"
