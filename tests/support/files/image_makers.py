"""What the tests of images write and read."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from shardkit.errors import BadInputError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.image_source import ImageSource


def encoded(mode: str, format_: str, size: tuple[int, int] = (7, 5), **settings) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, format_, **settings)
    return buffer.getvalue()


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read(*inputs: Path, source=None, **options):
    """Returns the features and all rows."""
    source = source or ImageSource()
    settings = SourceOptions(**options)
    files = list_inputs([str(p) for p in inputs]).files
    features = source.infer(files, settings)
    rows = []
    for split in source.split(files, settings):
        for part in source.read(split, files, features, settings):
            part.batch.validate(full=True)
            for row, index in zip(part.batch.to_pylist(), part.file_indices.tolist(), strict=True):
                assert row["filename"] == files[index].name
                rows.append(row)
    return {f.name: f for f in features}, rows


def fails(*inputs: Path, **options) -> str:
    with pytest.raises(BadInputError) as caught:
        read(*inputs, **options)
    return str(caught.value)
