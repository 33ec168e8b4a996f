"""Videos and clips of a batch as pixels."""

from __future__ import annotations

import io
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shardkit.errors import BadInputError, UsageError
from shardkit.file_types import HEAD_BYTES, text_kind
from shardkit.media.video_decoding import VideoError, count_frames, read_frames
from shardkit.media.video_headers import video_type_of
from shardkit.reading.batch import Batch
from shardkit.reading.media.images import ImageDecoder, Pixels


@dataclass(frozen=True)
class VideoDecoder(ImageDecoder):
    """Makes pixels of a column of videos or clips; see `shardkit.decode_videos`. For any number of threads.

    The pixels are uint8 `[n, num_frames, height, width, channels]`; videos of several lengths are refused, too.

    Attributes:
        num_frames: That are taken at even distances; None takes all.
        fps: Frames a second that encoded videos are reduced to before; None keeps all.
    """

    num_frames: int | None = None
    fps: float | None = None
    called: ClassVar[str] = "decode_videos"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_frames is not None and self.num_frames < 1:
            raise UsageError(f"num_frames is {self.num_frames}", next_step="Give at least 1")
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise UsageError(f"fps is {self.fps}", next_step="Give a number above 0, such as fps=2")

    def _shape(self) -> tuple[int, ...]:
        return (self.num_frames or 0, *super()._shape())

    def _encoded(self, batch: Batch) -> npt.NDArray[Any]:
        column = batch.get(self.feature)
        if isinstance(column, np.ndarray) and column.ndim == 2 and column.dtype == object:
            return column
        return super()._encoded(batch)

    def _pixels(self, value: Any, row: int) -> Pixels | None:
        if not isinstance(value, bytes):
            taken = self._taken(len(value))
            images = [self._decode(data, row) for place, data in enumerate(value) for _ in range(taken[place])]
            return None if None in images else self._stacked(images)
        try:
            return self._stacked(self._images(value))
        except VideoError as error:
            if self.on_error == "fill":
                return None
            raise BadInputError(
                "the video cannot be decoded",
                where=f"column {self.feature!r}, row {row} of the batch",
                why=str(error),
                next_step=f"Give on_error='fill' to {self.called}, or convert again with --check-media",
            ) from error

    def _images(self, data: bytes) -> list[Any]:
        from PIL import Image

        media_type = video_type_of(data[:HEAD_BYTES])
        if media_type is None:
            raise VideoError(f"content is {text_kind(data[:HEAD_BYTES])}, not a video")
        total = 0 if self.num_frames is None else count_frames(data, media_type, self.max_pixels, self.fps)
        taken, images = self._taken(total), list[Any]()
        for place, frame in enumerate(read_frames(io.BytesIO(data), media_type, self.max_pixels, self.fps)):
            times = taken[place] if self.num_frames is not None else 1
            images += [self._resized(Image.fromarray(frame.pixels))] * times if times else []
        # A container may hold packets that give no frame.
        missing = (self.num_frames or len(images)) - len(images)
        return images + images[-1:] * missing

    def _taken(self, num_frames: int) -> Counter[int]:
        """Returns how often each of so many frames is taken: those in the middle of as many equal parts as wanted."""
        wanted = self.num_frames or num_frames
        return Counter((2 * part + 1) * num_frames // (2 * wanted) for part in range(wanted))

    def _stacked(self, images: list[Any]) -> Pixels:
        if len({image.size for image in images}) > 1:
            raise UsageError(
                f"the frames of a video of column {self.feature!r} have several sizes",
                next_step=f"Say which they should have: {self.called}({self.feature!r}, size=(height, width))",
            )
        stacked = np.stack([np.asarray(image) for image in images])
        return stacked if stacked.ndim == 4 else stacked[..., None]

    def _differs(self, first: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]) -> UsageError:
        (_, expected), (row, found) = first, other
        words = "{} frames of {} x {} pixels (height x width)"
        return UsageError(
            f"the videos of column {self.feature!r} have several sizes or lengths",
            why=f"one has {words.format(*expected)}, row {row} of the batch has {words.format(*found)}",
            next_step=f"Say which: {self.called}({self.feature!r}, size=(height, width), num_frames=16)",
        )
