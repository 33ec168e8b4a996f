"""Images as pixels: as Pillow decodes them, upright, of one size; damage is named or becomes black."""

import io
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageOps

import shardkit
from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset
from tests.support.files.image_makers import encode


def picture(height, width, mode="RGB"):
    """Smooth colours that differ in each corner."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    pixels = np.stack([255 * x, 255 * y, 255 * (1 - x)], axis=-1).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def batch_of(*images, present=None, mask=None):
    column = np.empty(len(images), object)
    column[:] = images
    return Batch({"image": column, "id": np.arange(len(images))}, {} if present is None else {"image": present}, mask)


def distance(one, other):
    return np.abs(one.astype(int) - other.astype(int)).mean()


def test_pixels_are_those_of_pillow():
    images = [picture(20, 30), picture(20, 30, "L"), picture(20, 30, "P")]
    found = shardkit.decode_images("image")(batch_of(*(encode(image) for image in images)))
    assert found["image"].dtype == np.uint8
    assert found["image"].shape == (3, 20, 30, 3)
    for pixels, image in zip(found["image"], images, strict=True):
        assert (pixels == np.asarray(image.convert("RGB"))).all()
    assert found["id"].tolist() == [0, 1, 2]
    grey = shardkit.decode_images("image", mode="L")(batch_of(encode(images[1])))["image"]
    assert (grey[0, :, :, 0] == np.asarray(images[1])).all()


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_every_format_is_read(format_):
    pixels = shardkit.decode_images("image")(batch_of(encode(picture(40, 60), format_)))["image"]
    assert pixels.shape == (1, 40, 60, 3)
    assert distance(pixels[0], np.asarray(picture(40, 60))) < 20


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_images_are_resized_as_pillow_resizes_them(fit, resample):
    image = picture(90, 150)
    method = Image.Resampling[resample.upper()]
    expected = {
        "stretch": lambda: image.resize((40, 50), method),
        "crop": lambda: ImageOps.fit(image, (40, 50), method),
        "pad": lambda: ImageOps.pad(image, (40, 50), method),
    }[fit]()
    decode = shardkit.decode_images("image", size=(50, 40), fit=fit, resample=resample)
    pixels = decode(batch_of(encode(image), encode(picture(50, 40))))["image"]
    assert pixels.shape == (2, 50, 40, 3)
    assert (pixels[0] == np.asarray(expected)).all()
    assert (pixels[1] == np.asarray(picture(50, 40))).all()
    if fit == "pad":
        assert not pixels[0, :10].any()
        assert not pixels[0, -10:].any()
        assert pixels[0, 25].any()


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_jpeg_that_is_decoded_smaller_looks_the_same(fit, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = picture(640, 960)
    data = encode(image, "JPEG", exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = {
        "stretch": lambda: upright.resize((50, 70), Image.Resampling.BILINEAR),
        "crop": lambda: ImageOps.fit(upright, (50, 70), Image.Resampling.BILINEAR),
        "pad": lambda: ImageOps.pad(upright, (50, 70), Image.Resampling.BILINEAR),
    }[fit]()
    pixels = shardkit.decode_images("image", size=(70, 50), fit=fit)(batch_of(data))["image"]
    assert distance(pixels[0], np.asarray(expected)) < 3


def test_transparent_parts_are_white_and_16_bits_become_8():
    clear = Image.new("RGBA", (4, 3), (255, 0, 0, 0))
    deep = Image.fromarray(np.full((3, 4), 65535 // 2, np.uint16))
    pixels = shardkit.decode_images("image")(batch_of(encode(clear), encode(deep)))["image"]
    assert (pixels[0] == 255).all()
    assert (pixels[1] == 127).all()


def test_rows_without_an_image_are_black():
    data = encode(picture(6, 8))
    batch = batch_of(b"", data, b"", present=np.array([False, True, False]), mask=np.array([True, True, False]))
    for size in (None, (6, 8)):
        found = shardkit.decode_images("image", size)(batch)
        assert (found["image"][1] == np.asarray(picture(6, 8))).all()
        assert not found["image"][[0, 2]].any()
        assert found.present["image"].tolist() == [False, True, False]
        assert found.mask.tolist() == [True, True, False]
    assert shardkit.decode_images("image", (6, 8))(batch_of())["image"].shape == (0, 6, 8, 3)


def test_images_of_several_sizes_need_a_size():
    batch = batch_of(encode(picture(6, 8)), encode(picture(6, 8)), encode(picture(5, 8)))
    with pytest.raises(UsageError) as caught:
        shardkit.decode_images("image")(batch)
    for words in ("row 0 of the batch is 6 pixels high and 8 wide", "row 2 of the batch is 5 pixels", "size=(height,"):
        assert words in str(caught.value)


def test_damage_is_named_or_becomes_black():
    good = encode(picture(60, 80), "JPEG")
    damages = {"not an image": b"hello", "cut off": good[: len(good) // 2], "more than the 99 pixels": good}
    for words, data in damages.items():
        pixels = 99 if "pixels" in words else 10**6
        with pytest.raises(BadInputError, match=words) as caught:
            shardkit.decode_images("image", (9, 9), max_pixels=pixels)(batch_of(encode(picture(9, 9)), data))
        assert "column 'image', row 1 of the batch" in str(caught.value)
        decode = shardkit.decode_images("image", (9, 9), max_pixels=pixels, on_error="fill")
        found = decode(batch_of(encode(picture(9, 9)), data))
        assert (found["image"][0] == np.asarray(picture(9, 9))).all()
        assert not found["image"][1].any()
        assert found.present["image"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": (0, 4)}, "size"),
        ({"size": 224}, "size"),
        ({"size": (3, 4, 5)}, "size"),
        ({"mode": "CMYK"}, "no mode 'CMYK'"),
        ({"resample": "cubic"}, "no resample 'cubic'"),
        ({"fit": "cover"}, "no fit 'cover'"),
        ({"on_error": "skip"}, "no on_error 'skip'"),
        ({"max_pixels": 0}, "max_pixels is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        shardkit.decode_images("image", **settings)


def test_columns_that_hold_no_images_are_refused():
    with pytest.raises(UsageError, match="no column 'photo'"):
        shardkit.decode_images("photo")(batch_of(b""))
    words = np.array(["a", "b"], object)
    lists = Ragged(np.arange(2), np.array([0, 1, 2], np.int32))
    for column, got in ((words, "str"), (np.arange(2), "int"), (np.zeros((2, 3)), "float64"), (lists, "lists")):
        with pytest.raises(UsageError, match="holds no encoded images") as caught:
            shardkit.decode_images("image")(Batch({"image": column}, {}))
        assert got in str(caught.value)


def test_images_of_a_dataset_are_decoded_in_threads(tmp_path):
    features = (make_feature("id", "int64"), make_feature("image", "bytes", media_type="image/png", nullable=True))
    images = [None if i == 7 else encode(picture(4 + i % 3, 5)) for i in range(40)]
    arrays = [pa.array(range(40)), pa.array(images, pa.binary())]
    rows = pa.record_batch(arrays, arrow_schema(features))
    train = Splits(write_dataset(tmp_path / "set", features, {"train": rows}, num_shards=2, block_examples=4))["train"]
    decode = ForkingPickler.loads(ForkingPickler.dumps(shardkit.decode_images("image", size=(8, 8))))
    expected = decode(train[:])["image"]
    for num_threads in (0, 2):
        for batch in train.batches(global_batch_size=10, num_threads=num_threads).map(decode):
            assert (batch["image"] == expected[batch["id"]]).all()
            assert batch.present["image"].tolist() == (batch["id"] != 7).tolist()
    broken = decode_error(train)
    assert "row" in str(broken)
    assert "ImageDecoder, epoch 0, step 0" in broken.__notes__[0]


def decode_error(train):
    with pytest.raises(UsageError) as caught:
        list(train.batches(global_batch_size=40, shuffle=False).map(shardkit.decode_images("image")))
    return caught.value
