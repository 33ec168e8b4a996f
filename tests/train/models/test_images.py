"""Encoded images: those that declare more pixels than memory should hold are refused before they are decoded."""

import io

import pytest
from PIL import Image

from tests.support.files.hostile_datasets import png_of_zeros

pytestmark = pytest.mark.full
tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
@pytest.mark.parametrize("is_graph", [False, True])
def test_images_of_each_kind_are_decoded(kind, is_graph):
    from train.models.images import decode

    file = io.BytesIO()
    Image.new("RGB", (301, 7)).save(file, kind)
    assert (tf.function(decode) if is_graph else decode)(tf.constant(file.getvalue())).shape == (7, 301, 3)


@pytest.mark.parametrize("head", [b"\xff\xd8\xff\xe0" + bytes(100), b"\x89PNG", b"GIF8", b"BM", b"x"])
def test_what_is_no_image_is_an_error(head):
    from train.models.images import decode

    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(tf.constant(head))


def test_an_image_that_declares_400_million_pixels_is_refused():
    from train.models.images import decode

    file = png_of_zeros(20_000, 20_000)
    assert len(file) < 100_000
    for way in (decode, tf.function(decode)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="more than 64,000,000 pixels"):
            way(tf.constant(file))


@pytest.mark.parametrize("start", [b"GIF89a" + b"\xff" * 4, b"BM" + bytes(16) + b"\xff\xff\0\0\0\0\xff\xff"])
def test_headers_of_other_kinds_are_read(start):
    from train.models.images import decode

    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 64,000,000 pixels"):
        decode(tf.constant(start + bytes(100)))
