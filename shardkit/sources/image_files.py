"""Images: a class folder each, with labels beside them, or without any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import Features, make_feature
from shardkit.sources.base import (
    BATCH_BYTES,
    MAX_RAW_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
)
from shardkit.sources.class_folders import (
    class_notes,
    class_of,
    classes_of,
    cut_batches,
    max_file_bytes,
    split_files,
    too_large,
)
from shardkit.sources.image_headers import ImageHeader, ImageHeaderError, read_header
from shardkit.sources.image_labels import FileLabels, load_labels
from shardkit.sources.sniff import HEAD_BYTES, image_type_of, text_kind
from shardkit.sources.streams import place, read_head
from shardkit.sources.whole_files import read_heads, read_whole_files
from shardkit.sources.whole_rows import WholeRows

_TYPE_BYTES = 16
_OWN = ("image", "label", "filename", "height", "width", "channels")


@dataclass(frozen=True)
class ImageSource:
    """Images.

    Their class is the first folder below the input. Images that all lie in one folder have none, and where labels are
    given, those take the place of the folders.

    Attributes:
        format: `images`.
        split_bytes: Wanted size of a split; None chooses by the size of all files.
        batch_bytes: Wanted size of a batch.
    """

    format: str = "images"
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of an image and its labels.

        Raises:
            UsageError: If some images lie in class folders and others do not, or labels and images do not go together.
            BadInputError: If a file is no image, unless bad rows are tolerated.
        """
        if not files:
            raise BadInputError("there are no images")
        labels = _labels(files, options)
        classes = classes_of(files, "an image") if labels is None else ()
        media_types = _media_types(files, options)
        media_type = media_types.pop() if len(media_types) == 1 else "image/*"
        return (
            make_feature("image", "bytes", media_type=media_type),
            *((make_feature("label", "int64", vocabulary=classes),) if classes else ()),
            make_feature("filename", "string"),
            make_feature("height", "int64"),
            make_feature("width", "int64"),
            make_feature("channels", "int64"),
            *(labels.features if labels is not None else ()),
        )

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on classes, and on labels and images that do not go together."""
        labels = _labels(files, options)
        return class_notes(files, "images") if labels is None else labels.notes

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the list of files."""
        return split_files(files, self.split_bytes)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the images of one split, their bytes as they are.

        Raises:
            BadInputError: At the first file that is no image or has too many pixels, unless bad rows are tolerated; or
                that changed since it was listed.
        """
        reader = _Reader(files, _labels(files, options, features), features, options)
        limit = max_file_bytes(options.max_record_bytes, self.batch_bytes)
        for start, stop in cut_batches(split, files, self.batch_bytes, limit):
            if files[start].num_bytes > limit:
                yield reader.refuse(start, too_large(limit))
            else:
                yield reader.read(start, stop)


def _labels(files: tuple[RawFile, ...], options: SourceOptions, known: Features | None = None) -> FileLabels | None:
    own = tuple(name for name in _OWN if name != "label")
    return load_labels(files, options, own, "images", known)


def _media_types(files: tuple[RawFile, ...], options: SourceOptions) -> set[str]:
    found: set[str] = set()
    for file, head in zip(files, read_heads(files, _TYPE_BYTES), strict=True):
        media_type = image_type_of(head)
        if media_type is not None:
            found.add(media_type)
        elif not options.tolerates_bad_rows:
            raise _no_image(file, f"content is {text_kind(read_head(file, HEAD_BYTES))}, not an image")
    if not found:
        raise BadInputError("there are no images", why="no file holds one")
    return found


class _Reader:
    """Reads images of one split.

    Args:
        files: All files.
        labels: Theirs, if any.
        features: What is wanted.
        options: Say what is refused.
    """

    def __init__(
        self, files: tuple[RawFile, ...], labels: FileLabels | None, features: Features, options: SourceOptions
    ) -> None:
        self._files = files
        self._labels = labels
        self._max_pixels = options.max_pixels
        self._rows = WholeRows(files, features, options)

    def refuse(self, index: int, why: str) -> RowBatch:
        """Returns a batch without rows, of one file that is not read."""
        file = self._files[index]
        self._rows.reject(index, _no_image(file, why), read_head(file, MAX_RAW_BYTES))
        return self._rows.nothing()

    def read(self, start: int, stop: int) -> RowBatch:
        """Returns the images of some files."""
        data, offsets = read_whole_files(self._files[start:stop])
        content, bounds = memoryview(data).cast("B"), offsets.tolist()
        headers: list[ImageHeader] = []
        indices: list[int] = []

        def raw_of(index: int) -> bytes:
            first, last = bounds[index - start], bounds[index - start + 1]
            return bytes(content[first : min(last, first + MAX_RAW_BYTES)])

        for index, first, last in zip(range(start, stop), bounds, bounds[1:], strict=False):
            try:
                headers.append(read_header(content[first:last], self._max_pixels))
                indices.append(index)
            except ImageHeaderError as error:
                self._rows.reject(index, _no_image(self._files[index], str(error)), raw_of(index))
        images = pa.Array.from_buffers(pa.binary(), stop - start, [None, pa.py_buffer(offsets.astype(np.int32)), data])
        if len(indices) < stop - start:
            images = images.take(pa.array(np.array(indices, np.int64) - start))
        return self._rows.batch(self._columns(images, headers, indices), indices, raw_of)

    def _columns(self, images: pa.Array, headers: list[ImageHeader], indices: list[int]) -> Mapping[str, pa.Array]:
        columns = {
            "image": images,
            "label": pa.array([class_of(self._files[i]) for i in indices], pa.string()),
            "filename": pa.array([self._files[i].name for i in indices], pa.string()),
            "height": pa.array([h.height for h in headers], pa.int64()),
            "width": pa.array([h.width for h in headers], pa.int64()),
            "channels": pa.array([h.channels for h in headers], pa.int64()),
        }
        if self._labels is not None:
            columns |= self._labels.take(np.array(indices, np.int64))
        return columns


def _no_image(file: RawFile, why: str) -> BadInputError:
    return BadInputError(
        "the image cannot be used", where=place(file), why=why, next_step="Remove the file or replace it"
    )
