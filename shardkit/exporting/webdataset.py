"""WebDataset: tars in which neighbours of one key make a row."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.exporting.base import ExportFormat, Rows
from shardkit.exporting.columns import is_numeric, json_values
from shardkit.features import Feature, Features
from shardkit.reading.row_files import shaped

# By media type. Images of several kinds have one name, under which readers look for a column; they go by the content.
_EXTENSIONS = {
    "image/*": "jpg", "image/jpeg": "jpg", "image/png": "png", "image/webp": "webp", "image/gif": "gif",
    "image/bmp": "bmp", "image/tiff": "tif", "image/x-portable-anymap": "ppm",
    "audio/*": "wav", "audio/wav": "wav", "audio/flac": "flac", "audio/ogg": "ogg", "audio/mpeg": "mp3",
    "audio/aiff": "aiff",
    "video/*": "mp4", "video/mp4": "mp4", "video/quicktime": "mov", "video/x-matroska": "mkv", "video/webm": "webm",
    "video/x-msvideo": "avi",
}  # fmt: skip
_KEY_DIGITS = 9

Member = tuple[str, bytes]
"""The extension of a member and its content."""


class WebDataset(ExportFormat):
    """Tars of samples, whose keys are the positions of the rows in their split."""

    title = "WebDataset"
    suffix = "tar"
    notes = (
        "bytes and arrays of numbers are members of a sample (image.jpg, grid.npy), which it lacks where they are "
        "null, classes are cls, all else is in json, where dates, decimals, NaN and infinity are text, durations "
        "counts of their unit; the names of classes are in export.json"
    )

    def why_not(self, feature: Feature) -> str | None:
        is_member = (is_numeric(feature) and feature.shape) or feature.dtype == "bytes"
        return "the name of a member of a tar cannot hold its slash" if is_member and "/" in feature.name else None

    def why_not_all(self, features: Features) -> str | None:
        names = [f.name.lower() for f in features if f.shape or f.dtype == "bytes"]
        twice = next((name for name in names if names.count(name) > 1), None)
        return None if twice is None else f"its readers take names in lower case, and {twice!r} is there twice"

    def file_name(self, split: str, index: int, num_files: int) -> str:
        return f"{split}-{index:06d}.tar"

    def write(self, path: Path, rows: Rows) -> None:
        columns = _Columns(rows.features)
        row = rows.start
        with path.open("wb") as file:
            for batch in rows.batches:
                for members in columns.samples(shaped(batch, rows.features)):
                    for extension, content in members:
                        info = tarfile.TarInfo(f"{row:0{_KEY_DIGITS}d}.{extension}")
                        info.size = len(content)
                        file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8"))
                        file.write(content)
                        file.write(bytes(-len(content) % tarfile.BLOCKSIZE))
                    row += 1
            file.write(bytes(2 * tarfile.BLOCKSIZE))

    def snippet(self, folder: str, split: str, num_files: int) -> str:
        names = f"{{000000..{num_files - 1:06d}}}" if num_files > 1 else "000000"
        return (
            "import webdataset as wds\n"
            f'files = "{folder}/{split}-{names}.tar"\n'
            "print(next(iter(wds.WebDataset(files, shardshuffle=False).decode())))"
        )


class _Columns:
    """Which columns are members of their own, under which extension; all others are in `json`."""

    def __init__(self, features: Features) -> None:
        files = [f for f in features if f.is_scalar and f.dtype == "bytes"]
        classes = [f for f in features if f.is_scalar and f.vocabulary is not None]
        self._features = features
        self._members: dict[str, Callable[[Any], Member]] = {}
        for feature in files:
            extension = _EXTENSIONS.get(feature.media_type or "", "bin")
            self._members[feature.name] = _file_member(extension if len(files) == 1 else f"{feature.name}.{extension}")
        for feature in features:
            if feature.shape and is_numeric(feature):
                self._members[feature.name] = _array_member(feature)
        if len(classes) == 1:
            self._members[classes[0].name] = lambda number: ("cls", str(number).encode())

    def samples(self, batch: pa.RecordBatch) -> list[list[Member]]:
        """Returns the members of each row, at least one."""
        samples: list[list[Member]] = [[] for _ in range(batch.num_rows)]
        objects: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
        for column, feature in zip(batch.columns, self._features, strict=True):
            make = self._members.get(feature.name)
            if make is None:
                for row, value in zip(objects, json_values(column, feature), strict=True):
                    row[feature.name] = value
                continue
            for members, value in zip(samples, column.to_pylist(), strict=True):
                if value is not None:
                    members.append(make(value))
        for members, row in zip(samples, objects, strict=True):
            if row or not members:
                members.append(("json", msgspec.json.encode(row)))
        return samples


def _file_member(extension: str) -> Callable[[bytes], Member]:
    return lambda content: (extension, content)


def _array_member(feature: Feature) -> Callable[[list[Any]], Member]:
    dtype = np.dtype(feature.dtype)

    def make(values: list[Any]) -> Member:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.array(values, dtype), version=(1, 0), allow_pickle=False)
        return f"{feature.name}.npy", buffer.getvalue()

    return make
