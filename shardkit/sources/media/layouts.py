"""Layouts: which files beside images and sounds hold their labels, by the names of all files.

Sources: the folders of Hugging Face `datasets`, Pascal VOC, COCO, YOLO of Ultralytics, CSV of Roboflow, those of
sounds in `sound_layouts`, and tables in `table_layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from shardkit.errors import UsageError
from shardkit.file_types import HEAD_BYTES, has_image_suffix, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.files.streams import read_head
from shardkit.sources.formats import FORMATS
from shardkit.sources.inventory import is_companion_file
from shardkit.sources.media.coco import is_coco
from shardkit.sources.media.layout_files import Layout, base_of, folders_of, is_media_name, stem_of
from shardkit.sources.media.published_sets import find_celeba, find_tiny_imagenet
from shardkit.sources.media.sound_layouts import (
    find_common_voice,
    find_fleurs,
    find_libritts,
    find_ljspeech,
    find_mls,
    find_transcript_lists,
    find_transcripts,
    find_transcripts_apart,
)
from shardkit.sources.media.table_layouts import (
    find_kaggle,
    find_split_tables,
    find_table_a_folder,
    in_folders,
    names_files,
)
from shardkit.sources.split_lists import TRAINVAL, split_of_list
from shardkit.sources.split_names import splits_in_names
from shardkit.sources.split_words import split_in_name

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
_FEW = 5
_MANY = 16
_BOX = re.compile(rb"\d+( [01](\.\d+)?){4,}")
CLASS_FILES = frozenset({"classes.txt", "obj.names", "labels.txt"})
"""What YOLO calls a file of the names of classes, a line each."""

_YOLO_OTHERS = (".yaml", ".yml", ".data", ".cfg", ".cache")
_SIDECARS = (".txt", ".caption", ".lab", ".json")
_FOREIGN_FORMS = (
    ("LabelMe", ".json", re.compile(rb'"shapes"\s*:\s*\[')),
    ("CreateML", ".json", re.compile(rb'"annotations"\s*:\s*\[\s*\{[^\]]*"coordinates"\s*:\s*\{')),
    ("Supervisely", ".json", re.compile(rb'"size"\s*:\s*\{[^}]*\}\s*,\s*"objects"\s*:\s*\[|"classTitle"\s*:')),
    ("CVAT", ".xml", re.compile(rb"<annotations>\s*<version>")),
)
_VOC = re.compile(rb"<annotation[\s>]")
_NOTES = "notes.json"
_MASKS = ("SegmentationClass", "SegmentationObject")


def is_unread(layout: Layout, file: RawFile) -> bool:
    """Whether another file of a layout might hold labels too: a table, or a document of COCO."""
    if layout.kind == "coco":
        return suffix_of(file.name) == ".json" and is_coco(read_head(file, HEAD_BYTES))
    if layout.kind == "celeba":
        return True
    return layout.kind in ("table", "split tables", "common voice") and suffix_of(file.name) in _TABLES


def find_layout(files: Sequence[RawFile], *, joins_forms: bool = False) -> Layout | None:
    """Returns the layout of the files, None if no labels lie beside them.

    Args:
        joins_forms: Whether labels in several forms are one layout, which no reader reads.

    Raises:
        UsageError: If labels lie there in several forms.
        BadInputError, StorageError: If the first bytes of a file cannot be read.
    """
    media = [file for file in files if is_media_name(file.name)]
    rest = [file for file in files if not is_media_name(file.name)]
    if not media or not rest:
        return None
    found = [layout for find in _FORMS if (layout := find(media, rest)) is not None]
    if not found:
        return find_split_tables(media, rest) or find_table_a_folder(media, rest) or _sidecars(media, rest)
    if len(found) > 1 and joins_forms:
        labels = (f for layout in found for f in (*layout.labels, *layout.others, *layout.lists))
        return Layout("", " and ".join(layout.title for layout in found), tuple(labels))
    if not found[0].kind and not joins_forms:
        raise UsageError(
            f"labels of {found[0].title} are not read",
            where=printable(found[0].labels[0].name),
            next_step="Write them as COCO, Pascal VOC or YOLO, as tools for labels export them, or add --no-labels to "
            "take the files alone",
        )
    if len(found) > 1:
        forms = ", ".join(f"{layout.title} ({printable(layout.labels[0].name)})" for layout in found)
        raise UsageError(
            "labels lie beside the files in several forms",
            why=forms,
            next_step="Leave one of them out with --exclude GLOB, name the labels with --labels, or add --no-labels",
        )
    return found[0]


def _metadata(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    labels = [f for f in rest if base_of(f) in [f"metadata{suffix}" for suffix in _TABLES]]
    if len({suffix_of(f.name) for f in labels}) != 1 or not all(map(names_files, labels)):
        return None
    return in_folders("folder table", f"a {base_of(labels[0])} beside the files", labels)


def _box_tables(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    labels = [f for f in rest if base_of(f) == "_annotations.csv"]
    return in_folders("box table", "an _annotations.csv beside the files", labels) if labels else None


def _foreign(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    for title, suffix, sign in _FOREIGN_FORMS:
        alike = tuple(f for f in rest if suffix_of(f.name) == suffix)
        if any(sign.search(read_head(f, HEAD_BYTES)) for f in alike[:_FEW]):
            return Layout("", title, alike)
    return None


def _voc(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    stems = {stem_of(f) for f in media}
    labels = [f for f in rest if suffix_of(f.name) == ".xml"]
    if not labels:
        # Those of Stanford Dogs have no extension.
        labels = [f for f in rest if "." not in base_of(f) and base_of(f) in stems]
        labels = labels if all(_VOC.search(read_head(f, HEAD_BYTES)) for f in labels[:_FEW]) else []
    if not any(stem_of(f) in stems for f in labels):
        return None
    sets = [f for f in rest if "ImageSets" in folders_of(f)]
    # A list of one class is called such as dog_train.txt.
    main = [f for f in sets if "Main" in folders_of(f) and "_" not in base_of(f)]
    lists = [f for f in main if split_of_list(f) is not None]
    if {"train", "validation"} <= {split_of_list(f) for f in lists if stem_of(f) != TRAINVAL}:
        lists = [f for f in lists if stem_of(f) != TRAINVAL]
    masks = [f for f in media if any(name in folders_of(f) for name in _MASKS)]
    return Layout("voc", "Pascal VOC", tuple(labels), (*sets, *masks), tuple(lists))


def _coco(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    found = _coco_documents(rest)
    # COCO itself has captions and keypoints of the same images beside the boxes.
    boxes = [f for f in found if base_of(f).startswith("instances")] or [f for f in found if not _has_captions(f)]
    return _layout_of_coco("COCO", media, rest, found, boxes) if boxes else None


def _coco_captions(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    found = _coco_documents(rest)
    labels = [f for f in found if _has_captions(f)]
    has_boxes = any(base_of(f).startswith("instances") for f in found)
    return _layout_of_coco("captions of COCO", media, rest, found, labels) if labels and not has_boxes else None


def _coco_documents(rest: Sequence[RawFile]) -> list[RawFile]:
    # Label Studio writes notes.json beside YOLO.
    documents = [f for f in rest if suffix_of(f.name) == ".json" and base_of(f) != _NOTES]
    # Beside many images each may have a document, and their names tell.
    named = documents if len(documents) <= _MANY else [f for f in documents if _is_named_like_coco(f)]
    return [f for f in named if is_coco(read_head(f, HEAD_BYTES))]


def _layout_of_coco(
    title: str,
    media: Sequence[RawFile],
    rest: Sequence[RawFile],
    found: Sequence[RawFile],
    labels: Sequence[RawFile],
) -> Layout:
    documents = [f for f in rest if suffix_of(f.name) == ".json"]
    others = tuple(f for f in documents if f not in labels and (f in found or _is_named_like_coco(f)))
    return Layout("coco", title, tuple(labels), others, folders=_coco_folders(media, labels))


def _has_captions(file: RawFile) -> bool:
    return "captions" in base_of(file)


def _coco_folders(media: Sequence[RawFile], labels: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the folder of the images of each document, where all tell it by their own folder or by their name."""
    folders = {f.name.rpartition("/")[0] for f in media}
    by_last_part = {folder.rpartition("/")[2]: folder for folder in sorted(folders, reverse=True)}
    found = []
    for file in labels:
        own = file.name.rpartition("/")[0]
        # Such as train2017 of instances_train2017.json.
        name = stem_of(file).rpartition("_")[2]
        found.append(own if own and own in folders else by_last_part.get(name))
    return tuple(map(str, found)) if None not in found and len(set(found)) == len(found) > 1 else ()


def _yolo(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    described = [f for f in rest if suffix_of(f.name) in _YOLO_OTHERS or base_of(f) in (*CLASS_FILES, _NOTES)]
    texts = [f for f in rest if suffix_of(f.name) == ".txt" and f not in described]
    if not texts:
        return None
    images = {f.name.rpartition(".")[0] for f in media if has_image_suffix(f.name)}
    labels = tuple(f for f in texts if image_of(f.name) in images)
    is_apart = any("labels" in folders_of(f) for f in labels)
    if not labels or not (described or is_apart or all(map(_holds_boxes, labels[:_FEW]))):
        return None
    lists = tuple(f for f in texts if f not in labels and split_in_name(base_of(f)) is not None)
    if splits_in_names(media):
        return Layout("yolo", "YOLO", labels, (*described, *lists))
    return Layout("yolo", "YOLO", labels, tuple(described), lists)


def _sidecars(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    data = [f for f in rest if not is_companion_file(f.name)]
    stems = {f.name.rpartition(".")[0] for f in media} if data else set()
    is_seen = has_image_suffix(media[0].name) or suffix_of(media[0].name) in FORMATS["video"].suffixes
    by_suffix = {suffix: tuple(f for f in data if suffix_of(f.name) == suffix) for suffix in _SIDECARS}
    whole = {
        suffix: alike
        for suffix, alike in by_suffix.items()
        if alike and all(f.name.rpartition(".")[0] in stems for f in alike)
    }
    if len(whole) > 1:
        ways = " or ".join(f"--exclude '*{suffix}'" for suffix in whole)
        raise UsageError(
            "labels lie beside the files in several forms",
            why=" and ".join(printable(alike[0].name) for alike in whole.values()),
            next_step=f"Leave one of them out with {ways}, or add --no-labels",
        )
    for suffix, alike in whole.items():
        kind = "fields" if suffix == ".json" else "captions" if is_seen else "spoken"
        return Layout(kind, f"a {suffix} beside each file", alike)
    is_sound = suffix_of(media[0].name) in FORMATS["audio"].suffixes
    if not data or not is_sound:
        return None
    return find_transcripts_apart(media, data) or find_transcript_lists(media, data)


_FORMS: tuple[Callable[[Sequence[RawFile], Sequence[RawFile]], Layout | None], ...] = (
    _foreign,
    _metadata,
    find_ljspeech,
    _box_tables,
    find_libritts,
    find_transcripts,
    _voc,
    _coco,
    _coco_captions,
    _yolo,
    find_common_voice,
    find_mls,
    find_fleurs,
    find_tiny_imagenet,
    find_celeba,
    find_kaggle,
)


def image_of(name: str) -> str:
    """Returns the path of the image without its extension that YOLO's labels are of: `images` for the last `labels`."""
    folders = name.split("/")
    where = max((i for i, folder in enumerate(folders[:-1]) if folder == "labels"), default=None)
    if where is not None:
        folders[where] = "images"
    return "/".join(folders).rpartition(".")[0]


def _is_named_like_coco(file: RawFile) -> bool:
    words = file.name.lower()
    return "annotation" in words or "coco" in words or "instances" in words


def _holds_boxes(file: RawFile) -> bool:
    lines = read_head(file, HEAD_BYTES).splitlines()
    return bool(lines) and all(_BOX.fullmatch(line.strip()) for line in lines[:_FEW])
