"""What the tests of labels beside images write and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.image_source import ImageSource
from tests.support.files.image_makers import encoded


def picture() -> bytes:
    return encoded("RGB", "PNG")


def images(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture())
    return folder / "images"


def text(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def read(folder: Path, labels: Path, source=None, **options):
    """Returns features by name, rows by file name, notes, and what was rejected."""
    source = source or ImageSource()
    settings_ = SourceOptions(labels=str(labels), **options)
    files = list_inputs([str(folder)]).files
    features = source.infer(files, settings_)
    rows, rejected = {}, []
    for split in source.split(files, settings_):
        for part in source.read(split, files, features, settings_):
            part.batch.validate(full=True)
            assert [c.type for c in part.batch.columns] == [f.arrow_type for f in features]
            rows |= {row.pop("filename"): row for row in part.batch.to_pylist()}
            rejected += part.rejected
    return {f.name: f for f in features}, rows, source.notes(files, settings_), rejected


def fails(folder: Path, labels: Path, kind=UsageError, **options) -> str:
    with pytest.raises(kind) as caught:
        read(folder, labels, **options)
    return str(caught.value)
