"""Labels of files of their own: captions, transcripts, and the boxes of YOLO."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import make_feature
from shardkit.file_types import suffix_of
from shardkit.messages import shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.whole_files import read_whole_files
from shardkit.sources.media.coco import odd_boxes
from shardkit.sources.media.label_tables import LabelTable
from shardkit.sources.media.layouts import CLASS_FILES, image_of
from shardkit.units import MiB, format_number, format_size

_MAX_BYTES = 16 * MiB
_BATCH_FILES = 1024
_LIST = (None,)
_WHY_CHARACTERS = 200
_DIGITS = 3


def read_texts(files: Sequence[RawFile], column: str) -> LabelTable:
    """Returns the text of each file, without the blanks around it, under the name of the file without its extension.

    Raises:
        BadInputError: If a file is too large or not UTF-8.
    """
    texts = [text.strip() for text in _texts(files)]
    names = [file.name.rpartition(".")[0] for file in files]
    return LabelTable(names, (make_feature(column, "string"),), {column: pa.array(texts, pa.string())})


def read_transcripts(files: Sequence[RawFile]) -> LabelTable:
    """Returns the transcripts of LibriSpeech: lines of an utterance and its words, for the files of the same folder.

    Raises:
        BadInputError: If a file is too large or not UTF-8, or a line has no words.
    """
    names, texts = [], []
    for file, text in zip(files, _texts(files), strict=True):
        folder, slash, _ = file.name.rpartition("/")
        for number, line in enumerate(text.split("\n"), start=1):
            utterance, _, words = line.strip().partition(" ")
            if not utterance:
                continue
            if not words:
                raise BadInputError(
                    "a transcript has no words",
                    where=place(file, line=number),
                    next_step="Write it like 84-121123-0000 THE WORDS",
                )
            names.append(f"{folder}{slash}{utterance}")
            texts.append(words.strip())
    return LabelTable(names, (make_feature("transcript", "string"),), {"transcript": pa.array(texts, pa.string())})


def read_yolo(files: Sequence[RawFile], described: Sequence[RawFile]) -> LabelTable:
    """Returns the boxes of YOLO, as parts of the width and height of the image: xmin, ymin, xmax, ymax.

    Polygons of more than two points become the boxes around them.

    Args:
        files: A text file an image: lines of a class and the centre and size of a box.
        described: Files that may name the classes.

    Raises:
        BadInputError: If a line is none of a class and a box, or a class has no name.
    """
    names = _class_names(described)
    labels: list[list[int]] = []
    boxes: list[list[float]] = []
    num_polygons = 0
    for file, text in zip(files, _texts(files), strict=True):
        found = [_yolo_line(line, file, n, names) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
        labels.append([label for label, _, _ in found])
        boxes.append([x for _, corners, _ in found for x in corners])
        num_polygons += sum(is_polygon for _, _, is_polygon in found)
    features = (
        make_feature("boxes", "float32", _LIST),
        make_feature("box_labels", "int64", _LIST, vocabulary=names or None),
    )
    columns = {"boxes": pa.array(boxes, pa.list_(pa.float64())), "box_labels": pa.array(labels, pa.list_(pa.int64()))}
    notes = ["the boxes of YOLO are read as xmin, ymin, xmax, ymax, in pixels, one box after the other"]
    if num_polygons:
        notes.append(f"{format_number(num_polygons, 'polygon')} of YOLO read as the box around it")
    # Parts of an image are rounded.
    corners = np.round(np.array([x for found in boxes for x in found], np.float64).reshape(-1, 4), _DIGITS)
    notes += odd_boxes(corners, np.ones((len(corners), 2)))
    return LabelTable([image_of(f.name) for f in files], features, columns, tuple(notes), is_relative=True)


def _yolo_line(line: str, file: RawFile, number: int, names: Sequence[str]) -> tuple[int, list[float], bool]:
    try:
        label, *values = (float(word) for word in line.split())
    except ValueError:
        label, values = math.nan, []
    if len(values) < 4 or (len(values) > 5 and len(values) % 2) or not all(map(math.isfinite, (label, *values))):
        raise BadInputError(
            "a line is no class and box of YOLO",
            where=place(file, line=number),
            why=f"it is {shown(line[:60])}, expected a class, and the centre, width and height of a box",
            next_step="Correct it, or read the files without labels with --no-labels",
        )
    if label != int(label) or label < 0 or (names and label >= len(names)):
        raise BadInputError(
            f"the class {label:g} has no name",
            where=place(file, line=number),
            why=f"{len(names)} classes are named" if names else "it is no whole number from 0 on",
            next_step="Correct it, or the names of the classes",
        )
    if len(values) > 5:
        xs, ys = values[::2], values[1::2]
        return int(label), [min(xs), min(ys), max(xs), max(ys)], True
    x, y, width, height = values[:4]
    return int(label), [x - width / 2, y - height / 2, x + width / 2, y + height / 2], False


def _class_names(described: Sequence[RawFile]) -> tuple[str, ...]:
    documents = [file for file in described if _is_yaml(file)]
    for file, text in zip(documents, _texts(documents), strict=True):
        if found := _names_in_yaml(text, file):
            return found
    lists = [file for file in described if file.name.rpartition("/")[2] in CLASS_FILES][:1]
    return tuple(line.strip() for text in _texts(lists) for line in text.split("\n") if line.strip())


def _is_yaml(file: RawFile) -> bool:
    return suffix_of(file.name) in (".yaml", ".yml")


def _names_in_yaml(text: str, file: RawFile) -> tuple[str, ...]:
    # It takes 20 ms to import, and most images have no YAML beside them.
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:_WHY_CHARACTERS]
        raise BadInputError("a file is no YAML", where=place(file), why=why, next_step="Correct it") from error
    names = document.get("names") if isinstance(document, dict) else None
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


def _texts(files: Sequence[RawFile]) -> list[str]:
    large = next((f for f in files if f.num_bytes > _MAX_BYTES), None)
    if large is not None:
        why = f"it has more than {format_size(_MAX_BYTES)}"
        raise BadInputError("a file of labels is too large", where=place(large), why=why, next_step="Remove the file")
    texts: list[str] = []
    for start in range(0, len(files), _BATCH_FILES):
        batch = files[start : start + _BATCH_FILES]
        texts += map(decoded, read_whole_files(batch).contents(), batch)
    return texts


def decoded(content: bytes | memoryview, file: RawFile) -> str:
    """Returns the text of a file of labels.

    Raises:
        BadInputError: If it is not UTF-8.
    """
    try:
        return str(content, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a file of labels is not UTF-8", where=place(file), why=str(error), next_step="Write it as UTF-8"
        ) from error
