"""Boxes that follow their image to another size: scaled, clipped, and kept beside the size that it had."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.media.image_codec import EncodedImage
from shardkit.sources.media.box_tables import corner_columns
from shardkit.transforms.steps import RowError

ORIGINAL_SIZES = ("original_height", "original_width")

# What each value of a row is multiplied by, over and over: width after by before, height after by before, or both.
_Kind = Literal["corners", "x", "y", "area"]
_AXES: tuple[_Kind, ...] = ("x", "y", "x", "y")
_BOXES = r"b(?:ounding_?)?box(?:es)?|boxes"
_PLACES = re.compile(
    rf"{_BOXES}|key_?points|landmarks|masks?|points|polygons?|segmentation|[xy](?:_?min|_?max|1|2)"
    "|left|top|right|bottom"
)


class Boxes(NamedTuple):
    """Columns of places on an image, in pixels.

    Attributes:
        kinds: What they hold, by position of the column: corners as of COCO and VOC, one coordinate, or areas.
    """

    kinds: dict[int, _Kind]

    def check(self, batch: pa.RecordBatch, row: int, image: EncodedImage) -> None:
        """Checks that boxes of an image that was turned by its EXIF data are not those of the image before that.

        Raises:
            RowError: If they fit that one only.
        """
        if image.orientation < 5:
            return
        height, width = image.original
        edges: dict[str, list[float]] = {"x": [0], "y": [0]}
        for position, kind in self.kinds.items():
            value = batch.column(position)[row].as_py()
            values = [] if value is None else value if isinstance(value, list) else [value]
            if kind == "corners":
                edges["x"] += values[0::2]
                edges["y"] += values[1::2]
            elif kind != "area":
                edges[kind] += values
        right, bottom = max(edges["x"]), max(edges["y"])
        if (right > width + 1 or bottom > height + 1) and right <= height + 1 and bottom <= width + 1:
            why = (
                f"they fit {height}x{width} pixels, and turned upright, as its EXIF data says, it has {width}x{height}"
            )
            raise RowError("the boxes do not fit the image; --keep-exif leaves it as it is stored", why)

    def follow(self, columns: list[pa.Array], images: Sequence[EncodedImage | None]) -> None:
        """Scales and clips the boxes of images that have another size by now; those without an image stay."""
        nothing = EncodedImage(b"", 1, 1, 1, (1, 1), 1)
        sizes = np.array([(i.height, i.width, *i.original) for i in (j or nothing for j in images)], np.float64)
        after, before = sizes.reshape(-1, 4)[:, 1::-1], sizes.reshape(-1, 4)[:, :1:-1]
        limits = np.where(np.array([i is None for i in images])[:, None], np.inf, after)
        factors = after / before
        for position, kind in self.kinds.items():
            columns[position] = _scaled(columns[position], kind, factors, limits)


def find_boxes(features: Features, *, are_labels: bool) -> Boxes:
    """Returns the columns that hold pixels of an image.

    Those are `boxes` beside `box_labels`, as COCO and VOC give them, and `areas` of them; or whole numbers named
    `xmin`, `ymin`, `xmax` and `ymax`, or `left`, `top`, `right` and `bottom`, in letters of either case.

    Args:
        are_labels: Whether they are those of labels beside images; elsewhere `boxes` count where classes have names.
    """
    named = {f.name: (position, f) for position, f in enumerate(features)}
    kinds: dict[int, _Kind] = {}
    if _is_list(named, "boxes", "float32") and _is_list(named, "box_labels", "int64"):
        if are_labels or named["box_labels"][1].vocabulary is not None:
            kinds[named["boxes"][0]] = "corners"
            if _is_list(named, "areas", "float32"):
                kinds[named["areas"][0]] = "area"
    else:
        whole = [f.name for f in features if f.dtype == "int64" and f.shape in ((), (None,))]
        kinds = {named[name][0]: kind for name, kind in zip(corner_columns(whole), _AXES, strict=False)}
    return Boxes(kinds)


def features_with_boxes(features: Features, boxes: Boxes, *, is_nullable: bool) -> Features:
    """Returns the features with boxes that are no whole numbers, and the size that the image had.

    Args:
        is_nullable: Whether a row may lack its image.

    Raises:
        UsageError: If there are columns of that name.
    """
    taken = next((f.name for f in features if f.name in ORIGINAL_SIZES), None)
    if taken is not None:
        raise UsageError(
            f"--image-size keeps the size of images with boxes as {taken}, and there is a column of that name",
            next_step=f"Give it another name, such as --rename {taken}=old_{taken}",
        )
    scaled = (
        msgspec.structs.replace(f, dtype="float32", stored_as="float_list") if i in boxes.kinds else f
        for i, f in enumerate(features)
    )
    return (*scaled, *(make_feature(name, "int64", nullable=is_nullable) for name in ORIGINAL_SIZES))


def box_notes(features: Features, boxes: Boxes) -> tuple[str, ...]:
    """Returns notes on the boxes, and on columns that may be places on an image and stay as they are."""
    names = [re.split(r"[/.]", f.name.lower())[-1] for f in features]
    are_pairs = {"x", "y"} <= set(names)
    rest = [
        f.name
        for i, (f, name) in enumerate(zip(features, names, strict=True))
        if i not in boxes.kinds
        and (_PLACES.fullmatch(name) or (are_pairs and name in ("x", "y")))
        and (f.stored_as != "bytes_list" or (f.dtype == "string" and re.fullmatch(_BOXES, name)))
    ]
    notes = []
    if boxes.kinds:
        notes.append(
            "boxes are scaled and clipped to --image-size, as drawn on the upright image; original_height and "
            "original_width keep the size it had"
        )
    if rest:
        notes.append(
            f"--image-size leaves {', '.join(rest)} as written: pixels no longer fit the images, fractions of a side do"
        )
    return tuple(notes)


def _is_list(named: dict[str, tuple[int, Feature]], name: str, dtype: str) -> bool:
    return name in named and named[name][1].dtype == dtype and named[name][1].shape == (None,)


def _scaled(
    column: pa.Array, kind: _Kind, factors: npt.NDArray[np.float64], limits: npt.NDArray[np.float64]
) -> pa.Array:
    is_list = pa.types.is_list(column.type)
    counts = pc.list_value_length(column).fill_null(0).to_numpy() if is_list else np.ones(len(column), np.int64)
    ends = np.cumsum(counts)
    rows = np.repeat(np.arange(len(column)), counts)
    values = (column.flatten() if is_list else column.fill_null(0)).to_numpy().astype(np.float64)
    if kind == "area":
        made = values * factors[rows].prod(axis=1)
    else:
        first = {"corners": np.arange(len(values)) - np.repeat(ends - counts, counts), "x": 0, "y": 1}[kind]
        axes = np.broadcast_to(first % 2, values.shape)
        made = np.clip(values * factors[rows, axes], 0, limits[rows, axes])
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    if not is_list:
        return pa.array(made.astype(np.float32), mask=nulls)
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(made.astype(np.float32)), mask=pa.array(nulls))
