"""Images and sound are decoded once where that is asked for, and those that do not decode cost their row."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, file_identities
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import apply, plan_transforms

soundfile = pytest.importorskip("soundfile")

NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8))


def picture(format_, **settings):
    buffer = io.BytesIO()
    NOISE.save(buffer, format_, **settings)
    return buffer.getvalue()


def sound(kind):
    buffer = io.BytesIO()
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 20_000)
    soundfile.write(buffer, samples, 8000, format=kind)
    return buffer.getvalue()


def run(values, media_type, *, tolerant=True):
    features = (make_feature("media", "bytes", media_type=media_type, nullable=True),)
    source = SourceOptions(tolerates_bad_rows=tolerant)
    plan = plan_transforms(features, TransformOptions(check_media=True), source)
    assert plan.output_features == features
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=arrow_schema(features))
    files = tuple(RawFile(path=f"/{i}", name=f"{i}.x", num_bytes=1, version="") for i in range(len(values)))
    rows = RowBatch(batch, file_identities([f.name for f in files]), np.arange(len(values), dtype=np.int64))
    return apply(plan, rows, files, InputSplit(index=0, file_start=0, file_stop=1)).rows


def broken(content, share=0.5):
    """Returns content of the same size with some bytes in its middle changed."""
    start = int(len(content) * share)
    return content[:start] + bytes(b ^ 0x5A for b in content[start : start + 40]) + content[start + 40 :]


@pytest.mark.parametrize(
    ("format_", "settings"),
    [("PNG", {}), ("GIF", {}), ("TIFF", {"compression": "tiff_adobe_deflate"})],
)
def test_an_image_that_is_damaged_in_its_middle_is_rejected_and_others_keep_their_bytes(format_, settings):
    good = picture(format_, **settings)
    rows = run([good, broken(good, 0.3), None, good], "image/*")
    assert rows.batch["media"].to_pylist() == [good, None, good]
    (rejected,) = rows.rejected
    assert rejected.file_index == 1
    assert rejected.reason.startswith("the image does not decode")


def test_a_png_whose_checksum_is_wrong_is_rejected():
    good = picture("PNG")
    start = good.index(b"IDAT") + 4
    size = int.from_bytes(good[start - 8 : start - 4], "big")
    pixels = bytearray(zlib.decompress(good[start : start + size]))
    pixels[100] ^= 1
    bad = good[:start] + zlib.compress(pixels, 0)[:size].ljust(size, b"\0") + good[start + size :]
    assert len(run([good, bad], "image/png").rejected) == 1


def test_all_frames_of_an_animation_are_decoded():
    good = picture("GIF", save_all=True, append_images=[NOISE.rotate(90), NOISE.rotate(180)])
    bad = broken(good, 0.6)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(bad))), np.asarray(Image.open(io.BytesIO(good))))
    rows = run([good, bad], "image/gif")
    assert [r.file_index for r in rows.rejected] == [1]


@pytest.mark.parametrize("kind", ["FLAC", "MP3"])
def test_a_sound_that_is_damaged_in_its_middle_is_rejected(kind):
    good = sound(kind)
    rows = run([good, good[: len(good) // 2] + bytes(len(good) // 4) + good[len(good) * 3 // 4 :]], "audio/*")
    assert rows.batch.num_rows == 1
    assert rows.rejected[0].reason.startswith("the sound does not decode")


def test_the_first_bad_row_ends_the_conversion_and_names_its_file():
    good = picture("PNG")
    with pytest.raises(BadInputError, match=r"1\.x") as caught:
        run([good, broken(good), broken(good)], "image/png", tolerant=False)
    assert "--on-bad-record skip" in str(caught.value)


def test_there_must_be_something_to_decode():
    features = (make_feature("number", "int64"),)
    with pytest.raises(UsageError, match="--check-media is for images, audio files and videos"):
        plan_transforms(features, TransformOptions(check_media=True), SourceOptions())
    plan_transforms(features, TransformOptions(check_media=True), SourceOptions(audio="samples"))
