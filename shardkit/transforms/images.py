"""The step on images: every column that holds an encoded image a row, or so many of them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.media.image_codec import DEFAULT_QUALITY, EncodedImage, ImageError, ImageFormat, ImageOptions, rewrite
from shardkit.sources.base import SourceOptions
from shardkit.transforms.boxes import Boxes, box_notes, features_with_boxes, find_boxes
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.steps import RowError, RowFailure, StepResult, Taken, batch_of

_MAX_SIDE = 65_535  # What JPEG can count.
_MAX_COLUMN_BYTES = 2**31 - 1  # Arrow counts the bytes of a batch with 32 bits.
_SIZE_COLUMNS = ("height", "width", "channels")


def image_step(features: Features, options: TransformOptions, source: SourceOptions) -> ImageStep | None:
    """Returns the step that writes images anew, None if that is not asked for.

    Raises:
        UsageError: If there are no images, or a size or quality cannot be.
    """
    if options.image_size is None and options.image_format is None:
        if options.image_quality is not None:
            raise UsageError("--image-quality is for images that are written anew", next_step="Add --image-format jpeg")
        return None
    _check(options, source)
    chosen = {f.name for f in features if _holds_images(f)}
    if not chosen:
        option = "--image-size" if options.image_size is not None else "--image-format"
        raise UsageError(
            f"{option} is for images",
            why="no column has the media type of an image by then",
            next_step="Drop it, or keep the column of images through --select and --map",
        )
    return ImageStep(features, options, source)


class ImageStep:
    """Writes images anew.

    Where there is one column of images, columns of integers named `height`, `width` and `channels` count as its sizes
    and are updated, and boxes follow it to another size.

    Args:
        source: The caps of sizes.
    """

    sources = None

    def __init__(self, before: Features, options: TransformOptions, source: SourceOptions) -> None:
        self.option = "--image-size" if options.image_size is not None else "--image-format"
        images = [(i, f) for i, f in enumerate(before) if _holds_images(f)]
        self._columns = [_ImageColumn(i, _options_of(f, options, source)) for i, f in images]
        is_one = len(self._columns) == 1
        self._size_columns = _size_columns(before) if is_one else {}
        self._placed = find_boxes(before, are_labels=source.labels is not None) if is_one else Boxes({})
        self._boxes = self._placed if options.image_size is not None else Boxes({})
        self.notes = box_notes(before, self._boxes) if options.image_size is not None else ()
        after = tuple(_feature_after(f, options.image_format) if _holds_images(f) else f for f in before)
        if self._boxes.kinds:
            is_nullable = before[self._columns[0].position].nullable
            after = features_with_boxes(after, self._boxes, is_nullable=is_nullable)
        self.features = after

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the result of a batch."""
        kept: list[int] = []
        encoded_columns: list[list[_Written | None]] = [[] for _ in self._columns]
        num_bytes = [0] * len(self._columns)
        failures: list[RowFailure] = []
        for row in range(batch.num_rows):
            try:
                made = [_rewrite(batch.column(c.position)[row], c.options) for c in self._columns]
                num_bytes = [total + _size_of(p) for total, p in zip(num_bytes, made, strict=True)]
                _check_total(num_bytes)
                if self._placed.kinds and made[0] is not None:
                    self._placed.check(batch, row, made[0].first)
            except (ImageError, RowError) as caught:
                error = caught if isinstance(caught, RowError) else RowError(caught.what, caught.why, caught.raw)
                failures.append(RowFailure(row, error))
                if not is_tolerant:
                    break
                continue
            kept.append(row)
            for column, encoded in zip(encoded_columns, made, strict=True):
                column.append(encoded)
        positions = np.array(kept, dtype=np.int64)
        stays = batch if len(kept) == batch.num_rows else batch.take(pa.array(positions))
        columns = list(stays.columns)
        for image, found in zip(self._columns, encoded_columns, strict=True):
            columns[image.position] = pa.array([p and p.data for p in found], self.features[image.position].arrow_type)
        for index, name in self._size_columns.items():
            columns[index] = _updated(columns[index], [p and getattr(p.first, name) for p in encoded_columns[0]])
        if self._boxes.kinds:
            self._boxes.follow(columns, [p and p.first for p in encoded_columns[0]])
            sizes = zip(*(p.first.original if p else (None, None) for p in encoded_columns[0]), strict=True)
            columns += [pa.array(values, pa.int64()) for values in sizes] if kept else [pa.array([], pa.int64())] * 2
        taken = Taken(batch_of(self.features, columns), None if len(kept) == batch.num_rows else positions)
        return StepResult(taken, tuple(failures))


class _Written(NamedTuple):
    """What a row holds: an image, or a list of them with the first one."""

    first: EncodedImage
    data: bytes | list[bytes]
    num_bytes: int


class _ImageColumn(NamedTuple):
    position: int
    options: ImageOptions


def _check(options: TransformOptions, source: SourceOptions) -> None:
    if options.image_size is not None:
        height, width = options.image_size
        if not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
            raise UsageError(
                f"--image-size {height}x{width} cannot be",
                why=f"sides have 1 to {_MAX_SIDE:,} pixels",
                next_step="Write it like --image-size 224x224",
            )
        if height * width > source.max_pixels:
            raise UsageError(
                f"--image-size {height}x{width} cannot be",
                why=f"it is more than the {source.max_pixels:,} pixels that --max-pixels allows",
                next_step="Give a smaller --image-size, or a larger --max-pixels",
            )
    if options.image_quality is not None:
        if options.image_format == "png":
            raise UsageError("--image-quality has no meaning for PNG", next_step="Drop one of the options")
        if not 1 <= options.image_quality <= 100:
            raise UsageError(
                f"--image-quality is {options.image_quality}",
                why="it goes from 1 to 100",
                next_step="Give one of them, such as --image-quality 90",
            )


def _feature_after(feature: Feature, wanted: ImageFormat | None) -> Feature:
    media_type = feature.media_type
    if wanted is not None:
        media_type = f"image/{wanted}"
    elif media_type not in ("image/jpeg", "image/*"):
        media_type = "image/png"
    return msgspec.structs.replace(feature, media_type=media_type)


def _options_of(feature: Feature, options: TransformOptions, source: SourceOptions) -> ImageOptions:
    media_type = _feature_after(feature, options.image_format).media_type
    formats: dict[str | None, ImageFormat] = {"image/jpeg": "jpeg", "image/png": "png"}
    return ImageOptions(
        size=options.image_size,
        format=formats.get(media_type),
        quality=options.image_quality or DEFAULT_QUALITY,
        apply_exif=options.apply_exif is not False,
        max_pixels=source.max_pixels,
        max_bytes=source.max_record_bytes,
    )


def _size_columns(features: Features) -> dict[int, str]:
    return {
        i: f.name
        for i, f in enumerate(features)
        if f.name in _SIZE_COLUMNS and f.dtype == "int64" and f.is_scalar and f.vocabulary is None
    }


def _holds_images(feature: Feature) -> bool:
    # A list of any length may be empty.
    is_list = len(feature.shape) == 1 and feature.shape[0] is not None
    return feature.is_image or (is_list and feature.with_shape(()).is_image)


def _rewrite(value: pa.Scalar, options: ImageOptions) -> _Written | None:
    data = value.as_py()
    if data is None:
        return None
    if isinstance(data, bytes):
        image = rewrite(data, options)
        return _Written(image, image.data, len(image.data))
    images = [rewrite(one, options) for one in data]
    return _Written(images[0], [image.data for image in images], sum(len(image.data) for image in images))


def _size_of(written: _Written | None) -> int:
    return 0 if written is None else written.num_bytes


def _check_total(num_bytes: list[int]) -> None:
    if max(num_bytes) > _MAX_COLUMN_BYTES:
        raise RowError("the images of a batch become too large", f"together more than {_MAX_COLUMN_BYTES:,} bytes")


def _updated(column: pa.Array, values: list[int | None]) -> pa.Array:
    # A row without an image keeps its values.
    pairs = zip(column.to_pylist(), values, strict=True)
    return pa.array([old if new is None else new for old, new in pairs], pa.int64())
