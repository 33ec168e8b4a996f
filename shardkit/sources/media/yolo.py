"""The boxes of YOLO: a text file an image, and files beside them that name classes, keypoints and splits.

Formats: https://docs.ultralytics.com/datasets, "Object Detection", "Instance Segmentation" and "Pose Estimation".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from glob import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.file_types import suffix_of
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.file_globs import glob_in_shell
from shardkit.sources.media.coco import odd_boxes
from shardkit.sources.media.label_tables import LabelTable
from shardkit.sources.media.layouts import CLASS_FILES, image_of
from shardkit.sources.media.sidecars import texts_of
from shardkit.units import format_number

_LIST = (None,)
_WHY_CHARACTERS = 200
_DIGITS = 3
_SPLIT_KEYS = {"train": "train", "val": "validation", "test": "test"}
_BOX_VALUES = 4
# Four corners of a turned box; shorter polygons are like too many keypoints.
_CORNER_VALUES = 8


class _Row(NamedTuple):
    # A line: its class, and the numbers behind it.
    label: int
    values: list[float]


class _Described(NamedTuple):
    # What the files beside the labels tell: names of classes, and how many numbers the keypoints of a box are.
    names: tuple[str, ...]
    num_keypoint_values: int | None


def read_yolo(files: Sequence[RawFile], described: Sequence[RawFile]) -> LabelTable:
    """Returns the boxes of YOLO, as parts of the width and height of the image: xmin, ymin, xmax, ymax.

    Polygons of more than two points become the boxes around them. Keypoints behind a box are left out.

    Args:
        files: A text file an image: lines of a class and the centre and size of a box.
        described: Files that may name the classes and the shape of keypoints.

    Raises:
        BadInputError: If a line is none of a class and a box, or a class has no name.
        UsageError: If most boxes lie beyond the images, the files name different classes, or lines may hold polygons or
            boxes with keypoints.
    """
    names, num_values = _description(described)
    rows = [
        [_row(line, file, n, names, num_values) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
        for file, text in zip(files, texts_of(files), strict=True)
    ]
    further = [row.values for found in rows for row in found if len(row.values) > _BOX_VALUES + 1]
    if num_values is None:
        _check_no_keypoints(further, files[0])
    boxes = [[x for row in found for x in _corners(row.values, bool(num_values))] for found in rows]
    labels = [[row.label for row in found] for found in rows]
    features = (
        make_feature("boxes", "float32", _LIST),
        make_feature("box_labels", "int64", _LIST, vocabulary=names or None),
    )
    columns = {"boxes": pa.array(boxes, pa.list_(pa.float64())), "box_labels": pa.array(labels, pa.list_(pa.int64()))}
    notes = ["the boxes of YOLO become xmin, ymin, xmax, ymax, in pixels, one box after the other"]
    if further and num_values:
        notes.append("of the boxes of YOLO, this is not read: keypoints")
    elif further:
        notes.append(f"{format_number(len(further), 'polygon')} of YOLO read as the box around it")
    if any(len(row.values) == _BOX_VALUES + 1 for found in rows for row in found):
        notes.append("of the boxes of YOLO, this is not read: a number behind the box")
    _check_no_pixels(boxes, files[0])
    # Parts of an image are rounded.
    corners = np.round(np.array([x for found in boxes for x in found], np.float64).reshape(-1, 4), _DIGITS)
    notes += odd_boxes(corners, np.ones((len(corners), 2)))
    return LabelTable([image_of(f.name) for f in files], features, columns, tuple(notes), is_relative=True)


def _check_no_pixels(boxes: Sequence[Sequence[float]], file: RawFile) -> None:
    corners = np.array([x for found in boxes for x in found], np.float64).reshape(-1, 4)
    # A centre beyond the image may be a wrong box.
    are_beyond = (corners[:, :2] + corners[:, 2:]).max(axis=1, initial=0) / 2 > 1
    if 2 * are_beyond.sum() > len(corners):
        raise UsageError(
            "the boxes of YOLO are no parts of an image",
            where=place(file),
            why=f"{are_beyond.sum():,} of {len(corners):,} centres are beyond 1, as if they were pixels",
            next_step="Divide them by the width and height of their image, or add --no-labels",
        )


def _row(line: str, file: RawFile, number: int, names: Sequence[str], num_values: int | None) -> _Row:
    try:
        label, *values = (float(word) for word in line.split())
    except ValueError:
        label, values = math.nan, []
    # A box may have a confidence behind it.
    is_long = len(values) > _BOX_VALUES + 1
    is_wrong = len(values) != _BOX_VALUES + num_values if num_values else len(values) % 2
    if len(values) < _BOX_VALUES or (is_long and is_wrong) or not all(map(math.isfinite, (label, *values))):
        more = f", and {num_values} numbers of keypoints" if num_values else ""
        raise BadInputError(
            "a line is no class and box of YOLO",
            where=place(file, line=number),
            why=f"it is {shown(line[:60])}, expected a class, and the centre, width and height of a box{more}",
            next_step="Correct it, or read the files without labels with --no-labels",
        )
    if label != int(label) or label < 0 or (names and label >= len(names)):
        raise BadInputError(
            f"the class {label:g} has no name",
            where=place(file, line=number),
            why=f"{len(names)} classes are named" if names else "it is no whole number from 0 on",
            next_step="Correct it, or the names of the classes",
        )
    return _Row(int(label), values)


def _corners(values: Sequence[float], has_keypoints: bool) -> list[float]:
    if len(values) > _BOX_VALUES + 1 and not has_keypoints:
        xs, ys = values[::2], values[1::2]
        return [min(xs), min(ys), max(xs), max(ys)]
    x, y, width, height = values[:_BOX_VALUES]
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


def _check_no_keypoints(further: Sequence[Sequence[float]], file: RawFile) -> None:
    """Checks that lines of one length are no boxes with keypoints: with these a box encloses the points behind it."""
    lengths = {len(values) for values in further}
    if len(lengths) != 1 or (length := lengths.pop()) <= _CORNER_VALUES:
        return
    values = np.array(further, np.float64)
    for size in (3, 2):
        if (length - _BOX_VALUES) % size == 0 and _encloses(values, size):
            shape = f"kpt_shape: [{(length - _BOX_VALUES) // size}, {size}]"
            raise UsageError(
                "the labels of YOLO may be polygons, or boxes with keypoints",
                where=place(file),
                why=f"all lines of more than a box have {length} numbers, and no data.yaml tells kpt_shape",
                next_step=f"Write {shape} into data.yaml beside the images if these are boxes with keypoints, "
                "kpt_shape: [0, 2] if they are polygons, or add --no-labels",
            )


def _encloses(values: npt.NDArray[np.float64], size: int) -> bool:
    points = values[:, _BOX_VALUES:].reshape(len(values), -1, size)[:, :, :2]
    distances = np.abs(points - values[:, None, :2])
    # Points that are not visible are zeros.
    is_inside = (distances <= values[:, None, 2:4] / 2 + 10**-_DIGITS).all(axis=2) | (points == 0).all(axis=2)
    return bool(is_inside.all())


def _description(described: Sequence[RawFile]) -> _Described:
    found: list[tuple[RawFile, tuple[str, ...]]] = []
    shapes: dict[int, RawFile] = {}
    for file, document in _documents(described):
        if names := _names_in(document, file):
            found.append((file, names))
        if (number := _num_keypoint_values(document, file)) is not None:
            shapes.setdefault(number, file)
    lists = [file for file in described if file.name.rpartition("/")[2] in CLASS_FILES]
    for file, text in zip(lists, texts_of(lists), strict=True):
        if names := tuple(line.strip() for line in text.split("\n") if line.strip()):
            found.append((file, names))
    for file, names in found:
        # A tool that labels folders one by one lists the classes that it has met.
        _check_same(found[0], (file, names), "classes", names[: len(found[0][1])] == found[0][1][: len(names)])
    for number, file in shapes.items():
        first = next(iter(shapes))
        _check_same((shapes[first], first), (file, number), "keypoints", number == first)
    return _Described(max((names for _, names in found), key=len, default=()), next(iter(shapes), None))


def _check_same(first: tuple[RawFile, object], other: tuple[RawFile, object], what: str, is_same: bool) -> None:
    if is_same:
        return
    folder, other_folder = (file.name.rpartition("/")[0] for file, _ in (first, other))
    wanted = glob_in_shell(f"{escape(folder)}/*")
    are_apart = folder and other_folder and f"{folder}/" not in f"{other_folder}/" and folder != other_folder
    alone = f"convert one folder alone with --include {wanted}"
    left_out = f"leave the wrong one out with --exclude {glob_in_shell(escape(other[0].name))}"
    raise UsageError(
        f"files of YOLO differ in their {what}",
        where=f"{place(first[0])} and {place(other[0])}",
        next_step=f"Write the same {what} into all, or {alone if are_apart else left_out}",
    )


def yolo_splits(described: Sequence[RawFile], media: Sequence[RawFile]) -> dict[str, list[str]]:
    """Returns the names of the files of each split, as `train`, `val` and `test` of data.yaml name their folders.

    Args:
        described: Files that may be such ones.
        media: All files that are a row each.

    Raises:
        BadInputError: If one is no YAML.
        UsageError: If two of them give a folder to different splits.
    """
    around = {parent for file in media for parent in _parents(file.name)}
    by_folder: dict[str, tuple[str, RawFile]] = {}
    for file, document in _documents(described):
        own: dict[str, tuple[str, RawFile]] = {}
        for key, split in _SPLIT_KEYS.items():
            named = document.get(key)
            for text in named if isinstance(named, list) else [named]:
                if isinstance(text, str) and (folder := _folder_named(text, file, around)) is not None:
                    # Examples name one folder for training and validation.
                    own.setdefault(folder, (split, file))
        for folder, (split, _) in own.items():
            known, first = by_folder.setdefault(folder, (split, file))
            if known != split:
                raise UsageError(
                    f"{printable(folder)} is in the splits {known} and {split}",
                    where=f"{place(first)} and {place(file)}",
                    next_step=f"Leave one of them out with --exclude {glob_in_shell(escape(file.name))}",
                )
    found: dict[str, list[str]] = {}
    for image in media:
        folder = next((parent for parent in _parents(image.name) if parent in by_folder), None)
        if folder is not None:
            found.setdefault(by_folder[folder][0], []).append(image.name)
    return found


def _folder_named(text: str, file: RawFile, around: set[str]) -> str | None:
    """Returns the folder that a path means: below that of its file, without what of its start is not there."""
    root = file.name.rpartition("/")[0]
    parts = [part for part in text.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    tails = ("/".join([*([root] if root else []), *parts[start:]]) for start in range(len(parts)))
    return next((tail for tail in tails if tail in around), None)


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[:level]) for level in range(len(parts), 0, -1)]


def _documents(described: Sequence[RawFile]) -> Iterator[tuple[RawFile, Mapping[str, Any]]]:
    """Yields the files of YAML that hold an object, each with it."""
    files = [file for file in described if suffix_of(file.name) in (".yaml", ".yml")]
    if not files:
        return
    # It takes 20 ms to import, and most images have no YAML beside them.
    import yaml

    for file, text in zip(files, texts_of(files), strict=True):
        try:
            document = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            why = " ".join(str(error).split())[:_WHY_CHARACTERS]
            raise BadInputError("a file is no YAML", where=place(file), why=why, next_step="Correct it") from error
        if isinstance(document, dict):
            yield file, document


def _names_in(document: Mapping[str, Any], file: RawFile) -> tuple[str, ...]:
    names = document.get("names")
    if names is None:
        return ()
    by_index = names if isinstance(names, dict) else dict(enumerate(names if isinstance(names, list) else []))
    wanted = list(range(len(by_index)))
    listed = [str(by_index.get(i)) for i in wanted]
    if not listed or set(by_index) != set(wanted) or len(set(listed)) < len(listed):
        raise BadInputError(
            "the classes of YOLO are not named from 0 on, each once",
            where=place(file),
            next_step="Write them like names: [cat, dog]",
        )
    return tuple(listed)


def _num_keypoint_values(document: Mapping[str, Any], file: RawFile) -> int | None:
    match document.get("kpt_shape"):
        case None:
            return None
        case [int(number), (2 | 3) as size] if number >= 0:
            return number * int(size)
    raise BadInputError(
        "kpt_shape of YOLO is no number of keypoints and 2 or 3",
        where=place(file),
        next_step="Write it like kpt_shape: [17, 3]",
    )
