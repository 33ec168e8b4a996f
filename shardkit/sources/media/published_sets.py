"""Layouts of single datasets whose labels lie in several forms: Tiny ImageNet and CelebA."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import make_feature
from shardkit.file_types import suffix_of
from shardkit.sources.base import RawFile, place
from shardkit.sources.media.label_tables import LabelTable
from shardkit.sources.media.layout_files import Layout, base_of, stem_of
from shardkit.sources.media.sidecars import text_of

_VALIDATION = "val/val_annotations.txt"
_PARTITIONS = {"0": "train", "1": "validation", "2": "test"}


def find_tiny_imagenet(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of Tiny ImageNet: `train/CLASS/images`, and `val/images` whose classes are in a table."""
    tables = [f for f in rest if f"/{f.name}".endswith(f"/{_VALIDATION}")]
    if len(tables) != 1:
        return None
    root = tables[0].name.removesuffix(_VALIDATION)
    below = [f.name.removeprefix(root).split("/")[:-1] for f in media]
    train = [folders for folders in below if folders[:1] == ["train"]]
    validation = [folders for folders in below if folders[:1] == ["val"]]
    are_known = all(len(folders) == 3 and folders[2] == "images" for folders in train)
    if not (train and validation and are_known and all(folders == ["val", "images"] for folders in validation)):
        return None
    others = tuple(f for f in rest if suffix_of(f.name) == ".txt" and f is not tables[0])
    return Layout("tiny imagenet", "Tiny ImageNet, its boxes left out", tuple(tables), others)


def read_tiny_imagenet(layout: Layout, files: Sequence[str]) -> LabelTable:
    """Returns the classes of the images: their folder in `train`, the second column of the table in `val`.

    Args:
        files: Names of the images.

    Raises:
        BadInputError: If a line of the table holds no name and class.
    """
    (table,) = layout.labels
    root = table.name.removesuffix(_VALIDATION)
    start = f"{root}train/"
    found = {name: name[len(start) :].partition("/")[0] for name in files if name.startswith(start)}
    for number, line in enumerate(text_of(table).splitlines(), start=1):
        words = line.split("\t")
        if line.strip() and len(words) < 2:
            raise BadInputError("a line names no file and class", where=place(table, line=number))
        if line.strip():
            found[f"{root}val/images/{words[0].strip()}"] = words[1].strip()
    classes = tuple(sorted({*found.values()}))
    indices = {name: index for index, name in enumerate(classes)}
    labels = pa.array([indices[name] for name in found.values()], pa.int64())
    return LabelTable(list(found), (make_feature("label", "int64", vocabulary=classes),), {"label": labels})


def find_celeba(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of CelebA: `list_attr_celeba` and `list_eval_partition`, both `.txt` or `.csv`."""
    labels = tuple(f for f in rest if stem_of(f) == "list_attr_celeba" and suffix_of(f.name) in (".txt", ".csv"))
    lists = tuple(f for f in rest if stem_of(f) == "list_eval_partition")
    if len(labels) != 1:
        return None
    # Boxes, points of faces and numbers of persons lie in further tables.
    others = tuple(f for f in rest if f not in (*labels, *lists) and "celeba" in base_of(f).lower())
    return Layout("celeba", "attributes of CelebA", labels, others, lists)


def celeba_splits(lists: Sequence[RawFile]) -> dict[str, list[str]]:
    """Returns the names of the files of each split, by lines such as `000001.jpg 0`.

    Raises:
        BadInputError: If a line has another number than 0, 1 and 2.
    """
    found: dict[str, list[str]] = {}
    for file in lists:
        for number, line in enumerate(text_of(file).splitlines(), start=1):
            words = [word for word in re.split(r"[,\s]+", line.strip()) if word]
            if not words or (number == 1 and words[-1] == "partition"):
                continue
            if len(words) != 2 or words[1] not in _PARTITIONS:
                raise BadInputError("a line names no file and split 0, 1 or 2", where=place(file, line=number))
            found.setdefault(_PARTITIONS[words[1]], []).append(words[0])
    return found
