"""Videos decoded by FFmpeg through PyAV, which is an optional package; a frame at a time, in one thread."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from shardkit.errors import ShardkitError, missing_extra
from shardkit.media.video_headers import DEMUXERS, fault_of
from shardkit.messages import reason_of
from shardkit.units import MiB

Pixels = npt.NDArray[np.uint8]

_ROUNDING = Fraction(1, 2000)
_MUCH_BYTES = 512 * MiB


class VideoHeader(NamedTuple):
    """What a video file says of itself.

    Attributes:
        num_frames: As many as the file holds.
        frame_rate: Frames a second, on average.
        height, width: Pixels of the upright frames.
        duration: Seconds from the first frame to the end of the last one.
    """

    num_frames: int
    frame_rate: float
    height: int
    width: int
    duration: float


class Frame(NamedTuple):
    """A decoded frame.

    Attributes:
        number: Its position in the video, from 0 on.
        time: Seconds since the first frame.
        pixels: uint8 `[height, width, 3]`: RGB, upright.
    """

    number: int
    time: float
    pixels: Pixels


class VideoError(Exception):
    """The content is no video that is read, or it is damaged; the text says which."""


def load_av() -> Any:
    """Returns the module av.

    Raises:
        UsageError: If it is not installed.
    """
    try:
        return importlib.import_module("av")
    except ImportError as error:
        raise missing_extra("video", "av") from error


def read_video_header(data: memoryview, media_type: str, max_pixels: int) -> VideoHeader:
    """Returns the header of a video file, of which the first frame is decoded.

    Args:
        max_pixels: What height times width may be.

    Raises:
        VideoError: If it cannot be read, or is seen to be cut off.
    """
    with _opened(io.BytesIO(data), media_type, max_pixels) as (packets, stream):
        num_frames, frame, spans = 0, None, []
        for packet in packets:
            num_frames += packet.size > 0
            if packet.pts is not None:
                spans.append((packet.pts, packet.pts + (packet.duration or 0)))
            if frame is None:
                frame = next(iter(packet.decode()), None)
        if frame is None:
            raise VideoError("it has no frame that can be decoded")
        ticks = max(stop for _, stop in spans) - min(start for start, _ in spans) if spans else 0
        duration = float(ticks * (stream.time_base or 0))
        rate = stream.average_rate or stream.guessed_rate or (num_frames / duration if duration else 0)
        sides = (frame.height, frame.width)
        height, width = sides[::-1] if frame.rotation % 180 else sides
        return VideoHeader(num_frames, float(rate), height, width, duration or (num_frames / float(rate or 1)))


def read_frames(file: BinaryIO, media_type: str, max_pixels: int, rate: float | None = None) -> Iterator[Frame]:
    """Yields the frames of a video in their order; one is in memory at a time.

    Args:
        file: Seekable; stays open.
        max_pixels: What height times width may be.
        rate: Frames a second that are taken: the first one of each interval. None takes all.

    Raises:
        VideoError: If it cannot be read, is damaged or cut off, behind the frames before that place.
    """
    for index, time, frame in _decoded(file, media_type, max_pixels, rate):
        turns = frame.rotation // 90 % 4
        yield Frame(index, float(time), np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns)))


def count_frames(data: bytes, media_type: str, max_pixels: int, rate: float | None = None) -> int:
    """Returns how many frames `read_frames` takes of a video, by its packets alone.

    Raises:
        VideoError: If it cannot be read.
    """
    with _opened(io.BytesIO(data), media_type, max_pixels) as (packets, stream):
        times = [packet.pts or 0 for packet in packets if packet.size]
        tick = stream.time_base or Fraction(1)
    if rate is None or not times:
        return len(times)
    return len({_interval_of((time - min(times)) * tick, tick, rate) for time in times})


def check_video(data: memoryview, media_type: str, max_pixels: int) -> None:
    """Decodes a file and keeps nothing.

    Raises:
        VideoError: If it cannot be decoded, or is cut off.
        UsageError: If PyAV is not installed.
    """
    for _ in _decoded(io.BytesIO(data), media_type, max_pixels, None):
        pass


def _decoded(
    file: BinaryIO, media_type: str, max_pixels: int, rate: float | None
) -> Iterator[tuple[int, Fraction, Any]]:
    """Yields index, time and frame of FFmpeg."""
    index, first, last_interval = 0, None, -1
    with _opened(file, media_type, max_pixels) as (packets, stream):
        tick = stream.time_base or Fraction(1)
        for frame in (frame for packet in packets for frame in packet.decode()):
            if frame.is_corrupt:
                raise VideoError(f"its frame {index:,} is damaged")
            _check_size(frame, max_pixels)
            now = frame.pts * tick if frame.pts is not None else index / (stream.average_rate or Fraction(1))
            first = now if first is None else first
            interval = -1 if rate is None else _interval_of(now - first, tick, rate)
            if rate is None or interval > last_interval:
                last_interval = interval
                yield index, now - first, frame
            index += 1
    if not index:
        raise VideoError("it has no frame that can be decoded")


def _interval_of(elapsed: Fraction, tick: Fraction, rate: float) -> int:
    # Containers round times to their ticks.
    return math.floor((elapsed + min(tick / 2, _ROUNDING)) * Fraction(rate))


@contextlib.contextmanager
def _opened(file: BinaryIO, media_type: str, max_pixels: int) -> Iterator[tuple[Iterator[Any], Any]]:
    """Opens a file for its packets, and the stream that they are of."""
    av = load_av()
    fault = fault_of(file, media_type)
    if fault is not None:
        raise VideoError(fault)
    file.seek(0)
    try:
        with av.open(file, format=DEMUXERS[media_type], metadata_errors="ignore") as container:
            # A sound may have a picture of its cover.
            covers = av.stream.Disposition.attached_pic
            stream = next((s for s in container.streams.video if not s.disposition & covers), None)
            if stream is None or stream.codec_context is None:
                raise VideoError("it has no stream of video that is read")
            stream.thread_type, stream.codec_context.thread_count = "NONE", 1
            stream.codec_context.options = {"max_pixels": str(max_pixels)}
            _check_size(stream.codec_context, max_pixels)
            yield _whole_packets(container, stream), stream
    except (VideoError, ShardkitError):
        raise
    except MemoryError as error:
        # FFmpeg refuses at once to allocate what a damaged size states; else memory is short.
        np.empty(_MUCH_BYTES, np.uint8)
        raise VideoError("it cannot be decoded: a size that it states is larger than memory") from error
    except OSError as error:
        # Errors of FFmpeg are OSErrors too; others are of the store.
        if not isinstance(error, av.error.FFmpegError):
            raise
        raise VideoError(f"it cannot be decoded: {_reason(error)}") from error
    except Exception as error:
        # Decoders raise all kinds of errors at damaged data.
        raise VideoError(f"it cannot be decoded: {_reason(error)}") from error


def _whole_packets(container: Any, stream: Any) -> Iterator[Any]:
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise VideoError("it is cut off or damaged: a part of its frames is missing")
        yield packet


def _check_size(sized: Any, max_pixels: int) -> None:
    if sized.height * sized.width > max_pixels:
        why = f"{sized.width}x{sized.height} is more than the {max_pixels:,} pixels that --max-pixels allows"
        raise VideoError(why)


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ends too early"
    text = str(getattr(error, "strerror", None) or reason_of(error))
    return f"{text[:1].lower()}{text[1:]}"
