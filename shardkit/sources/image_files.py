"""Folders of images, a class each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError, UsageError
from shardkit.features import Feature, Features, arrow_schema, make_feature
from shardkit.sources.base import (
    BATCH_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    choose_split_bytes,
    file_identities,
)
from shardkit.sources.fitting import UnfitValueError, fit_column
from shardkit.sources.image_headers import ImageHeader, ImageHeaderError, read_header
from shardkit.sources.sniff import HEAD_BYTES, image_type_of, text_kind
from shardkit.sources.streams import place, printable, read_head, shown
from shardkit.sources.whole_files import read_heads, read_whole_files
from shardkit.units import format_size

_MIN_SPLIT_FILES, _MAX_SPLIT_FILES = 256, 4096
_TYPE_BYTES = 16
_MAX_COLUMN_BYTES = 2**31 - 1  # Arrow counts the bytes of a batch with 32 bits.


@dataclass(frozen=True)
class ImageSource:
    """Images in one folder a class.

    Attributes:
        format: `images`.
        split_bytes: Wanted size of a split; None chooses by the size of all files.
        batch_bytes: Wanted size of a batch.
    """

    format: str = "images"
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of an image, with the names of the folders as classes.

        Raises:
            UsageError: If images lie in no folder below the root.
            BadInputError: If a file is no image.
        """
        if not files:
            raise BadInputError("there are no images")
        classes = tuple(sorted({_class_of(f) for f in files}))
        media_types = _media_types(files)
        media_type = media_types.pop() if len(media_types) == 1 else "image/*"
        return (
            make_feature("image", "bytes", media_type=media_type),
            make_feature("label", "int64", vocabulary=classes),
            make_feature("filename", "string"),
            make_feature("height", "int64"),
            make_feature("width", "int64"),
            make_feature("channels", "int64"),
        )

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns a note if there is but one class."""
        classes = {_class_of(f) for f in files}
        if len(classes) > 1:
            return ()
        return (f"all images are of one class, {printable(classes.pop())}",)

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the list of files."""
        # The identity of an image is its name, so all files may count here.
        wanted = self.split_bytes or choose_split_bytes(sum(f.num_bytes for f in files))
        max_files = max(_MIN_SPLIT_FILES, min(len(files) // 32, _MAX_SPLIT_FILES))
        splits: list[InputSplit] = []
        start, num_bytes = 0, 0
        for stop, file in enumerate(files, start=1):
            num_bytes += file.num_bytes
            if num_bytes >= wanted or stop - start == max_files or stop == len(files):
                splits.append(InputSplit(index=len(splits), file_start=start, file_stop=stop, num_bytes=num_bytes))
                start, num_bytes = stop, 0
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the images of one split, their bytes as they are.

        Raises:
            BadInputError: At the first file that is no image, has too many pixels, or changed since it was listed.
        """
        for start, stop in _cut_batches(split, files, self.batch_bytes, options.max_record_bytes):
            yield _read_batch(files[start:stop], start, features, options)


def _cut_batches(
    split: InputSplit, files: tuple[RawFile, ...], batch_bytes: int, max_record_bytes: int
) -> Iterator[tuple[int, int]]:
    limit = min(max_record_bytes, _MAX_COLUMN_BYTES - batch_bytes)
    start, num_bytes = split.file_start, 0
    for index in range(split.file_start, split.file_stop):
        if files[index].num_bytes > limit:
            if index > start:
                yield start, index
            why = f"it has more than the {format_size(limit)} that a record may have"
            raise _no_image(files[index], why)
        num_bytes += files[index].num_bytes
        if num_bytes >= batch_bytes or index + 1 == split.file_stop:
            yield start, index + 1
            start, num_bytes = index + 1, 0


def _class_of(file: RawFile) -> str:
    folder, slash, _ = file.name.partition("/")
    if not slash:
        raise UsageError(
            "an image lies in no class folder",
            where=place(file),
            why="the first folder below the input is the class, as in cats/1.jpg and dogs/2.jpg",
            next_step="Name the folder that holds the class folders",
        )
    return folder


def _media_types(files: tuple[RawFile, ...]) -> set[str]:
    found: set[str] = set()
    for file, head in zip(files, read_heads(files, _TYPE_BYTES), strict=True):
        media_type = image_type_of(head)
        if media_type is None:
            raise _no_image(file, f"content is {text_kind(read_head(file, HEAD_BYTES))}, not an image")
        found.add(media_type)
    return found


def _read_batch(files: tuple[RawFile, ...], first: int, features: Features, options: SourceOptions) -> RowBatch:
    data, offsets = read_whole_files(files)
    headers = _read_headers(files, memoryview(data).cast("B"), offsets.tolist(), options.max_pixels)
    starts = pa.py_buffer(offsets.astype(np.int32))
    values = {
        "image": pa.Array.from_buffers(pa.binary(), len(files), [None, starts, data]),
        "label": pa.array([_class_of(f) for f in files], pa.string()),
        "filename": pa.array([f.name for f in files], pa.string()),
        "height": pa.array([h.height for h in headers], pa.int64()),
        "width": pa.array([h.width for h in headers], pa.int64()),
        "channels": pa.array([h.channels for h in headers], pa.int64()),
    }
    return RowBatch(
        pa.RecordBatch.from_arrays([_fit(values[f.name], f, files) for f in features], schema=arrow_schema(features)),
        file_identities([f.name for f in files]),
        np.arange(first, first + len(files), dtype=np.int64),
    )


def _read_headers(
    files: tuple[RawFile, ...], data: memoryview, offsets: list[int], max_pixels: int
) -> list[ImageHeader]:
    headers = []
    for file, start, stop in zip(files, offsets, offsets[1:], strict=False):
        try:
            headers.append(read_header(data[start:stop], max_pixels))
        except ImageHeaderError as error:
            raise _no_image(file, str(error)) from error
    return headers


def _fit(column: pa.Array, feature: Feature, files: tuple[RawFile, ...]) -> pa.Array:
    try:
        return fit_column(column, feature).column
    except UnfitValueError as error:
        raise BadInputError(
            f"column {shown(feature.name)} does not fit",
            where=place(files[error.row]),
            why=f"expected {error.expected}, got {error.got}",
        ) from error


def _no_image(file: RawFile, why: str) -> BadInputError:
    return BadInputError(
        "the image cannot be used", where=place(file), why=why, next_step="Remove the file or replace it"
    )
