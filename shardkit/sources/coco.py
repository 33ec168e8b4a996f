"""Boxes of COCO: one JSON document of images, annotations and categories.

Format: https://cocodataset.org/#format-data, "Object Detection".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.sources.base import RawFile
from shardkit.sources.label_tables import LabelTable
from shardkit.sources.streams import open_stored, place, read_exactly, shown
from shardkit.units import format_size

_MAX_BYTES = 2 * 1024**3
_KEYS = re.compile(rb'"(images|annotations|categories|info|licenses)"\s*:\s*[\[{]')
_UNREAD = ("segmentation", "keypoints", "caption")
_LIST = (None,)


class _Image(msgspec.Struct):
    id: int | str
    file_name: str


class _Category(msgspec.Struct):
    id: int
    name: str


class _Annotation(msgspec.Struct):
    image_id: int | str
    category_id: int | None = None
    bbox: tuple[float, float, float, float] | None = None
    area: float | None = None
    iscrowd: int = 0


class _Document(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def is_coco(head: bytes) -> bool:
    """Whether a JSON text begins like a COCO document."""
    return head.lstrip()[:1] == b"{" and _KEYS.search(head) is not None


def read_coco(file: RawFile) -> LabelTable:
    """Returns the boxes of every image, corner by corner in pixels: xmin, ymin, xmax, ymax.

    Raises:
        BadInputError: If the file is no COCO document of boxes.
        UsageError: If annotations name images or categories that are not there, or images have the same name.
    """
    if file.num_bytes > _MAX_BYTES:
        why = f"it has {format_size(file.num_bytes)}, at most {format_size(_MAX_BYTES)} are read"
        raise UsageError("the labels are too large", where=place(file), why=why)
    with open_stored(file) as stored:
        raw = read_exactly(stored, file.num_bytes + 1)
    try:
        document = msgspec.json.decode(raw, type=_Document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadInputError("the file is no COCO document", where=place(file), why=str(error)) from error
    unread = [name for name in _UNREAD if f'"{name}"'.encode() in raw]
    del raw
    names = [image.file_name for image in document.images]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise UsageError(f"two images are called {shown(twice)}", where=place(file))
    return _table(document, names, file, unread)


def _table(document: _Document, names: list[str], file: RawFile, unread: list[str]) -> LabelTable:
    categories = sorted(document.categories, key=lambda c: c.id)
    vocabulary = tuple(c.name for c in categories)
    if len(set(vocabulary)) < len(vocabulary):
        twice = next(n for n in vocabulary if vocabulary.count(n) > 1)
        raise UsageError(f"two categories are called {shown(twice)}", where=place(file))
    found = document.annotations
    images = _positions("an image", [a.image_id for a in found], [i.id for i in document.images], file)
    labels = _positions("a category", [a.category_id for a in found], [c.id for c in categories], file)
    without = sum(a.bbox is None for a in found)
    if without:
        why = f"{without:,} of {len(found):,} annotations have no bbox"
        raise UsageError("the COCO document holds no boxes", where=place(file), why=why)
    order = np.argsort(images, kind="stable")
    boxes = np.array([a.bbox for a in found], np.float64).reshape(-1, 4)[order]
    boxes[:, 2:] += boxes[:, :2]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(images, minlength=len(names)))]).astype(np.int64)
    columns = {
        "boxes": _lists(offsets * 4, pa.array(boxes.reshape(-1))),
        "box_labels": _lists(offsets, pa.array(labels[order])),
        "is_crowd": _lists(offsets, pa.array(np.array([a.iscrowd != 0 for a in found], np.bool_)[order])),
    }
    features = [
        make_feature("boxes", "float32", _LIST),
        make_feature("box_labels", "int64", _LIST, vocabulary=vocabulary or None),
        make_feature("is_crowd", "bool", _LIST),
    ]
    notes = ["the boxes of COCO are read as xmin, ymin, xmax, ymax, in pixels, one box after the other"]
    areas = [a.area for a in found]
    if found and None not in areas:
        columns["areas"] = _lists(offsets, pa.array(np.array(areas, np.float64)[order]))
        features.append(make_feature("areas", "float32", _LIST))
    elif any(area is not None for area in areas):
        unread = ["area, which not all annotations have", *unread]
    if unread:
        notes.append(f"of the annotations of COCO, this is not read: {', '.join(unread)}")
    return LabelTable(names, tuple(features), columns, tuple(notes))


def _positions(kind: str, wanted: Sequence[object], known: Sequence[object], file: RawFile) -> npt.NDArray[np.int64]:
    by_id = {id_: position for position, id_ in enumerate(known)}
    if len(by_id) < len(known):
        raise UsageError(f"the id of {kind} stands twice", where=place(file))
    positions = np.fromiter((by_id.get(id_, -1) for id_ in wanted), np.int64, len(wanted))
    num_lost = int((positions < 0).sum())
    if num_lost:
        first = wanted[int(np.argmax(positions < 0))]
        raise UsageError(
            f"annotations are of {kind} that is not there",
            where=place(file),
            why=f"{num_lost:,} of {len(wanted):,}, the first with the id {first!r}",
        )
    return positions


def _lists(offsets: npt.NDArray[np.int64], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
