"""Boxes and captions of COCO: one JSON document of images, annotations and categories.

Format: https://cocodataset.org/#format-data, "Object Detection".
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.messages import shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_stream, read_exactly
from shardkit.sources.media.label_tables import DECLARED_SIZE, LabelTable
from shardkit.units import format_size

_MAX_BYTES = 2 * 1024**3
_KEYS = re.compile(rb'"(images|annotations|categories|info|licenses)"\s*:\s*[\[{]')
_CORRECT = "Correct the labels"
_UNREAD = ("segmentation", "keypoints", "caption")
_LIST = (None,)


class _Image(msgspec.Struct):
    id: int | str
    file_name: str
    width: float | None = None
    height: float | None = None


class _Category(msgspec.Struct):
    id: int
    name: str


class _Annotation(msgspec.Struct):
    image_id: int | str
    category_id: int | None = None
    bbox: tuple[float, float, float, float] | None = None
    area: float | None = None
    iscrowd: int = 0
    caption: str | None = None


class _Document(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category] | None = None


def is_coco(head: bytes) -> bool:
    """Whether a JSON text begins like a COCO document."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{" and _KEYS.search(head) is not None


def read_coco(file: RawFile) -> LabelTable:
    """Returns the boxes of every image, corner by corner in pixels: xmin, ymin, xmax, ymax; or its captions.

    Raises:
        BadInputError: If the file is no COCO document of boxes or captions.
        UsageError: If annotations name images or categories that are not there, or images have the same name.
    """
    with open_stream(file) as stream:
        raw = read_exactly(stream, _MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        why = f"at most {format_size(_MAX_BYTES)} are read"
        raise UsageError(
            "the labels are too large",
            where=place(file),
            why=why,
            next_step="Write them as a Parquet file, a row a file or a box",
        )
    try:
        document = msgspec.json.decode(raw.removeprefix(codecs.BOM_UTF8), type=_Document)
    except DECODE_ERRORS as error:
        raise BadInputError(
            "the file is no COCO document of boxes or captions", where=place(file), why=str(error), next_step=_CORRECT
        ) from error
    unread = [name for name in _UNREAD if f'"{name}"'.encode() in raw]
    del raw
    names = [image.file_name for image in document.images]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise UsageError(f"two images are called {shown(twice)}", where=place(file), next_step=_CORRECT)
    return _table(document, names, file, unread)


def _table(document: _Document, names: list[str], file: RawFile, unread: list[str]) -> LabelTable:
    found = document.annotations
    images = _positions("an image", [a.image_id for a in found], [i.id for i in document.images], file)
    if not found or any(a.caption is None or a.bbox is not None for a in found):
        return _table_of_boxes(document, names, images, file, unread)
    captions = pa.array([found[i].caption for i in np.argsort(images, kind="stable").tolist()], pa.string())
    columns = {"caption": _lists(_offsets(images, names), captions)}
    return LabelTable(names, (make_feature("caption", "string", _LIST),), columns)


def _table_of_boxes(
    document: _Document, names: list[str], images: npt.NDArray[np.int64], file: RawFile, unread: list[str]
) -> LabelTable:
    found = document.annotations
    categories = sorted(document.categories or (), key=lambda c: c.id)
    if document.categories is None:
        what, why = "the file is no COCO document of boxes or captions", "it has no categories, and no captions alone"
        raise BadInputError(what, where=place(file), why=why, next_step=_CORRECT)
    vocabulary = tuple(c.name for c in categories)
    if len(set(vocabulary)) < len(vocabulary):
        twice = next(n for n in vocabulary if vocabulary.count(n) > 1)
        raise UsageError(f"two categories are called {shown(twice)}", where=place(file), next_step=_CORRECT)
    labels = _positions("a category", [a.category_id for a in found], [c.id for c in categories], file)
    without = sum(a.bbox is None for a in found)
    if without:
        why = f"{without:,} of {len(found):,} annotations have no bbox"
        what = "the COCO document holds no boxes" if without == len(found) else "a box is missing"
        step = f"{_CORRECT}; or leave such documents out with --exclude '*.json', which takes class folders as labels"
        raise UsageError(what, where=place(file), why=why, next_step=step)
    order, offsets = np.argsort(images, kind="stable"), _offsets(images, names)
    boxes = np.array([a.bbox for a in found], np.float64).reshape(-1, 4)[order]
    with np.errstate(over="ignore"):
        boxes[:, 2:] += boxes[:, :2]
    if not np.isfinite(boxes).all():
        what = "a box has a corner that is no finite number"
        raise BadInputError(what, where=place(file), next_step=_CORRECT)
    columns = {
        "boxes": _lists(offsets * 4, pa.array(boxes.reshape(-1))),
        "box_labels": _lists(offsets, pa.array(labels[order])),
        "is_crowd": _lists(offsets, pa.array(np.array([a.iscrowd != 0 for a in found], np.bool_)[order])),
        **{name: pa.array(values) for name, values in zip(DECLARED_SIZE, _sizes(document).T, strict=True)},
    }
    features = [
        make_feature("boxes", "float32", _LIST),
        make_feature("box_labels", "int64", _LIST, vocabulary=vocabulary or None),
        make_feature("is_crowd", "bool", _LIST),
    ]
    notes = ["the boxes of COCO become xmin, ymin, xmax, ymax, in pixels, one box after the other"]
    notes += odd_boxes(boxes, _sizes(document)[images[order]])
    areas = [a.area for a in found]
    if found and None not in areas:
        columns["areas"] = _lists(offsets, pa.array(np.array(areas, np.float64)[order]))
        features.append(make_feature("areas", "float32", _LIST))
    elif any(area is not None for area in areas):
        unread = ["area, which not all annotations have", *unread]
    if unread:
        notes.append(f"of the annotations of COCO, this is not read: {', '.join(unread)}")
    return LabelTable(names, tuple(features), columns, tuple(notes))


def _offsets(images: npt.NDArray[np.int64], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Returns where the annotations of each image start, and where the last ones stop."""
    return np.concatenate([[0], np.cumsum(np.bincount(images, minlength=len(names)))]).astype(np.int64)


def _positions(kind: str, wanted: Sequence[object], known: Sequence[object], file: RawFile) -> npt.NDArray[np.int64]:
    by_id = {id_: position for position, id_ in enumerate(known)}
    if len(by_id) < len(known):
        twice = next(id_ for position, id_ in enumerate(known) if by_id[id_] != position)
        what = f"the id {_shown_id(twice)} of {kind} stands twice"
        raise UsageError(what, where=place(file), next_step=_CORRECT)
    positions = np.fromiter((by_id.get(id_, -1) for id_ in wanted), np.int64, len(wanted))
    num_lost = int((positions < 0).sum())
    if num_lost:
        first = wanted[int(np.argmax(positions < 0))]
        raise UsageError(
            f"annotations are of {kind} that is not there",
            where=place(file),
            why=f"{num_lost:,} of {len(wanted):,}, the first with the id {_shown_id(first)}",
            next_step=_CORRECT,
        )
    return positions


def odd_boxes(boxes: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> list[str]:
    """Returns notes on boxes that are taken as they are, though training may not.

    Args:
        boxes: Rows of xmin, ymin, xmax, ymax.
        sizes: Width and height of the image of each; not a number where nothing is said.
    """
    num_flat = int((boxes[:, 2:] <= boxes[:, :2]).any(axis=1).sum())
    num_beyond = int(((boxes < 0).any(axis=1) | (boxes[:, 2:] > sizes).any(axis=1)).sum())
    return [
        f"of {len(boxes):,} boxes, {count:,} {one if count == 1 else many}, taken as written{but}"
        for count, one, many, but in (
            (num_flat, "has no area", "have no area", ""),
            (num_beyond, "reaches beyond its image", "reach beyond their images", "; --image-size clips them"),
        )
        if count
    ]


def _sizes(document: _Document) -> npt.NDArray[np.float64]:
    found = [(i.width or math.nan, i.height or math.nan) for i in document.images]
    return np.array(found, np.float64).reshape(-1, 2)


def _shown_id(id_: object) -> str:
    return shown(id_) if isinstance(id_, str) else str(id_)


def _lists(offsets: npt.NDArray[np.int64], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
