"""Folders of images by class: bytes as they are, the class from the folder, sizes from the header.

Nothing is decoded: Pillow opens the header only, after the magic bytes showed one of five formats, and a size is
compared with the cap before anybody could allocate it.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from shardkit.errors import BadInputError, UsageError
from shardkit.features import Features, arrow_schema, make_feature
from shardkit.sources import sniff
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
from shardkit.sources.streams import check_unchanged, open_raw, place, printable

_MAX_SPLIT_FILES = 4096
_PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_SAMPLE_FILES = 256
_CHANNELS = {"1": 1, "L": 1, "I": 1, "F": 1, "I;16": 1, "LA": 2, "La": 2, "PA": 4, "P": 3, "RGB": 3, "YCbCr": 3}
_CHANNELS |= {"HSV": 3, "LAB": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4}


class _Header(NamedTuple):
    height: int
    width: int
    channels: int


class ImageSource:
    """Image files; see `Source`. A file is a row, the first folder below the common root its class."""

    format = "images"

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the six features; the classes are the names of the folders in alphabetical order."""
        if not files:
            raise UsageError("there are no images among the inputs")
        classes = sorted({_class_of(f) for f in files})
        step = max(1, len(files) // _SAMPLE_FILES)
        media_types = {sniff.image_type_of(_read_start(f)) for f in files[::step]} - {None}
        (media_type,) = media_types if len(media_types) == 1 else ("image/*",)
        return (
            make_feature("image", "bytes", media_type=media_type),
            make_feature("label", "int64", vocabulary=tuple(classes)),
            make_feature("filename", "string"),
            make_feature("height", "int64"),
            make_feature("width", "int64"),
            make_feature("channels", "int64"),
        )

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns a note where all images are of one class."""
        classes = {_class_of(f) for f in files}
        if len(classes) == 1:
            return (f"all images are of one class, {printable(min(classes))}",)
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the list of files into splits of about SPLIT_BYTES or 4,096 files."""
        splits: list[InputSplit] = []
        start, num_bytes = 0, 0
        for index, file in enumerate(files):
            if index > start and (num_bytes + file.num_bytes > SPLIT_BYTES or index - start == _MAX_SPLIT_FILES):
                splits.append(_split(len(splits), start, index, num_bytes))
                start, num_bytes = index, 0
            num_bytes += file.num_bytes
        if files:
            splits.append(_split(len(splits), start, len(files), num_bytes))
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the images of one split.

        Raises:
            BadInputError: At the first file that is no image of an allowed kind, or too large, or changed.
        """
        start, num_bytes = split.file_start, 0
        images: list[bytes] = []
        for index in range(split.file_start, split.file_stop):
            images.append(_read_image(files[index], options))
            num_bytes += len(images[-1])
            if num_bytes >= BATCH_BYTES or index + 1 == split.file_stop:
                yield _rows(images, files, start, features, options)
                images, start, num_bytes = [], index + 1, 0


def _rows(
    images: list[bytes], files: tuple[RawFile, ...], start: int, features: Features, options: SourceOptions
) -> RowBatch:
    own = files[start : start + len(images)]
    headers = [_read_header(data, file, options) for data, file in zip(images, own, strict=True)]
    values: dict[str, list[object]] = {
        "image": list(images),
        "label": [_class_of(f) for f in own],
        "filename": [f.name for f in own],
        "height": [h.height for h in headers],
        "width": [h.width for h in headers],
        "channels": [h.channels for h in headers],
    }
    columns = []
    for feature in features:
        try:
            columns.append(fit_column(pa.array(values[feature.name]), feature).column)
        except UnfitValueError as error:
            raise BadInputError(
                f"column {feature.name!r} does not fit",
                where=place(own[error.row]),
                why=f"expected {error.expected}, got {error.got}",
            ) from error
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features))
    indices = np.arange(start, start + len(images), dtype=np.int64)
    return RowBatch(batch, file_identities([f.name for f in own]), indices)


def _split(index: int, start: int, stop: int, num_bytes: int) -> InputSplit:
    return InputSplit(index=index, file_start=start, file_stop=stop, num_bytes=num_bytes)


def _class_of(file: RawFile) -> str:
    folder, slash, _ = file.name.partition("/")
    if not slash:
        raise UsageError(
            f"the image {printable(file.name)} lies in no class folder",
            why="the class of an image is the first folder below the inputs' common root",
            next_step="Arrange them like photos/cat/1.jpg and photos/dog/2.jpg, and name photos/",
        )
    return folder


def _read_start(file: RawFile) -> bytes:
    with open_raw(file) as stream:
        return stream.read(sniff.HEAD_BYTES)


def _read_image(file: RawFile, options: SourceOptions) -> bytes:
    if file.num_bytes > options.max_record_bytes:
        raise BadInputError(
            "the file is too large for one record",
            where=place(file),
            why=f"{file.num_bytes} bytes, at most {options.max_record_bytes} are read",
        )
    with open_raw(file) as stream:
        data = stream.read()
    if len(data) != file.num_bytes:
        check_unchanged(file)
    return data


def _read_header(data: bytes, file: RawFile, options: SourceOptions) -> _Header:
    if sniff.image_type_of(data[: sniff.HEAD_BYTES]) is None:
        raise BadInputError(
            "the file is not an image that is read",
            where=place(file),
            why=f"its content is {sniff.text_kind(data[: sniff.HEAD_BYTES])}, not JPEG, PNG, WebP, GIF or BMP",
            next_step="Remove the file, or name only the folders that hold images",
        )
    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes that the cap below refuses with a message of its own.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as image:
                width, height = image.size
                mode, has_transparency = image.mode, "transparency" in image.info
    except Image.DecompressionBombError as error:
        stated = re.search(r"\((\d+) pixels\)", str(error))
        raise _too_many_pixels(f"{int(stated[1]):,} pixels" if stated else "its pixels", file, options) from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError) as error:
        raise BadInputError(
            "the header of the image is cut off or damaged",
            where=place(file),
            why=str(error).replace(repr(io.BytesIO), "").split(" <", 1)[0] or type(error).__name__,
            next_step="Remove the file, or get it again",
        ) from error
    if width * height > options.max_pixels:
        raise _too_many_pixels(f"{width} x {height} pixels", file, options)
    channels = 4 if mode == "P" and has_transparency else _CHANNELS.get(mode, 3)
    return _Header(height=height, width=width, channels=channels)


def _too_many_pixels(what: str, file: RawFile, options: SourceOptions) -> BadInputError:
    return BadInputError(
        "the image is too large",
        where=place(file),
        why=f"{what} are more than the {options.max_pixels:,} that --max-pixels allows",
        next_step="Remove the file, or raise --max-pixels if you trust it",
    )
