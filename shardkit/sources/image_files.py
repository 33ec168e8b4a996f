"""Folders of images, a class each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit import storage
from shardkit.errors import BadInputError, UsageError
from shardkit.features import Features, arrow_schema, make_feature
from shardkit.sources.base import (
    BATCH_BYTES,
    SPLIT_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    file_identities,
)
from shardkit.sources.fitting import UnfitValueError, fit_column
from shardkit.sources.image_headers import ImageHeaderError, read_header
from shardkit.sources.sniff import HEAD_BYTES, image_type_of, text_kind
from shardkit.sources.streams import guard_unchanged, open_raw, place, printable, shown
from shardkit.units import format_size

_MAX_SPLIT_FILES = 4096
_REMOTE_THREADS = 32


@dataclass(frozen=True)
class ImageSource:
    """Images in one folder a class.

    Attributes:
        format: `images`.
        split_bytes: Wanted size of a split.
        batch_bytes: Wanted size of a batch.
    """

    format: str = "images"
    split_bytes: int = SPLIT_BYTES
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
        media_types = set(_media_types(files))
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
        splits: list[InputSplit] = []
        start, num_bytes = 0, 0
        for stop, file in enumerate(files, start=1):
            num_bytes += file.num_bytes
            if num_bytes >= self.split_bytes or stop - start == _MAX_SPLIT_FILES or stop == len(files):
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
        pending: list[dict[str, Any]] = []
        first, num_bytes = split.file_start, 0
        for index in range(split.file_start, split.file_stop):
            row = _read_image(files[index], options)
            pending.append(row)
            num_bytes += len(row["image"])
            if num_bytes >= self.batch_bytes or index + 1 == split.file_stop:
                yield _batch(pending, files[first : index + 1], first, features)
                pending, first, num_bytes = [], index + 1, 0


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


def _media_types(files: tuple[RawFile, ...]) -> list[str]:
    if all(storage.is_local(f.path) for f in files):
        return [_media_type(f) for f in files]
    with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
        return list(threads.map(_media_type, files))


def _media_type(file: RawFile) -> str:
    with open_raw(file) as stream:
        head = stream.read(16)
        found = image_type_of(head)
        if found is None:
            head += stream.read(HEAD_BYTES)
            raise _no_image(file, f"content is {text_kind(head)}, not an image")
    return found


def _read_image(file: RawFile, options: SourceOptions) -> dict[str, Any]:
    if file.num_bytes > options.max_record_bytes:
        raise _no_image(file, f"it has more than the {format_size(options.max_record_bytes)} that a record may have")
    with guard_unchanged(file):
        with open_raw(file) as stream:
            data = stream.read()
        try:
            header = read_header(data, options.max_pixels)
        except ImageHeaderError as error:
            raise _no_image(file, str(error)) from error
    return {
        "image": data,
        "label": _class_of(file),
        "filename": file.name,
        "height": header.height,
        "width": header.width,
        "channels": header.channels,
    }


def _no_image(file: RawFile, why: str) -> BadInputError:
    return BadInputError(
        "the image cannot be used", where=place(file), why=why, next_step="Remove the file or replace it"
    )


def _batch(rows: list[dict[str, Any]], files: Sequence[RawFile], first: int, features: Features) -> RowBatch:
    columns = []
    for feature in features:
        try:
            columns.append(fit_column(pa.array([r[feature.name] for r in rows]), feature).column)
        except UnfitValueError as error:
            raise BadInputError(
                f"column {shown(feature.name)} does not fit",
                where=place(files[error.row]),
                why=f"expected {error.expected}, got {error.got}",
            ) from error
    return RowBatch(
        pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features)),
        file_identities([f.name for f in files]),
        np.arange(first, first + len(rows), dtype=np.int64),
    )
