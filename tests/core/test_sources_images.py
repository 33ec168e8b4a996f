"""Folders of images: bytes kept, classes from folders, sizes from headers, and what is refused."""

from __future__ import annotations

import io
import itertools
import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.image_files import ImageSource
from shardkit.sources.image_headers import ImageHeaderError, read_header


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


def test_bytes_classes_and_sizes(tmp_path):
    cat, dog = encoded("RGB", "JPEG"), encoded("L", "JPEG", (3, 4))
    write(tmp_path, "cat/1.jpg", cat)
    write(tmp_path, "dog/deeper/2.jpg", dog)
    features, rows = read(tmp_path)
    assert features["image"].media_type == "image/jpeg"
    assert features["label"].vocabulary == ("cat", "dog")
    assert not any(f.nullable for f in features.values())
    assert rows == [
        {"image": cat, "label": 0, "filename": "cat/1.jpg", "height": 5, "width": 7, "channels": 3},
        {"image": dog, "label": 1, "filename": "dog/deeper/2.jpg", "height": 4, "width": 3, "channels": 1},
    ]


def test_several_formats(tmp_path):
    write(tmp_path, "a/1.png", encoded("RGB", "PNG"))
    write(tmp_path, "a/2.jpg", encoded("RGB", "JPEG"))
    assert read(tmp_path)[0]["image"].media_type == "image/*"


def test_classes_given_as_folders(tmp_path):
    for name in ("cat", "dog"):
        write(tmp_path, f"{name}/1.png", encoded("L", "PNG"))
    _, rows = read(tmp_path / "dog", tmp_path / "cat")
    assert [(r["filename"], r["label"]) for r in rows] == [("cat/1.png", 0), ("dog/1.png", 1)]


@pytest.mark.parametrize(
    ("mode", "format_", "settings", "channels"),
    [
        ("1", "PNG", {}, 1),
        ("L", "PNG", {}, 1),
        ("I;16", "PNG", {}, 1),
        ("LA", "PNG", {}, 2),
        ("P", "PNG", {}, 3),
        ("P", "PNG", {"transparency": 0}, 4),
        ("RGB", "PNG", {}, 3),
        ("RGBA", "PNG", {}, 4),
        ("CMYK", "JPEG", {}, 4),
        ("RGB", "WEBP", {}, 3),
        ("RGBA", "WEBP", {"lossless": True, "exact": True}, 4),
        ("P", "GIF", {}, 3),
        ("RGB", "BMP", {}, 3),
    ],
)
def test_channels(mode, format_, settings, channels):
    image = Image.new(mode, (7, 5))
    if mode == "RGBA":
        image.putalpha(Image.new("L", (7, 5), 9))
    if mode == "P":
        image.putpalette([i // 3 * 7 % 256 if i % 3 else i // 3 for i in range(768)])
    buffer = io.BytesIO()
    image.save(buffer, format_, **settings)
    header = read_header(buffer.getvalue(), 10**6)
    assert (header.height, header.width, header.channels) == (5, 7, channels)


def test_images_in_no_class_folder_are_refused(tmp_path):
    write(tmp_path, "1.png", encoded("L", "PNG"))
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert "cats/1.jpg" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"just text", "text"), (b"<!DOCTYPE html><p>404", "HTML text"), (b"", "empty"), (b"%PDF-1.4", "a PDF")],
)
def test_content_that_is_no_image(tmp_path, content, what):
    write(tmp_path, "a/1.png", encoded("L", "PNG"))
    write(tmp_path, "a/2.jpg", content)
    message = fails(tmp_path)
    assert f"content is {what}, not an image" in message
    assert "a/2.jpg" in message


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_images_cut_off_in_the_header(tmp_path, format_):
    write(tmp_path, f"a/1.{format_.lower()}", encoded("RGB", format_)[:17])
    assert "cut off" in fails(tmp_path)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_images_cut_off_in_the_middle(tmp_path, format_):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 50, 3), np.uint8))
    buffer = io.BytesIO()
    noise.save(buffer, format_)
    data = buffer.getvalue()
    assert read_header(data, 10**6).width == 50
    with pytest.raises(ImageHeaderError, match="cut off"):
        read_header(data[: len(data) * 3 // 4], 10**6)


def png_of(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_more_pixels_than_allowed(tmp_path):
    write(tmp_path, "a/1.png", png_of(20_000, 20_000))
    assert "20000x20000 is more than the 64,000,000 pixels that --max-pixels allows" in fails(tmp_path)
    _, rows = read(tmp_path, max_pixels=400_000_000)
    assert rows[0]["width"] == 20_000


def test_damaged_headers_are_errors(tmp_path):
    rng = random.Random(0)
    for format_ in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        good = encoded("RGB", format_)
        for _ in range(200):
            damaged = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            try:
                header = read_header(bytes(damaged), 10**6)
            except ImageHeaderError:
                continue
            assert 0 < header.width * header.height <= 10**6


def test_splits_and_batches_hold_every_file_once(tmp_path):
    for i in range(30):
        write(tmp_path, f"{'ab'[i % 2]}/{i:02}.png", encoded("L", "PNG", (i + 1, 2)))
    files = list_inputs([str(tmp_path)]).files
    source, options = ImageSource(split_bytes=500, batch_bytes=150), SourceOptions()
    splits = source.split(files, options)
    assert len(splits) > 3
    assert splits[0].file_start == 0
    assert all(a.file_stop == b.file_start for a, b in itertools.pairwise(splits))
    assert splits[-1].file_stop == 30
    _, rows = read(tmp_path, source=source)
    assert [r["filename"] for r in rows] == [f.name for f in files]


def test_documents_are_left_out_with_a_note(tmp_path):
    write(tmp_path, "a/1.png", encoded("L", "PNG"))
    for name in ("README", "a/notes.txt", "LICENSE.md"):
        write(tmp_path, name, b"text")
    listing = list_inputs([str(tmp_path)])
    assert [f.name for f in listing.files] == ["a/1.png"]
    assert len(listing.notes) == 3
    assert choose_source(listing.files, SourceOptions()).format == "images"


def test_one_class_is_noted(tmp_path):
    write(tmp_path, "a/1.png", encoded("L", "PNG"))
    files = list_inputs([str(tmp_path)]).files
    assert "one class" in ImageSource().notes(files, SourceOptions())[0]


def test_file_that_changes_while_it_is_read(tmp_path):
    path = write(tmp_path, "a/1.png", encoded("L", "PNG"))
    files = list_inputs([str(tmp_path)]).files
    source, options = ImageSource(), SourceOptions()
    features = source.infer(files, options)
    (split,) = source.split(files, options)
    path.write_bytes(encoded("RGB", "PNG"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadInputError, match="changed during conversion"):
        list(source.read(split, files, features, options))
