"""Encoded images of a batch as pixels. Pillow lets other threads work while it decodes and resizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from shardkit.errors import BadInputError, UsageError
from shardkit.media.image_codec import ImageError, open_upright
from shardkit.reading.batch import Batch, Ragged

if TYPE_CHECKING:
    from PIL import Image

Mode = Literal["RGB", "L"]
Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Fit = Literal["stretch", "crop", "pad"]
OnError = Literal["raise", "fill"]
Pixels = npt.NDArray[np.uint8]

_MAX_SIDE = 65_535
# TensorFlow takes over memory without a copy only if it is aligned so.
_ALIGNMENT = 64
_CHANNELS: dict[Mode, int] = {"RGB": 3, "L": 1}


@dataclass(frozen=True)
class ImageDecoder:
    """Makes pixels of a column of encoded images; see `shardkit.decode_images`. For any number of threads.

    Attributes:
        size: Height and width; None keeps that of the images.
        resample: How pixels are computed from others.
        fit: What becomes of the ratio.
        on_error: What becomes of a damaged image.
        max_pixels: That an image may declare.
    """

    feature: str
    size: tuple[int, int] | None
    mode: Mode
    resample: Resample
    fit: Fit
    on_error: OnError
    max_pixels: int
    called: ClassVar[str] = "decode_images"

    def __post_init__(self) -> None:
        for name, known in (("mode", Mode), ("resample", Resample), ("fit", Fit), ("on_error", OnError)):
            if (value := getattr(self, name)) not in get_args(known):
                raise UsageError(
                    f"{self.called} has no {name} {value!r}", next_step=f"Give one of {', '.join(get_args(known))}"
                )
        if self.size is not None:
            given: Any = self.size
            is_pair = isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(n, int) for n in given)
            if not is_pair or not all(1 <= number <= _MAX_SIDE for number in given):
                raise UsageError(
                    f"images cannot have the size {given!r}",
                    why=f"it is a height and a width of 1 to {_MAX_SIDE:,} pixels",
                    next_step="Write it like size=(224, 224)",
                )
            object.__setattr__(self, "size", (given[0], given[1]))
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels is {self.max_pixels}", next_step="Give at least 1")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with pixels, uint8 `[n, height, width, channels]`, in the place of the images.

        Raises:
            BadInputError: At the first damaged image, unless those become black; names its row in the batch.
            UsageError: If the column holds no images, or the images have several sizes and none was asked for.
        """
        encoded = self._encoded(batch)
        wanted = self._wanted(batch, len(encoded))
        pixels: Pixels | None = None
        first_row = 0
        for row in np.flatnonzero(wanted).tolist():
            found = self._pixels(encoded[row], row)
            if found is None:
                wanted[row] = False
                continue
            if pixels is None:
                first_row, pixels = row, self._black(len(encoded), found.shape)
            if found.shape != pixels.shape[1:]:
                raise self._differs((first_row, pixels.shape[1:]), (row, found.shape))
            pixels[row] = found
        if pixels is None:
            pixels = self._black(len(encoded), self._shape())
        present = batch.present if self.on_error == "raise" else {**batch.present, self.feature: wanted}
        return Batch({**batch, self.feature: pixels}, present, batch.mask, batch.pad_to)

    def _shape(self) -> tuple[int, ...]:
        # Of a row where no row tells it.
        return (*(self.size or (0, 0)), _CHANNELS[self.mode])

    def _pixels(self, value: Any, row: int) -> Pixels | None:
        image = self._decode(value, row)
        return None if image is None else np.asarray(image).reshape(image.height, image.width, _CHANNELS[self.mode])

    def _wanted(self, batch: Batch, num_rows: int) -> npt.NDArray[np.bool_]:
        wanted = np.ones(num_rows, np.bool_) if batch.mask is None else batch.mask.copy()
        return wanted & batch.present[self.feature] if self.feature in batch.present else wanted

    def _encoded(self, batch: Batch) -> npt.NDArray[Any]:
        if self.feature not in batch:
            raise UsageError(
                f"there is no column {self.feature!r} to decode",
                why=f"the batch has {', '.join(map(repr, batch))}",
                next_step=f"Name one of them in {self.called}",
            )
        column = batch[self.feature]
        first = column[:1].tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else [None]
        if isinstance(column, Ragged) or not all(isinstance(value, bytes) for value in first):
            dtype = column.values.dtype if isinstance(column, Ragged) else column.dtype
            shape = "lists" if isinstance(column, Ragged) else list(column.shape)
            raise UsageError(
                f"column {self.feature!r} holds no encoded {self.called.removeprefix('decode_')}",
                why=f"expected bytes [n], got {type(first[0]).__name__ if first[0] is not None else dtype} {shape}",
                next_step=f"Name a column of bytes in {self.called}; each is decoded once",
            )
        return column

    def _decode(self, data: bytes, row: int) -> Image.Image | None:
        try:
            image = open_upright(data, self.max_pixels, self._needed)
        except ImageError as error:
            if self.on_error == "fill":
                return None
            raise BadInputError(
                error.what,
                where=f"column {self.feature!r}, row {row} of the batch",
                why=error.why,
                next_step=f"Give on_error='fill' to {self.called}, or convert again without it (--on-bad-record skip)",
            ) from error
        return self._resized(image)

    def _needed(self, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width that a JPEG must still have when it is decoded."""
        if self.size is None:
            return height, width
        if self.fit == "stretch":
            return self.size
        choose = max if self.fit == "crop" else min
        scale = choose(self.size[0] / height, self.size[1] / width)
        return max(1, round(height * scale)), max(1, round(width * scale))

    def _resized(self, image: Image.Image) -> Image.Image:
        from PIL import ImageOps
        from PIL.Image import Resampling

        if self.size is not None and image.size != self.size[::-1]:
            size, method = self.size[::-1], Resampling[self.resample.upper()]
            if self.fit == "stretch":
                image = image.resize(size, method)
            elif self.fit == "crop":
                image = ImageOps.fit(image, size, method)
            else:
                image = ImageOps.pad(image, size, method)
        return image if image.mode == self.mode else image.convert(self.mode)

    def _black(self, num_rows: int, row_shape: tuple[int, ...]) -> Pixels:
        shape = (num_rows, *row_shape)
        memory = np.zeros(math.prod(shape) + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        return memory[start : start + math.prod(shape)].reshape(shape)

    def _differs(self, first: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]) -> UsageError:
        sizes = [
            f"row {row} of the batch is {shape[0]} pixels high and {shape[1]} wide" for row, shape in (first, other)
        ]
        return UsageError(
            f"the images of column {self.feature!r} have several sizes",
            why=", ".join(sizes),
            next_step=f"Say which they should have: {self.called}({self.feature!r}, size=(height, width))",
        )
