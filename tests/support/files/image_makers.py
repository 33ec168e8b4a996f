"""What the tests of images write and read."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from shardkit.errors import BadInputError
from shardkit.sources.media.image_source import ImageSource
from tests.support.files.source_makers import read_all


def encode(image: Image.Image, format_: str = "PNG", **settings) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format_, **settings)
    return buffer.getvalue()


def encoded(mode: str, format_: str, size: tuple[int, int] = (7, 5), **settings) -> bytes:
    return encode(Image.new(mode, size), format_, **settings)


def read(*inputs: Path, source=None, **options):
    """Returns the features and all rows."""
    found = read_all(source or ImageSource(), *inputs, **options)
    assert [row["filename"] for row in found.rows] == [found.files[index].name for index in found.file_indices]
    return {f.name: f for f in found.features}, found.rows


def fails(*inputs: Path, **options) -> str:
    with pytest.raises(BadInputError) as caught:
        read(*inputs, **options)
    return str(caught.value)
