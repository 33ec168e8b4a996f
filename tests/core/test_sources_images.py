"""Folders of images: bytes kept, classes from folders, sizes from headers, and what is refused."""

from __future__ import annotations

import io
import itertools
import os
import random
import struct
import zlib
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.image_files import ImageSource
from shardkit.sources.image_headers import ImageHeaderError, pillow_header, plain_jpeg_header, read_header


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


def test_images_without_class_folders_have_no_label(tmp_path):
    write(tmp_path, "1.png", encoded("L", "PNG"))
    write(tmp_path, "2.png", encoded("L", "PNG"))
    features, rows = read(tmp_path)
    assert "label" not in features
    assert [r["filename"] for r in rows] == ["1.png", "2.png"]
    files = list_inputs([str(tmp_path)]).files
    assert "no label" in ImageSource().notes(files, SourceOptions())[0]


def test_images_of_which_some_lie_in_no_class_folder_are_refused(tmp_path):
    write(tmp_path, "1.png", encoded("L", "PNG"))
    write(tmp_path, "a/2.png", encoded("L", "PNG"))
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert "cats/1.jpg" in str(caught.value)
    assert "1.png" in str(caught.value)


def test_broken_images_are_handed_over_where_they_are_tolerated(tmp_path):
    good = encoded("RGB", "JPEG")
    bad = {"a/2.jpg": b"just text", "a/4.jpg": b"", "b/5.png": encoded("RGB", "PNG")[:17], "b/6.png": b"\0" * 5000}
    for name in ("a/1.jpg", "a/3.jpg", "b/7.jpg"):
        write(tmp_path, name, good)
    for name, content in bad.items():
        write(tmp_path, name, content)
    files = list_inputs([str(tmp_path)]).files
    for batch_bytes in (10**6, 500):
        source, options = (
            ImageSource(batch_bytes=batch_bytes),
            SourceOptions(tolerates_bad_rows=True, max_record_bytes=4096),
        )
        features = source.infer(files, options)
        parts = [p for s in source.split(files, options) for p in source.read(s, files, features, options)]
        rows = [name for p in parts for name in p.batch["filename"].to_pylist()]
        assert rows == ["a/1.jpg", "a/3.jpg", "b/7.jpg"]
        assert [files[i].name for p in parts for i in p.file_indices.tolist()] == rows
        assert sum(len(p.identities) for p in parts) == 3
        found = {files[r.file_index].name: r for p in parts for r in p.rejected}
        assert {name: r.raw for name, r in found.items()} == bad
        assert "not an image" in found["a/2.jpg"].reason
        assert "more than the" in found["b/6.png"].reason


def test_folder_without_one_whole_image(tmp_path):
    write(tmp_path, "a/1.jpg", b"just text")
    assert "there are no images" in fails(tmp_path, tolerates_bad_rows=True)


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


def jpeg_kinds() -> list[bytes]:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 13), np.uint8))
    exif = Image.Exif()
    exif[0x0128], exif[0x011A] = 2, 72.0
    more = [
        {},
        {"progressive": True},
        {"exif": exif},
        {"icc_profile": b"x" * 300},
        {"comment": b"hi"},
        {"dpi": (72, 72)},
    ]
    kinds = []
    for mode, settings_ in itertools.product(("L", "RGB", "CMYK"), more):
        buffer = io.BytesIO()
        noise.convert(mode).save(buffer, "JPEG", **settings_)
        kinds.append(buffer.getvalue())
    return kinds


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def segment_starts(jpeg: bytes) -> list[int]:
    starts = [2]
    while jpeg[starts[-1] + 1] != 0xDA:
        starts.append(starts[-1] + 2 + int.from_bytes(jpeg[starts[-1] + 2 : starts[-1] + 4], "big"))
    return starts


JPEGS = jpeg_kinds()
ODD_SEGMENTS = [
    segment(0xE0, b"JFIF\0"),
    segment(0xE0, b"JFIF\0\1\1\1"),
    segment(0xE1, b"Exif\0\0II*\0"),
    segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
    segment(0xE2, b"ICC_PROFILE\0"),
    segment(0xE2, b"ICC_PROFILE\0\1\1zz"),
    segment(0xE2, b"MPF\0xx"),
    segment(0xED, b"Photoshop 3.0\x008BIM\x03\xed"),
    segment(0xEE, b"Adobe"),
    segment(0xEE, b"Adobe\0d\0\0\0\0\1"),
    segment(0xDB, b""),
    segment(0xDB, b"\x10" + b"a" * 128 + b"\1" + b"b" * 64),
    segment(0xDB, b"\0" + b"b" * 63),
    segment(0xC0, b"\x08\0\5\0\7\1\1\x11\0"),
    segment(0xC3, b"\x08\0\5\0\7\1\1\x11\0"),
    segment(0xCC, b"ab"),
    b"\xff\xff",
    b"\0\0",
    b"\xff\0",
    b"\xff\xd8",
    b"\xff\xd0",
]


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_jpeg_headers_are_read_as_pillow_reads_them(data):
    content = bytearray(data.draw(st.sampled_from(JPEGS)))
    for start in data.draw(st.lists(st.sampled_from(segment_starts(content)), max_size=2, unique=True).map(sorted))[
        ::-1
    ]:
        content[start:start] = data.draw(st.sampled_from(ODD_SEGMENTS))
    for _ in range(data.draw(st.integers(0, 2))):
        value = data.draw(st.sampled_from([0, 1, 2, 3, 4, 8, 12, 0xC0, 0xC2, 0xD8, 0xDA, 0xDB, 0xE1, 0xFF]))
        content[data.draw(st.integers(0, min(len(content), 800) - 1))] = value
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    found = plain_jpeg_header(memoryview(content))
    if found is not None:
        assert found == pillow_header(bytes(content), "image/jpeg", 10**6)


@pytest.mark.parametrize("number", range(len(JPEGS)))
def test_ordinary_jpegs_need_no_pillow(number):
    found = plain_jpeg_header(JPEGS[number])
    if b"Exif" in JPEGS[number]:
        assert found is None
    else:
        assert (found.height, found.width, found.channels) == (9, 13, (1, 3, 4)[number // 6])
    assert read_header(JPEGS[number], 10**6).channels == (1, 3, 4)[number // 6]


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


@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
def test_one_of_many_files_that_changes_before_it_is_read(tmp_path, change):
    for i in range(150):
        write(tmp_path, f"a/{i:03}.jpg", encoded("RGB", "JPEG"))
    files = list_inputs([str(tmp_path)]).files
    source, options = ImageSource(), SourceOptions()
    features = source.infer(files, options)
    path = tmp_path / "a" / "100.jpg"
    if change == "gone":
        path.unlink()
    else:
        modified = path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes()[:-1] if change == "shorter" else path.read_bytes() + b"x")
        os.utime(path, ns=(modified, modified))
    num_open = len(os.listdir("/dev/fd"))
    with pytest.raises(BadInputError, match="changed during conversion") as caught:
        list(source.read(source.split(files, options)[0], files, features, options))
    assert "a/100.jpg" in str(caught.value)
    assert len(os.listdir("/dev/fd")) == num_open


def test_images_before_one_that_is_too_large_are_read(tmp_path):
    for i, size in enumerate([5, 6, 90, 7]):
        write(tmp_path, f"a/{i}.png", encoded("RGB", "PNG", (size, size)) + b"\0" * size * size)
    files = list_inputs([str(tmp_path)]).files
    source, options = ImageSource(), SourceOptions(max_record_bytes=4096)
    rows = source.read(source.split(files, options)[0], files, source.infer(files, options), options)
    assert next(rows).batch["width"].to_pylist() == [5, 6]
    with pytest.raises(BadInputError, match=r"more than the 4\.00 KiB") as caught:
        next(rows)
    assert "a/2.png" in str(caught.value)


def test_images_in_an_object_store(tmp_path):
    memory = fsspec.filesystem("memory")
    contents = {f"{'ab'[i % 2]}/{i}.jpg": encoded("RGB", "JPEG", (i + 1, 3)) for i in range(40)}
    try:
        for name, content in contents.items():
            memory.pipe(f"/images-test/{name}", content)
            write(tmp_path, name, content)
        remote = read("memory:///images-test", source=ImageSource(batch_bytes=4000))
        assert remote == read(tmp_path)
        assert {r["filename"]: r["image"] for r in remote[1]} == contents
        write(tmp_path, "a/0.jpg", b"just text")
        memory.pipe("/images-test/a/0.jpg", b"just text")
        assert fails("memory:///images-test") == fails(tmp_path)
    finally:
        memory.rm("/images-test", recursive=True)
