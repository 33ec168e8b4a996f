"""Notes on images and sound that TensorFlow does not decode."""

import pytest

from shardkit.conversion.plan_notes import media_notes
from shardkit.features import make_feature


def image(media_type):
    return (make_feature("image", "bytes", media_type=media_type),)


@pytest.mark.parametrize(
    ("before", "after", "names", "expected"),
    [
        ("image/jpeg", "image/jpeg", ["a.jpg"], []),
        ("image/*", "image/*", ["a.jpg", "b.png", "c.webp"], []),
        ("image/tiff", "image/tiff", ["a"], ["TensorFlow does not decode TIFF"]),
        ("image/*", "image/*", ["a.jpg", "b.PPM"], ["TensorFlow does not decode PNM"]),
        ("image/tiff", "image/png", ["a.tif"], ["of an image with several frames"]),
        ("image/*", "image/png", ["a.jpg", "b.gif"], ["of an image with several frames"]),
        ("image/*", "image/png", ["a.jpg", "b.bmp"], []),
        ("audio/wav", "audio/wav", ["a.wav"], []),
        ("audio/flac", "audio/flac", ["a.flac"], ["--audio samples"]),
        (None, None, ["a.flac"], []),
    ],
)
def test_notes(before, after, names, expected):
    found = media_notes(image(after), image(before), names)
    assert len(found) == len(expected)
    assert all(part in note for part, note in zip(expected, found, strict=True))
