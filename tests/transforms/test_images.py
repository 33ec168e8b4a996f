"""Images are written anew as asked: upright, of one size, in one format, and a bad one costs its row only."""

from __future__ import annotations

import io
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, file_identities
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import apply, plan_transforms
from tests.support.examples import draws
from tests.support.files.image_makers import encode

FEATURES = (
    make_feature("image", "bytes", media_type="image/*", nullable=True),
    make_feature("label", "int64", vocabulary=("cat", "dog")),
    make_feature("height", "int64"),
    make_feature("width", "int64"),
    make_feature("channels", "int64"),
)
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)


def picture(mode="RGB", size=(37, 23), seed=0):
    """Returns smooth content, so that JPEG changes it little."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(90, 166, (5, 4, 4), dtype=np.uint8), "RGBA").resize(size, Image.BICUBIC)
    if mode.startswith("I;16"):
        return Image.fromarray(rng.integers(0, 65536, size[::-1], dtype=np.uint16))
    return coarse.convert("RGB").convert(mode) if mode not in ("RGBA", "LA") else coarse.convert(mode)


def run(images, options, *, tolerant=False, features=FEATURES, max_pixels=64_000_000):
    source = SourceOptions(tolerates_bad_rows=tolerant, max_pixels=max_pixels)
    plan = plan_transforms(features, options, source)
    n = len(images)
    values = {"image": images, "label": [i % 2 for i in range(n)], "height": [1] * n, "width": [2] * n}
    values |= {"channels": [3] * n, "name": [f"{i}" for i in range(n)]}
    columns = [pa.array(values[f.name], f.arrow_type) for f in features]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features))
    files = tuple(RawFile(path=f"/{i}", name=f"{i}.img", num_bytes=1, version="") for i in range(n))
    rows = RowBatch(batch, file_identities([f.name for f in files]), np.arange(n, dtype=np.int64))
    applied = apply(plan, rows, files, SPLIT)
    assert applied.rows.batch.schema == arrow_schema(plan.output_features)
    applied.rows.batch.validate(full=True)
    return applied.rows, plan


def one(data, options, **settings):
    rows, _ = run([data], options, **settings)
    row = rows.batch.to_pylist()[0]
    image = Image.open(io.BytesIO(row["image"]))
    image.load()
    assert (row["height"], row["width"]) == (image.height, image.width)
    assert row["channels"] == (len(image.getbands()) if image.mode != "P" else row["channels"])
    return image, row["image"]


def assert_close(image, expected, limit=6.0):
    assert image.size == expected.size
    assert image.mode == expected.mode
    assert np.abs(np.asarray(image, float) - np.asarray(expected, float)).mean() < limit


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("wanted", ["jpeg", "png", None])
def test_any_format_becomes_the_wanted_one_of_the_wanted_size(format, wanted):
    source = picture()
    data = encode(source, format, **({"lossless": True} if format == "WEBP" else {"quality": 95}))
    image, _ = one(data, TransformOptions(image_size=(11, 17), image_format=wanted))
    expected_format = (wanted or ("jpeg" if format == "JPEG" else "png")).upper()
    assert image.format == expected_format
    original = Image.open(io.BytesIO(data)).convert("RGB")
    assert_close(image, original.resize((17, 11), Image.Resampling.BILINEAR))


def test_the_resize_is_that_of_pillow_to_the_bit():
    source = picture(size=(61, 47))
    image, _ = one(encode(source, "PNG"), TransformOptions(image_size=(20, 30)))
    assert image.tobytes() == source.resize((30, 20), Image.Resampling.BILINEAR).tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_images_are_turned_upright_and_say_so_no_more(orientation, format):
    exif = Image.Exif()
    exif[0x0112] = orientation
    settings = {"lossless": True} if format == "WEBP" else {"quality": 95}
    data = encode(picture(), format, exif=exif, **settings)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    image, written = one(data, TransformOptions(image_format="png"))
    assert_close(image, expected.convert("RGB"), 0.01)
    assert Image.open(io.BytesIO(written)).getexif().get(0x0112, 1) == 1
    kept, _ = one(data, TransformOptions(image_format="png", apply_exif=False))
    assert kept.size == (37, 23)


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_is_read_in_both_byte_orders(order):
    exif = Image.Exif(), Image.Exif()
    for e in exif:
        e.endian = order
    exif[0][0x0112] = 6
    exif[0][0x010F] = "a maker"
    image, _ = one(encode(picture(), "JPEG", exif=exif[0].tobytes()), TransformOptions(image_format="png"))
    assert image.size == (23, 37)


def test_an_image_that_is_as_wanted_keeps_its_bytes():
    data = encode(picture(), "JPEG")
    for options in (TransformOptions(image_format="jpeg"), TransformOptions(image_size=(23, 37))):
        assert one(data, options)[1] == data
    grey = encode(picture("L"), "PNG")
    assert one(grey, TransformOptions(image_format="png"))[1] == grey


def test_cmyk_becomes_rgb():
    data = encode(picture("CMYK"), "JPEG", quality=95)
    image, _ = one(data, TransformOptions(image_format="jpeg", image_quality=95))
    assert_close(image, Image.open(io.BytesIO(data)).convert("RGB"))


def test_a_palette_with_alpha_keeps_it_in_png_and_lies_over_white_in_jpeg():
    source = picture("RGB").quantize(16)
    data = encode(source, "PNG", transparency=0)
    expected = Image.open(io.BytesIO(data)).convert("RGBA")
    assert_close(
        one(data, TransformOptions(image_format="png", image_size=(23, 37)))[0].convert("RGBA"), expected, 0.01
    )
    resized, _ = one(data, TransformOptions(image_format="png", image_size=(46, 74)))
    assert resized.mode == "RGBA"
    white = Image.new("RGBA", expected.size, "white")
    over_white = Image.alpha_composite(white, expected).convert("RGB")
    assert_close(one(data, TransformOptions(image_format="jpeg", image_quality=95))[0], over_white, 12)


@pytest.mark.parametrize(("mode", "png", "jpeg"), [("LA", "LA", "L"), ("RGBA", "RGBA", "RGB"), ("1", "L", "L")])
def test_modes_become_what_the_format_holds(mode, png, jpeg):
    data = encode(picture(mode), "PNG")
    assert one(data, TransformOptions(image_size=(7, 5)))[0].mode == png
    assert one(data, TransformOptions(image_format="jpeg"))[0].mode == jpeg


def test_16_bits_stay_in_png_and_are_rounded_in_jpeg():
    source = picture("I;16", size=(24, 16))
    data = encode(source, "PNG")
    assert one(data, TransformOptions(image_format="png"))[1] == data
    resized, _ = one(data, TransformOptions(image_size=(8, 12)))
    assert resized.mode == "I;16"
    expected = np.asarray(source.convert("F").resize((12, 8), Image.Resampling.BILINEAR))
    assert np.abs(np.asarray(resized, float) - expected).max() <= 1
    image, _ = one(data, TransformOptions(image_format="jpeg", image_quality=100))
    assert_close(image, Image.fromarray(np.round(np.asarray(source) / 257).astype(np.uint8)))


@pytest.mark.parametrize("size", [None, (12, 18)])
@pytest.mark.parametrize("wanted", ["png", "jpeg"])
def test_pixels_without_a_known_scale_are_refused_not_made_black(wanted, size):
    options = TransformOptions(image_format=wanted, image_size=size)
    wide = np.asarray(picture("I;16")).astype(np.int32)
    for pixels, why in (
        ((wide / 65535).astype(np.float32), "fractions"),
        (wide * 100, "PNG holds 0 to 65,535"),
        (wide - 30_000, "PNG holds 0 to 65,535"),
    ):
        with pytest.raises(BadInputError, match=why):
            one(encode(Image.fromarray(pixels), "TIFF"), options)


@pytest.mark.parametrize(("mode", "found"), [("1", "L"), ("L", "L"), ("LA", "LA"), ("RGBA", "RGBA"), ("CMYK", "RGB")])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_tiff_of_all_modes_becomes_png(mode, found, compression):
    source = picture(mode)
    image, _ = one(encode(source, "TIFF", compression=compression), TransformOptions(image_format="png"))
    assert image.mode == found
    assert np.array_equal(np.asarray(image), np.asarray(source.convert(found)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiff_is_always_upright(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(), "TIFF", exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        expected = opened.convert("RGB")
    for apply_exif in (None, False):
        image, _ = one(data, TransformOptions(image_format="png", apply_exif=apply_exif))
        assert np.array_equal(np.asarray(image), np.asarray(expected))


def test_pnm_of_16_bits_fills_the_range_of_png():
    values = np.arange(6, dtype=np.uint16).reshape(2, 3) * 200
    data = b"P5 3 2 1000\n" + values.astype(">u2").tobytes()
    image, _ = one(data, TransformOptions(image_format="png"))
    assert np.abs(np.asarray(image).astype(float) - values * 65.535).max() <= 1


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_stays(format):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "green", "blue")]
    settings = {"lossless": True} if format == "WEBP" else {}
    data = encode(frames[0], format, save_all=True, append_images=frames[1:], **settings)
    image, _ = one(data, TransformOptions(image_format="png"))
    assert getattr(image, "n_frames", 1) == 1
    assert image.convert("RGB").getpixel((3, 3)) == (255, 0, 0)


def test_large_jpegs_are_decoded_small():
    source = picture(size=(1600, 1200))
    data = encode(source, "JPEG", quality=95)
    image, _ = one(data, TransformOptions(image_size=(90, 120), image_quality=95))
    assert_close(image, Image.open(io.BytesIO(data)).resize((120, 90), Image.Resampling.BILINEAR), 3)


def test_damaged_images_cost_their_row_only():
    good = encode(picture(), "PNG")
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    cut = encode(noise, "PNG")
    broken = cut[:900] + bytes(200) + cut[1100:]
    html = b"<html>404</html>"
    options = TransformOptions(image_size=(8, 8))
    with pytest.raises(BadInputError, match=r"1\.img") as caught:
        run([good, html, good], options)
    assert "HTML" in str(caught.value)
    rows, _ = run([good, html, broken, None, cut[:500], good], options, tolerant=True)
    assert rows.file_indices.tolist() == [0, 3, 5]
    assert rows.batch["image"].null_count == 1
    assert [(r.file_index, r.position) for r in rows.rejected] == [(1, ""), (2, ""), (4, "")]
    assert rows.rejected[0].raw == html


@pytest.mark.full
def test_pixels_are_capped_before_anything_is_decoded():
    bomb = encode(Image.new("1", (20_000, 20_000)), "PNG")
    with pytest.raises(BadInputError, match="20000x20000 is more than the 64,000,000 pixels"):
        run([bomb], TransformOptions(image_size=(8, 8)))


def test_a_row_without_an_image_keeps_its_sizes():
    rows, plan = run([None], TransformOptions(image_size=(8, 8), image_format="png"))
    assert rows.batch.to_pylist() == [{"image": None, "label": 0, "height": 1, "width": 2, "channels": 3}]
    assert plan.output_features[0].media_type == "image/png"
    assert plan.output_features[1] == FEATURES[1]


def test_two_columns_of_images_are_both_written_and_sizes_left_alone():
    features = (*FEATURES, make_feature("mask", "bytes", media_type="image/png"))
    plan = plan_transforms(features, TransformOptions(image_size=(4, 6)), SourceOptions())
    data = encode(picture(), "PNG")
    columns = [pa.array([v], f.arrow_type) for v, f in zip([data, 1, 9, 9, 9, data], features, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features))
    files = (RawFile(path="/a", name="a", num_bytes=1, version=""),)
    row = apply(plan, RowBatch(batch, file_identities(["a"]), 0), files, SPLIT).rows.batch.to_pylist()[0]
    assert [Image.open(io.BytesIO(row[name])).size for name in ("image", "mask")] == [(6, 4), (6, 4)]
    assert (row["height"], row["width"], row["channels"]) == (9, 9, 9)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (TransformOptions(image_size=(0, 5)), "--image-size 0x5"),
        (TransformOptions(image_size=(60_000, 60_000)), "--max-pixels"),
        (TransformOptions(image_format="jpeg", image_quality=0), "--image-quality is 0"),
        (TransformOptions(image_format="png", image_quality=9), "--image-quality has no meaning"),
        (TransformOptions(image_quality=9), "--image-quality is for images"),
    ],
)
def test_what_cannot_be_is_refused_before_work(options, match):
    with pytest.raises(UsageError, match=match):
        plan_transforms(FEATURES, options, SourceOptions())


def test_images_must_be_there():
    with pytest.raises(UsageError, match="--image-size is for images"):
        plan_transforms(FEATURES[1:], TransformOptions(image_size=(8, 8)), SourceOptions())


@settings(max_examples=draws(30), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]))
def test_damaged_bytes_end_as_an_image_or_a_rejected_row(seed, format):
    rng = random.Random(seed)
    exif = Image.Exif()
    exif[0x0112] = rng.randrange(9)
    data = bytearray(
        encode(picture(seed=seed % 7), format, **({} if format in ("GIF", "BMP", "PPM") else {"exif": exif}))
    )
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    rows, _ = run([bytes(data)], TransformOptions(image_size=(8, 8)), tolerant=True, max_pixels=10**6)
    assert rows.batch.num_rows + len(rows.rejected) == 1
    for value in rows.batch["image"].to_pylist():
        assert Image.open(io.BytesIO(value)).size == (8, 8)
