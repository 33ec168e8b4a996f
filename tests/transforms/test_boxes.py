"""Boxes follow their image to another size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, file_identities
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import apply, plan_transforms, transform_notes
from tests.support.examples import draws
from tests.support.files.image_makers import encoded

IMAGE = make_feature("image", "bytes", media_type="image/*", nullable=True)
COCO = (
    IMAGE,
    make_feature("boxes", "float32", (None,), nullable=True),
    make_feature("box_labels", "int64", (None,), vocabulary=("cat", "dog"), nullable=True),
    make_feature("areas", "float32", (None,), nullable=True),
)
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def run(rows, features=COCO, *, tolerant=False, **options):
    """Returns the rows after the step, rejected rows, and notes."""
    plan = plan_transforms(features, TransformOptions(**options), SourceOptions(tolerates_bad_rows=tolerant))
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(features))
    files = tuple(RawFile(path=f"/{i}", name=f"{i}.img", num_bytes=1, version="") for i in range(len(rows)))
    before = RowBatch(batch, file_identities([f.name for f in files]), np.arange(len(rows), dtype=np.int64))
    after = apply(plan, before, files, InputSplit(index=0, file_start=0, file_stop=len(files))).rows
    after.batch.validate(full=True)
    assert after.batch.schema == arrow_schema(plan.output_features)
    return after.batch.to_pylist(), after.rejected, transform_notes(plan)


def row(image, boxes, areas=()):
    return {"image": image, "boxes": boxes, "box_labels": [0] * (len(boxes or ()) // 4), "areas": list(areas)}


def test_boxes_are_scaled_and_clipped_and_the_size_is_kept():
    wide, small = encoded("RGB", "PNG", (40, 20)), encoded("RGB", "PNG", (4, 10))
    rows, _, notes = run(
        [
            row(wide, [4, 2, 8, 10, -4, 5, 60, 25], [32, 1280]),
            row(small, []),
            row(small, None),
            row(None, [1, 2, 3, 4]),
        ],
        image_size=(10, 10),
    )
    assert [r["boxes"] for r in rows] == [[1, 1, 2, 5, 0, 2.5, 10, 10], [], None, [1, 2, 3, 4]]
    assert [r["areas"] for r in rows] == [[4, 160], [], [], []]
    assert [(r["original_height"], r["original_width"]) for r in rows] == [(20, 40), (10, 4), (10, 4), (None, None)]
    assert any("scaled and clipped" in n for n in notes)


@pytest.mark.parametrize("corners", [CORNERS, ("Left", "Top", "Right", "Bottom"), ("x_min", "y_min", "x_max", "y_max")])
@pytest.mark.parametrize("is_list", [False, True])
def test_whole_numbers_of_a_table_become_fractions(corners, is_list):
    shape = (None,) if is_list else ()
    features = (IMAGE, *(make_feature(n, "int64", shape, nullable=True) for n in corners))
    values = {n: [v] if is_list else v for n, v in zip(corners, (1, 2, 30, 20), strict=True)}
    image = encoded("L", "PNG", (40, 20))
    first, second = run([{"image": image, **values}, {"image": image}], features, image_size=(10, 10))[0]
    found = [first[n] for n in corners]
    assert found == [[v] if is_list else v for v in (0.25, 1, 7.5, 10)]
    assert [second[n] for n in corners] == [None] * 4


def test_columns_that_may_be_places_are_named():
    features = (IMAGE, make_feature("bbox", "float32", (4,)), make_feature("json/keypoints", "float32", (None,)))
    rows, _, notes = run([{"image": None, "bbox": [1, 2, 3, 4], "json/keypoints": []}], features, image_size=(9, 9))
    assert rows == [{"image": None, "bbox": [1, 2, 3, 4], "json/keypoints": []}]
    assert any("leaves bbox, json/keypoints as written" in n for n in notes)
    features = (IMAGE, make_feature("bbox", "string"), *(make_feature(n, "int64") for n in ("x", "y", "width", "z")))
    _, _, notes = run(
        [{"image": None, "bbox": "[1, 2, 3, 4]", "x": 1, "y": 2, "width": 3, "z": 4}], features, image_size=(9, 9)
    )
    assert any("leaves bbox, x, y as written" in n for n in notes)


def turned(orientation, size=(40, 20)):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded("RGB", "JPEG", size, exif=exif)


def test_boxes_of_a_turned_image_are_those_of_the_upright_one_or_refused():
    fits, other = [0, 0, 20, 40], [0, 0, 40, 20]
    (found,), _, _ = run([row(turned(6), fits)], image_size=(10, 10))
    assert found["boxes"] == [0, 0, 10, 10]
    assert (found["original_height"], found["original_width"]) == (40, 20)
    with pytest.raises(BadInputError, match="--keep-exif") as caught:
        run([row(turned(6), other)], image_size=(10, 10))
    assert "they fit 40x20 pixels" in str(caught.value)
    with pytest.raises(BadInputError, match="--keep-exif"):
        run([row(turned(6), other)], image_format="jpeg")
    assert run([row(turned(6), fits)], image_format="jpeg")[0][0]["boxes"] == fits
    rows, rejected, _ = run([row(turned(6), other), row(turned(3), other)], tolerant=True, image_size=(10, 10))
    assert (len(rows), [r.file_index for r in rejected]) == (1, [0])
    (found,), _, _ = run([row(turned(6), other)], image_size=(10, 10), apply_exif=False)
    assert (found["boxes"], found["original_width"]) == ([0, 0, 10, 10], 40)


def test_a_size_that_has_no_place_is_refused():
    with pytest.raises(UsageError, match="--rename original_width"):
        run([], (*COCO, make_feature("original_width", "int64")), image_size=(9, 9))


@settings(max_examples=draws(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=5),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(0, 2**31),
)
def test_boxes_stay_the_same_part_of_their_image(sizes, size, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.random((count, 4)) for _, _, count in sizes]
    given_ = [
        row(encoded("L", "PNG", (width, height)), (part * [width, height, width, height]).reshape(-1).tolist())
        for (width, height, _), part in zip(sizes, parts, strict=True)
    ]
    rows, _, _ = run(given_, image_size=size)
    for found, part in zip(rows, parts, strict=True):
        expected = part * [size[1], size[0], size[1], size[0]]
        assert np.allclose(np.reshape(found["boxes"], (-1, 4)), expected, rtol=1e-5, atol=1e-4)
