"""Videos: the bytes of the files and what their headers say, or their frames, or clips of several frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.file_types import HEAD_BYTES
from shardkit.media.video_decoding import Frame, VideoError, load_av, read_frames, read_video_header
from shardkit.media.video_headers import video_type_of
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions
from shardkit.sources.media.file_source import Found, MediaSource, Words, not_expected
from shardkit.units import format_size

_TYPE_BYTES = 64
_CLIP_FRAMES = 16
_FRAME_TYPE = "image/x-portable-anymap"
"""Frames are written anew as JPEG behind all steps, so that they are resized before they lose anything."""


@dataclass(frozen=True)
class VideoSource(MediaSource):
    """Videos: MP4, QuickTime, Matroska, WebM and AVI, as far as FFmpeg decodes them."""

    format: str = "video"
    words: ClassVar[Words] = Words("a video", "videos", "the video", "a video", "no file holds one")
    content: ClassVar[str] = "video"
    numbers: ClassVar[tuple[str, ...]] = ("num_frames", "frame_rate", "height", "width", "duration")
    fractions: ClassVar[frozenset[str]] = frozenset({"frame_rate", "duration", "time"})
    unusable: ClassVar[type[Exception]] = VideoError

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file is one of these."""
        return video_type_of(head) is not None

    def media_type(self, head: bytes, name: str) -> str | None:
        """Returns the media type by the first bytes."""
        return video_type_of(head)

    def check_options(self, options: SourceOptions) -> None:
        """Checks that the decoder is installed, and that options are given where they have a meaning.

        Raises:
            UsageError: If not.
        """
        load_av()
        clips = (("--clip-frames", options.clip_frames), ("--clip-stride", options.clip_stride))
        given = next((name for name, value in clips if value is not None), None)
        if given is not None and options.video != "clips":
            raise UsageError(f"{given} is for clips of videos", next_step="Add --video clips, or leave it out")
        if options.video_fps is not None and options.video == "bytes":
            raise UsageError(
                "--video-fps is for decoded videos", next_step="Add --video frames or --video clips, or leave it out"
            )

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of a file, a frame or a clip, and its labels.

        Raises:
            UsageError, BadInputError: As other sources do.
        """
        if type(self) is VideoSource and options.video != "bytes":
            return self._cut(options).infer(files, options)
        return super().infer(files, options)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split."""
        if type(self) is VideoSource and options.video != "bytes":
            return self._cut(options).read(split, files, features, options)
        return super().read(split, files, features, options)

    def examine(self, content: memoryview, name: str, options: SourceOptions) -> Found:
        """Returns the header of a file.

        Raises:
            VideoError: If it is no video, damaged, or has too many pixels.
        """
        media_type = _type_of(bytes(content[:HEAD_BYTES]), self.words.expected)
        return Found(read_video_header(content, media_type, options.max_pixels))

    def _cut(self, options: SourceOptions) -> MediaSource:
        cut = FrameSource if options.video == "frames" else ClipSource
        return cut(split_bytes=self.split_bytes, batch_bytes=self.batch_bytes)

    def _frames(self, content: BinaryIO, options: SourceOptions) -> Iterator[Frame]:
        media_type = _type_of(content.read(HEAD_BYTES), self.words.expected)
        return read_frames(content, media_type, options.max_pixels, options.video_fps)


@dataclass(frozen=True)
class FrameSource(VideoSource):
    """The frames of videos, a row each."""

    content: ClassVar[str] = "image"
    numbers: ClassVar[tuple[str, ...]] = ("frame", "time", "height", "width")
    is_cut: ClassVar[bool] = True

    def content_feature(self, media_type: str, options: SourceOptions) -> Feature:
        """Returns the feature that holds a frame."""
        return make_feature(self.content, "bytes", media_type=_FRAME_TYPE)

    def cut(self, content: BinaryIO, name: str, options: SourceOptions) -> Iterator[Found]:
        """Yields the frames of a video.

        Raises:
            VideoError: If it is no video, damaged, or has too many pixels.
        """
        for frame in self._frames(content, options):
            yield _found(frame, (_encoded(frame, 1, options),))


@dataclass(frozen=True)
class ClipSource(FrameSource):
    """Clips of videos, a row each: so many frames, from every so many on. The last ones may be left over."""

    content: ClassVar[str] = "clip"

    def content_feature(self, media_type: str, options: SourceOptions) -> Feature:
        """Returns the feature that holds the frames of a clip."""
        return make_feature(self.content, "bytes", (options.clip_frames or _CLIP_FRAMES,), media_type=_FRAME_TYPE)

    def cut(self, content: BinaryIO, name: str, options: SourceOptions) -> Iterator[Found]:
        """Yields the clips of a video.

        Raises:
            VideoError: If it is no video, damaged, has too many pixels, or fewer frames than a clip.
        """
        length = options.clip_frames or _CLIP_FRAMES
        stride = options.clip_stride or length
        held: deque[tuple[Frame, bytes]] = deque(maxlen=length)
        num_frames = 0
        for num_frames, frame in enumerate(self._frames(content, options), start=1):
            if held and frame.pixels.shape != held[0][0].pixels.shape:
                raise VideoError(f"its frames have several sizes, from frame {frame.number:,} on")
            held.append((frame, _encoded(frame, length, options)))
            if num_frames >= length and (num_frames - length) % stride == 0:
                yield _found(held[0][0], tuple(encoded for _, encoded in held))
        if num_frames < length:
            at = "" if options.video_fps is None else f" at --video-fps {options.video_fps:g}"
            raise VideoError(f"it has {num_frames:,} frames{at}, fewer than the {length:,} of a clip")


def _type_of(head: bytes, expected: str) -> str:
    media_type = video_type_of(head)
    if media_type is None:
        raise VideoError(not_expected(head, expected))
    return media_type


def _found(frame: Frame, parts: tuple[bytes, ...]) -> Found:
    height, width, _ = frame.pixels.shape
    return Found((frame.number, frame.time, height, width), parts=parts)


def _encoded(frame: Frame, num_frames: int, options: SourceOptions) -> bytes:
    height, width, _ = frame.pixels.shape
    if num_frames * frame.pixels.nbytes > options.max_record_bytes:
        what = f"{num_frames:,} of its frames" if num_frames > 1 else "a frame"
        limit = format_size(options.max_record_bytes)
        raise VideoError(f"{what} of {width}x{height} pixels take more than the {limit} of --max-record-size")
    return b"P6 %d %d 255\n" % (width, height) + frame.pixels.tobytes()
