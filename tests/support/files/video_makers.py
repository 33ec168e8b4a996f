"""Videos that tests write, by PyAV, and their frames as PyAV gives them."""

from __future__ import annotations

import io
import struct
import tempfile
from pathlib import Path

import av
import numpy as np

# Container of FFmpeg and codec, by extension.
KINDS = {
    "mp4": ("mp4", "libx264"),
    "mov": ("mov", "mpeg4"),
    "mkv": ("matroska", "libx264"),
    "webm": ("webm", "libvpx-vp9"),
    "avi": ("avi", "mpeg4"),
}
MEDIA_TYPES = {
    "mp4": "video/mp4",
    "mov": "video/quicktime",
    "mkv": "video/x-matroska",
    "webm": "video/webm",
    "avi": "video/x-msvideo",
}


def picture(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    """Returns a frame that is like no other: a bright column that wanders, over a ramp."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 120, width, dtype=np.uint8)
    pixels[:, (4 * number) % width :][:, :4] = (40, 250, 8 * number % 256)
    return pixels


def video(kind: str = "mp4", num_frames: int = 12, fps: int = 6, height: int = 48, width: int = 64, **options) -> bytes:
    """Returns a video of so many pictures.

    Args:
        options: Of the container, such as `movflags="faststart"`.
    """
    container_format, codec = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video"
        with av.open(str(path), "w", format=container_format, options={"fflags": "+bitexact", **options}) as container:
            stream = container.add_stream(codec, rate=fps)
            stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
            stream.codec_context.gop_size, stream.codec_context.thread_count = 6, 1
            for number in range(num_frames):
                frame = av.VideoFrame.from_ndarray(picture(number, height, width), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return path.read_bytes()


def sound_alone() -> bytes:
    """Returns an MP4 that holds a sound and no video."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def without_frames(content: bytes) -> bytes:
    """Returns the head of a Matroska file, as of a stream that ended before its first frame."""
    head = content[: content.index(b"\x1f\x43\xb6\x75")]
    place = head.index(b"\x18\x53\x80\x67") + 4
    return head[:place] + b"\x01" + b"\xff" * 7 + head[place + 8 :]


def turned(content: bytes) -> bytes:
    """Returns an MP4 whose header says that it is shown a quarter further, clockwise."""
    upright = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    start = content.index(upright, content.index(b"tkhd"))
    return content[:start] + struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x40000000) + content[start + 36 :]


def frames_of(content: bytes) -> list[np.ndarray]:
    """Returns all frames as PyAV gives them: uint8 `[height, width, 3]`."""
    with av.open(io.BytesIO(content)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
