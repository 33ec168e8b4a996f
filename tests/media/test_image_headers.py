"""Headers of images, against Pillow."""

from __future__ import annotations

import io
import itertools
import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardkit.file_types import image_type_of
from shardkit.media.image_headers import ImageHeaderError, pillow_header, plain_jpeg_header, read_header
from tests.support.examples import draws
from tests.support.files.image_makers import encoded, fails, read
from tests.support.files.source_makers import write_file


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
        ("RGB", "TIFF", {}, 3),
        ("1", "TIFF", {"compression": "group4"}, 1),
        ("CMYK", "TIFF", {"compression": "tiff_lzw"}, 4),
        ("1", "PPM", {}, 1),
        ("RGB", "PPM", {}, 3),
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


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_images_cut_off_in_the_header(tmp_path, format_):
    write_file(tmp_path, encoded("RGB", format_)[:17], f"a/1.{format_.lower()}")
    assert "cut off" in fails(tmp_path)


@pytest.mark.parametrize(
    ("format_", "mode", "settings"),
    [
        ("JPEG", "RGB", {}),
        ("PNG", "RGB", {}),
        ("WEBP", "RGB", {}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("BMP", "P", {}),
        ("BMP", "1", {}),
        ("PPM", "RGB", {}),
        ("PPM", "1", {}),
        *(("TIFF", "RGB", {"compression": c}) for c in ("raw", "tiff_lzw", "jpeg", "packbits")),
        ("TIFF", "1", {"compression": "group4"}),
    ],
)
def test_images_cut_off_in_the_middle(format_, mode, settings):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 50, 3), np.uint8)).convert(mode)
    buffer = io.BytesIO()
    noise.save(buffer, format_, **settings)
    data = buffer.getvalue()
    assert read_header(data, 10**6).width == 50
    for num_bytes in (len(data) - 3, len(data) * 3 // 4, len(data) // 2):
        with pytest.raises(ImageHeaderError, match="cut off"):
            read_header(data[:num_bytes], 10**6)


def test_an_animation_that_is_cut_off_behind_its_first_frame_is_refused():
    frames = [Image.fromarray(np.random.default_rng(i).integers(0, 255, (20, 20), np.uint8)) for i in range(4)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    data = buffer.getvalue()
    assert read_header(data, 10**6).width == 20
    assert read_header(data + b"junk behind the end", 10**6).width == 20
    with pytest.raises(ImageHeaderError, match="cut off"):
        read_header(data[: len(data) * 3 // 4], 10**6)


def test_plain_and_wide_pnm(tmp_path):
    write_file(tmp_path, b"P2\n# noise\n3 2\n9\n0 1 2\n3 4 5\n", "a/1.pgm")
    write_file(tmp_path, b"P5 2 2 65535\n" + bytes(8), "b/2.pgm")
    _, rows = read(tmp_path)
    assert [(r["width"], r["height"], r["channels"]) for r in rows] == [(3, 2, 1), (2, 2, 1)]
    write_file(tmp_path, b"P2 3 2 9\n0 1 2\n3", "a/1.pgm")
    assert "cut off" in fails(tmp_path)


def test_a_text_that_begins_like_a_pnm_is_none():
    assert image_type_of(b"P5\t3\t4\t5\n", "patients.tsv") is None
    assert image_type_of(b"P5 3 4 5\n", "a.pgm") == "image/x-portable-anymap"


def png_of(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_more_pixels_than_allowed(tmp_path):
    write_file(tmp_path, png_of(20_000, 20_000), "a/1.png")
    assert "20000x20000 is more than the 64,000,000 pixels that --max-pixels allows" in fails(tmp_path)
    _, rows = read(tmp_path, max_pixels=400_000_000)
    assert rows[0]["width"] == 20_000


def test_damaged_headers_are_errors(tmp_path):
    rng = random.Random(0)
    for format_ in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
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


@pytest.mark.full
@settings(max_examples=draws(1500), deadline=None)
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
        assert found == pillow_header(bytes(content), "image/jpeg", 10**6)[0]


@pytest.mark.parametrize("number", range(len(JPEGS)))
def test_ordinary_jpegs_need_no_pillow(number):
    found = plain_jpeg_header(JPEGS[number])
    if b"Exif" in JPEGS[number]:
        assert found is None
    else:
        assert (found.height, found.width, found.channels) == (9, 13, (1, 3, 4)[number // 6])
    assert read_header(JPEGS[number], 10**6).channels == (1, 3, 4)[number // 6]
