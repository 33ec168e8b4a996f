"""Boxes of Pascal VOC: a folder of XML files, one an image, called like it.

Format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html. The XML is read strictly: without
document types, and hence without declared entities and fetched files, and within bounds of depth and size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.parsers import expat

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError, UsageError
from shardkit.features import Features, make_feature
from shardkit.messages import shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.whole_files import read_whole_files
from shardkit.sources.media.coco import odd_boxes
from shardkit.sources.media.label_tables import DECLARED_SIZE, Positions
from shardkit.units import MiB, format_size

_MAX_DEPTH = 16
_MAX_BYTES = 16 * MiB
_BATCH_FILES = 1024
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_LIST = (None,)
_UNKNOWN_SIZE = (math.nan, math.nan)


class VocObject(NamedTuple):
    """One object of an image.

    Attributes:
        box: xmin, ymin, xmax, ymax in pixels.
        is_difficult, is_truncated: As marked; False where nothing is said.
        image_size: Width and height of the image, not a number where nothing is said.
    """

    name: str
    box: tuple[float, ...]
    is_difficult: bool
    is_truncated: bool
    image_size: tuple[float, float] = _UNKNOWN_SIZE


class VocLabels:
    """The boxes of a folder of VOC files; read when they are asked for, but for the names of the classes.

    Args:
        vocabulary: Names of the classes; None reads all files for them.

    Raises:
        BadInputError: If a file is no VOC annotation.
    """

    def __init__(self, files: tuple[RawFile, ...], vocabulary: tuple[str, ...] | None = None) -> None:
        self._files = files
        self._odd: list[str] = []
        if vocabulary is None:
            found: set[str] = set()
            boxes: list[npt.NDArray[np.float64]] = []
            sizes: list[npt.NDArray[np.float64]] = []
            for start in range(0, len(files), _BATCH_FILES):
                objects = [o for one in read_voc(files[start : start + _BATCH_FILES]) for o in one]
                found.update(o.name for o in objects)
                boxes.append(np.array([o.box for o in objects], np.float64).reshape(-1, 4))
                sizes.append(np.array([o.image_size for o in objects], np.float64).reshape(-1, 2))
            vocabulary = tuple(sorted(found))
            self._odd = odd_boxes(np.concatenate(boxes), np.concatenate(sizes))
        self._vocabulary = vocabulary

    @property
    def names(self) -> Sequence[str]:
        """Names of the files without their extension, which are those of the images, in the folders where they lie."""
        return [f.name[:-4] if f.name.lower().endswith(".xml") else f.name for f in self._files]

    @property
    def features(self) -> Features:
        """Boxes, their classes, and their marks."""
        return (
            make_feature("boxes", "float32", _LIST),
            make_feature("box_labels", "int64", _LIST, vocabulary=self._vocabulary or None),
            make_feature("is_difficult", "bool", _LIST),
            make_feature("is_truncated", "bool", _LIST),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """How boxes are laid out, and what is not read."""
        return (
            "the boxes of VOC become xmin, ymin, xmax, ymax, in pixels, one box after the other",
            "of VOC, poses, parts and segmentation are not read",
            *self._odd,
        )

    def take(self, positions: Positions) -> dict[str, pa.Array]:
        """Returns the columns of some of the files by their positions; null where that is -1."""
        wanted = [i for i in positions.tolist() if i >= 0]
        rows = iter(read_voc(tuple(self._files[i] for i in wanted)))
        found = [next(rows) if i >= 0 else None for i in positions.tolist()]
        classes = {name: index for index, name in enumerate(self._vocabulary)}

        def column(values: list[list[float] | list[int] | list[bool] | None], type_: pa.DataType) -> pa.Array:
            return pa.array(values, pa.list_(type_))

        return {
            "boxes": column([None if o is None else [x for b in o for x in b.box] for o in found], pa.float64()),
            "box_labels": column([None if o is None else [classes[b.name] for b in o] for o in found], pa.int64()),
            "is_difficult": column([None if o is None else [b.is_difficult for b in o] for o in found], pa.bool_()),
            "is_truncated": column([None if o is None else [b.is_truncated for b in o] for o in found], pa.bool_()),
            **{
                name: pa.array([o[0].image_size[axis] if o else None for o in found], pa.float64())
                for axis, name in enumerate(DECLARED_SIZE)
            },
        }


def read_voc(files: Sequence[RawFile]) -> list[list[VocObject]]:
    """Returns the objects of VOC files.

    Raises:
        BadInputError: If a file is no VOC annotation, or changed since it was listed.
    """
    large = next((f for f in files if f.num_bytes > _MAX_BYTES), None)
    if large is not None:
        raise _bad_annotation(large, f"it has more than {format_size(_MAX_BYTES)}")
    if not files:
        return []
    contents = read_whole_files(files).contents()
    return [parse_voc(bytes(content), file) for content, file in zip(contents, files, strict=True)]


def parse_voc(content: bytes, file: RawFile) -> list[VocObject]:
    """Returns the objects of one annotation. Raises BadInputError if it is no VOC annotation."""
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.buffer_text = True
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, _VocError) as error:
        raise _bad_annotation(file, str(error)) from error
    if reader.root != "annotation":
        raise _bad_annotation(file, f"its root is <{reader.root}>, expected <annotation>")
    size = _size(reader.size)
    return [_object(fields, size, file) for fields in reader.objects]


class _VocError(Exception):
    pass


class _Reader:
    """Gathers the fields of the objects, by the path below <object>."""

    def __init__(self) -> None:
        self.root = ""
        self.objects: list[dict[str, str]] = []
        self.size: dict[str, str] = {}
        self._path: list[str] = []
        self._text = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.root = self.root or name
        self._path.append(name)
        if len(self._path) > _MAX_DEPTH:
            raise _VocError(f"it is nested deeper than {_MAX_DEPTH} levels")
        self._text = ""
        if self._path == ["annotation", "object"]:
            self.objects.append({})

    def end(self, name: str) -> None:
        if self._path[:2] == ["annotation", "object"] and len(self._path) > 2:
            key = "/".join(self._path[2:])
            if key in self.objects[-1] and not key.startswith("part"):
                raise _VocError(f"<{key}> stands twice in an object")
            self.objects[-1][key] = self._text.strip()
        elif self._path[:2] == ["annotation", "size"] and len(self._path) == 3:
            self.size[name] = self._text
        self._path.pop()
        self._text = ""

    def text(self, data: str) -> None:
        self._text += data

    def refuse(self, *_: object) -> None:
        raise _VocError("it declares a document type, which may hide entities")


def _size(fields: dict[str, str]) -> tuple[float, float]:
    # It serves notes alone; tools that do not know it write nothing, or 0.
    try:
        return float(fields["width"]) or math.nan, float(fields["height"]) or math.nan
    except (KeyError, ValueError):
        return _UNKNOWN_SIZE


def _object(fields: dict[str, str], image_size: tuple[float, float], file: RawFile) -> VocObject:
    name = fields.get("name")
    if not name:
        raise _bad_annotation(file, "an object has no <name>")
    corners = []
    for corner in _CORNERS:
        text = fields.get(f"bndbox/{corner}")
        if text is None:
            raise _bad_annotation(file, f"an object has no <{corner}>")
        try:
            # Python takes 1_0 for a number.
            corners.append(float(text.replace("_", " ")))
        except ValueError as error:
            raise _bad_annotation(file, f"<{corner}> of an object holds {shown(text)}, expected a number") from error
    if not all(map(math.isfinite, corners)):
        raise _bad_annotation(file, "a box has a corner that is no finite number")
    is_difficult, is_truncated = _flag(fields, "difficult", file), _flag(fields, "truncated", file)
    return VocObject(name, tuple(corners), is_difficult, is_truncated, image_size)


def _flag(fields: dict[str, str], name: str, file: RawFile) -> bool:
    text = fields.get(name, "0").lower()
    if text in ("0", "", "false", "unspecified"):
        return False
    if text in ("1", "true"):
        return True
    raise _bad_annotation(file, f"<{name}> holds {shown(text)}, expected 0 or 1")


def _bad_annotation(file: RawFile, why: str) -> BadInputError:
    return BadInputError(
        "the file is no Pascal VOC annotation", where=place(file), why=why, next_step="Correct or remove the file"
    )


def voc_files(files: tuple[RawFile, ...], where: str) -> tuple[RawFile, ...]:
    """Returns the XML files among those of a folder.

    Raises:
        UsageError: If there are none, or several are called alike.
    """
    found = tuple(f for f in files if f.name.lower().endswith(".xml"))
    if not found:
        raise UsageError(
            "the labels are several files, but no XML files",
            where=where,
            next_step="Name a folder of Pascal VOC files, or one CSV, JSON Lines or COCO file",
        )
    return found
