"""Boxes in tables: a row a box, as Roboflow writes them, or an object of lists a row, as Hugging Face does."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import Features, make_feature
from shardkit.media.image_codec import ImageError, orientation_of
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.files.streams import open_stream, read_exactly
from shardkit.sources.files.whole_files import read_heads
from shardkit.sources.media.coco import odd_boxes
from shardkit.sources.media.label_tables import DECLARED_SIZE, LabelTable
from shardkit.units import KiB, format_number

OBJECTS = "objects"
"""The field of `metadata.jsonl` that holds the boxes of an image: `bbox` of left, top, width, height, and classes."""

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_CORNER_NAMES = (_CORNERS, ("x_min", "y_min", "x_max", "y_max"), ("left", "top", "right", "bottom"))
_CLASSES = ("categories", "category", "labels", "label")
_MAX_BYTES = 2**30
# EXIF data has a segment of at most 64 KiB, which may stand behind others.
_EXIF_BYTES = 256 * KiB
_NOTE = "the boxes become xmin, ymin, xmax, ymax, in pixels, one box after the other"


def boxes_of(table: LabelTable, file: RawFile) -> LabelTable:
    """Returns the boxes in a table of a row a box: its columns of the class and of the corners, in pixels.

    Raises:
        BadInputError: If a column is missing.
    """
    lists = {name: c if pa.types.is_list(c.type) else _single(c) for name, c in table.columns.items()}
    missing = [name for name in (*_CORNERS, "class") if name not in lists]
    if missing:
        raise BadInputError(
            f"the labels have no column {shown(missing[0])}",
            where=place(file),
            next_step="Write the columns filename, class, xmin, ymin, xmax, ymax, or add --no-labels",
        )
    offsets = lists["class"].offsets.to_numpy()
    corners = np.stack([_floats(lists[name]) for name in _CORNERS], axis=1)
    features, columns = _columns(corners, lists["class"].flatten().cast(pa.string()), offsets)
    for declared, name in zip(DECLARED_SIZE, ("width", "height"), strict=True):
        if name in lists:
            columns[declared] = pa.array(_floats(lists[name])[offsets[:-1]])
    return LabelTable(table.names, features, columns, (_NOTE,))


def with_objects(table: LabelTable, files: Sequence[RawFile]) -> LabelTable:
    """Returns a table of images with the boxes that stand in `objects` of the same lines.

    Raises:
        BadInputError: If an object is none of boxes and as many classes, or two lines name the same file.
    """
    boxes: list[Sequence[float]] = []
    classes: list[Any] = []
    counts = []
    for file in files:
        with open_stream(file) as stream:
            lines = read_exactly(stream, _MAX_BYTES).removeprefix(codecs.BOM_UTF8).split(b"\n")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                found, labels = _objects(msgspec.json.decode(line).get(OBJECTS) or {}, place(file, line=number))
                boxes += found
                classes += labels
                counts.append(len(found))
    if len(counts) != len(table.names):
        why = f"{len(counts)} lines name {len(table.names)} files"
        step = "Write the boxes of an image into one line, or add --no-labels"
        raise BadInputError("several lines hold the objects of a file", where=place(files[0]), why=why, next_step=step)
    corners = np.array(boxes, np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    odd = odd_boxes(corners, np.full((len(corners), 2), np.nan))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    is_text = any(isinstance(label, str) for label in classes)
    labels_array = pa.array(list(map(str, classes)) if is_text else classes, pa.string() if is_text else pa.int64())
    features, columns = _columns(corners, labels_array, offsets)
    return table._replace(
        features=(*table.features, *features), columns={**table.columns, **columns}, notes=(*table.notes, _NOTE, *odd)
    )


def _objects(fields: Any, where: str) -> tuple[list[Sequence[float]], list[Any]]:
    if isinstance(fields, list) and all(isinstance(each, dict) for each in fields):
        # An object a box, in place of a list a key.
        fields = {name: [each.get(name) for each in fields] for each in fields for name in each}
    if not isinstance(fields, dict):
        raise _bad_objects(where, "they are no object of lists, and no list of objects")
    boxes: Any = fields.get("bbox", [])
    classes: Any = next((fields[name] for name in _CLASSES if name in fields), [])
    are_boxes = isinstance(boxes, list) and all(isinstance(b, list) and len(b) == 4 for b in boxes)
    if not are_boxes or not all(isinstance(x, int | float) for box in boxes for x in box):
        raise _bad_objects(where, "bbox is no list of left, top, width and height")
    if not isinstance(classes, list) or len(classes) != len(boxes):
        raise _bad_objects(where, f"{len(boxes)} boxes need as many categories")
    if not all(isinstance(label, str | int) for label in classes):
        raise _bad_objects(where, "a category is neither a number nor a name")
    return boxes, classes


def _bad_objects(where: str, why: str) -> BadInputError:
    step = "Correct it, leave the file out with --exclude GLOB, or add --no-labels"
    return BadInputError("the objects of an image are no boxes", where=where, why=why, next_step=step)


def _columns(
    corners: npt.NDArray[np.float64], classes: pa.Array, offsets: npt.NDArray[np.int32]
) -> tuple[Features, dict[str, pa.Array]]:
    vocabulary: tuple[str, ...] | None = None
    if pa.types.is_string(classes.type):
        coded = classes.dictionary_encode()
        names, order = np.unique(coded.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
        vocabulary, classes = tuple(map(str, names)), pa.array(order[coded.indices.to_numpy()])
    features = (
        make_feature("boxes", "float32", (None,)),
        make_feature("box_labels", "int64", (None,), vocabulary=vocabulary),
    )
    columns = {
        "boxes": pa.ListArray.from_arrays(pa.array(offsets * 4, pa.int32()), pa.array(corners.reshape(-1))),
        "box_labels": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), classes),
    }
    return features, columns


def _floats(column: pa.Array) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = column.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _single(column: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(column) + 1), pa.int32()), column)


def corner_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the columns of a box a row: left, top, right and bottom, in letters of either case; none if they lack."""
    by_word = {name.lower(): name for name in names}
    words = next((words for words in _CORNER_NAMES if by_word.keys() >= set(words)), ())
    return tuple(by_word[word] for word in words)


def turned_note(files: Sequence[RawFile], features: Features) -> tuple[str, ...]:
    """Returns a note on images with boxes that EXIF data turns, among a sample of the files."""
    names = [f.name for f in features]
    if "boxes" not in names and not corner_columns(names):
        return ()
    sample = sample_files(files)
    heads = read_heads(sample, _EXIF_BYTES)
    turned = [file for file, head in zip(sample, heads, strict=True) if _orientation_in(head) > 1]
    if not turned:
        return ()
    more = f" and {len(turned) - 1:,} more" if len(turned) > 1 else ""
    return (
        f"EXIF data turns {printable(turned[0].name)}{more} of {format_number(len(sample), 'image')}: boxes count as "
        "those of the upright image, and tf.io.decode_jpeg gives it as stored; --image-format jpeg stores it upright",
    )


def _orientation_in(head: bytes) -> int:
    try:
        return orientation_of(head)
    except ImageError:
        return 1
