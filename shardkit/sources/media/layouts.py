"""Layouts: which files beside images and sounds hold their labels, by the names of all files.

Sources: the folders of Hugging Face `datasets`, Pascal VOC, COCO, YOLO of Ultralytics, CSV of Roboflow,
LibriSpeech, LJSpeech and Common Voice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardkit.errors import UsageError
from shardkit.file_types import HEAD_BYTES, has_image_suffix, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.files.streams import read_head
from shardkit.sources.formats import FORMATS
from shardkit.sources.inventory import is_companion_file
from shardkit.sources.media.coco import is_coco
from shardkit.sources.media.label_tables import FILE_KEYS
from shardkit.sources.split_names import splits_in_names
from shardkit.sources.split_words import split_in_name
from shardkit.units import KiB

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
_FEW = 5
_MANY = 16
_BOX = re.compile(rb"\d+( [01](\.\d+)?){4,}")
_FIRST_LINE = re.compile(rb"[^\r\n]*")
_CELL = re.compile(r"""[^,;\t|{}:"']+""")
_LABEL_WORDS = re.compile(r"(?:^|[_-])(?:labels?|annotations?|images?|imgs?|files?|data)$", re.IGNORECASE)
CLASS_FILES = frozenset({"classes.txt", "obj.names", "labels.txt"})
"""What YOLO calls a file of the names of classes, a line each."""

_LJSPEECH = re.compile(r"metadata(?:[_-][a-z]+)?\.csv")
_YOLO_OTHERS = (".yaml", ".yml", ".data", ".cfg", ".cache")
_TITLE_BYTES = 64 * KiB
_SIDECARS = (".txt", ".caption", ".lab", ".json")
_FOREIGN_FORMS = (
    ("LabelMe", ".json", re.compile(rb'"shapes"\s*:\s*\[')),
    ("CreateML", ".json", re.compile(rb'"annotations"\s*:\s*\[\s*\{[^\]]*"coordinates"\s*:\s*\{')),
    ("CVAT", ".xml", re.compile(rb"<annotations>\s*<version>")),
)
_VOC = re.compile(rb"<annotation[\s>]")
_NOTES = "notes.json"
_MASKS = ("SegmentationClass", "SegmentationObject")


class Layout(NamedTuple):
    """Files that labels are read from.

    Attributes:
        kind: Which reader reads them, a key of `label_readers.READERS`; empty if none does.
        title: For people.
        labels: The files that hold labels.
        others: Further files that are no data: names of classes, masks, tables without labels.
        lists: Files that name the files of a split each.
        folders: Of each file of labels the one that names in it are relative to; none where they are whole.
    """

    kind: str
    title: str
    labels: tuple[RawFile, ...]
    others: tuple[RawFile, ...] = ()
    lists: tuple[RawFile, ...] = ()
    folders: tuple[str, ...] = ()

    def only(self, file: RawFile) -> Layout:
        """Returns the layout with one of its files of labels."""
        folders = self.folders[self.labels.index(file) :][:1]
        return self._replace(labels=(file,), folders=folders)


def is_media_name(name: str) -> bool:
    """Whether a file is called like an image, a sound or an array."""
    return has_image_suffix(name) or suffix_of(name) in (".npy", *FORMATS["audio"].suffixes)


def is_unread(layout: Layout, file: RawFile) -> bool:
    """Whether another file of a layout might hold labels too: a table, or a document of COCO."""
    if layout.kind == "coco":
        return suffix_of(file.name) == ".json" and is_coco(read_head(file, HEAD_BYTES))
    return layout.kind in ("table", "common voice") and suffix_of(file.name) in _TABLES


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
        return _table_a_folder(media, rest) or _sidecars(media, rest)
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
    labels = [f for f in rest if _base(f) in [f"metadata{suffix}" for suffix in _TABLES]]
    if len({suffix_of(f.name) for f in labels}) != 1 or not all(map(_names_files, labels)):
        return None
    return _in_folders("folder table", f"a {_base(labels[0])} beside the files", labels)


def _ljspeech(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    stems = {_stem(f) for f in media}
    tables = [f for f in rest if _LJSPEECH.fullmatch(_base(f))]
    tables = [f for f in tables if b"|" in (line := _first_line(f)) and line.split(b"|")[0].decode() in stems]
    whole = [f for f in tables if _base(f) == "metadata.csv"]
    lists = tuple(f for f in tables if split_in_name(_base(f)) is not None)
    if len(whole) > 1 or not (whole or len(lists) > 1):
        return None
    return Layout("ljspeech", "LJSpeech", tuple(whole) or lists, lists=lists)


def _box_tables(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    labels = [f for f in rest if _base(f) == "_annotations.csv"]
    return _in_folders("box table", "an _annotations.csv beside the files", labels) if labels else None


def _transcripts(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    labels = tuple(f for f in rest if f.name.endswith(".trans.txt"))
    # Lists of the speakers, chapters and books lie above them.
    others = tuple(f for f in rest if suffix_of(f.name) == ".txt" and f not in labels)
    return Layout("transcripts", "transcripts of LibriSpeech", labels, others) if labels else None


def _foreign(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    for title, suffix, sign in _FOREIGN_FORMS:
        alike = tuple(f for f in rest if suffix_of(f.name) == suffix)
        if any(sign.search(read_head(f, HEAD_BYTES)) for f in alike[:_FEW]):
            return Layout("", title, alike)
    return None


def _voc(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    stems = {_stem(f) for f in media}
    labels = [f for f in rest if suffix_of(f.name) == ".xml"]
    if not labels:
        # Those of Stanford Dogs have no extension.
        labels = [f for f in rest if "." not in _base(f) and _base(f) in stems]
        labels = labels if all(_VOC.search(read_head(f, HEAD_BYTES)) for f in labels[:_FEW]) else []
    if not any(_stem(f) in stems for f in labels):
        return None
    sets = [f for f in rest if "ImageSets" in _folders(f)]
    lists = [f for f in sets if "Main" in _folders(f) and split_in_name(_base(f)) is not None and "_" not in _base(f)]
    masks = [f for f in media if any(name in _folders(f) for name in _MASKS)]
    return Layout("voc", "Pascal VOC", tuple(labels), (*sets, *masks), tuple(lists))


def _coco(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    found = _coco_documents(rest)
    # COCO itself has captions and keypoints of the same images beside the boxes.
    boxes = [f for f in found if _base(f).startswith("instances")] or [f for f in found if not _has_captions(f)]
    return _layout_of_coco("COCO", media, rest, found, boxes) if boxes else None


def _coco_captions(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    found = _coco_documents(rest)
    labels = [f for f in found if _has_captions(f)]
    has_boxes = any(_base(f).startswith("instances") for f in found)
    return _layout_of_coco("captions of COCO", media, rest, found, labels) if labels and not has_boxes else None


def _coco_documents(rest: Sequence[RawFile]) -> list[RawFile]:
    # Label Studio writes notes.json beside YOLO.
    documents = [f for f in rest if suffix_of(f.name) == ".json" and _base(f) != _NOTES]
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
    return "captions" in _base(file)


def _coco_folders(media: Sequence[RawFile], labels: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the folder of the images of each document, where all tell it by their own folder or by their name."""
    folders = {f.name.rpartition("/")[0] for f in media}
    by_last_part = {folder.rpartition("/")[2]: folder for folder in sorted(folders, reverse=True)}
    found = []
    for file in labels:
        own = file.name.rpartition("/")[0]
        # Such as train2017 of instances_train2017.json.
        name = _stem(file).rpartition("_")[2]
        found.append(own if own and own in folders else by_last_part.get(name))
    return tuple(map(str, found)) if None not in found and len(set(found)) == len(found) > 1 else ()


def _yolo(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    described = [f for f in rest if suffix_of(f.name) in _YOLO_OTHERS or _base(f) in (*CLASS_FILES, _NOTES)]
    texts = [f for f in rest if suffix_of(f.name) == ".txt" and f not in described]
    if not texts:
        return None
    images = {f.name.rpartition(".")[0] for f in media if has_image_suffix(f.name)}
    labels = tuple(f for f in texts if image_of(f.name) in images)
    is_apart = any("labels" in _folders(f) for f in labels)
    if not labels or not (described or is_apart or all(map(_holds_boxes, labels[:_FEW]))):
        return None
    lists = tuple(f for f in texts if f not in labels and split_in_name(_base(f)) is not None)
    if splits_in_names(media):
        return Layout("yolo", "YOLO", labels, (*described, *lists))
    return Layout("yolo", "YOLO", labels, tuple(described), lists)


def _common_voice(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    tables = [f for f in rest if suffix_of(f.name) == ".tsv"]
    labels = tuple(f for f in tables if _stem(f) in ("train", "dev", "test"))
    if not labels or not all("clips" in _folders(f) for f in media):
        return None
    return Layout("common voice", "Common Voice", labels, tuple(f for f in tables if f not in labels))


def _kaggle(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    tables = [f for f in rest if suffix_of(f.name) == ".csv"]
    if not tables:
        return None
    folders = {parent for folder in {f.name.rpartition("/")[0] for f in media} for parent in _with_parents(folder)}
    by_word = {_without_label_words(folder): folder for folder in sorted(folders, reverse=True)}
    found = {f: by_word.get(_without_label_words(f.name.rpartition(".")[0])) for f in tables}
    titles = {_first_line(f) for f, folder in found.items() if folder is not None and _stem(f) != "test"}
    # A table of the test set often names its files and has no labels.
    is_labelled = {f: _stem(f) != "test" or _first_line(f) in titles for f in tables}
    labels = tuple(f for f, folder in found.items() if folder is not None and is_labelled[f])
    if not labels:
        return _split_tables(tables)
    title = f"{_base(labels[0])} beside a folder"
    others = tuple(f for f in tables if f not in labels)
    return Layout("table", title, labels, others, folders=tuple(str(found[f]) for f in labels))


def _split_tables(tables: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of a table of each split, such as train.csv and val.csv, that name the files of one folder."""
    named = [f for f in tables if split_in_name(_base(f)) is not None and _names_files(f)]
    # A table of another split without labels has another title line.
    by_title = {title: [f for f in named if _first_line(f) == title] for title in map(_first_line, named)}
    labels = max(by_title.values(), key=len, default=[])
    if len(labels) < 2:
        return None
    listed = " and ".join(_base(f) for f in labels[:_FEW])
    return Layout("table", f"{listed} beside the files", tuple(labels), tuple(f for f in tables if f not in labels))


def _table_a_folder(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of a table in each folder of files, with the same columns, that names the files beside it."""
    tables = [f for f in rest if suffix_of(f.name) in (".csv", ".tsv")]
    folders = [f.name.rpartition("/")[0] for f in tables]
    is_each = len(tables) > 1 and sorted(folders) == sorted({f.name.rpartition("/")[0] for f in media})
    if not is_each or len(set(map(_first_line, tables))) > 1 or not _names_files(tables[0]):
        return None
    return _in_folders("folder table", "a table in each folder", tables)


def _without_label_words(path: str) -> str:
    # train_labels.csv is the table of train_images.
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{_LABEL_WORDS.sub('', name) or name}"


def _sidecars(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    data = [f for f in rest if not is_companion_file(f.name)]
    stems = {f.name.rpartition(".")[0] for f in media} if data else set()
    for suffix in _SIDECARS:
        alike = tuple(f for f in data if suffix_of(f.name) == suffix)
        if alike and all(f.name.rpartition(".")[0] in stems for f in alike):
            kind = "fields" if suffix == ".json" else "captions" if has_image_suffix(media[0].name) else "spoken"
            return Layout(kind, f"a {suffix} beside each file", alike)
    is_sound = suffix_of(media[0].name) in FORMATS["audio"].suffixes
    return _transcripts_apart(media, data) if data and is_sound else None


def _transcripts_apart(media: Sequence[RawFile], data: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of texts in a folder of their own, as of VCTK: `txt/p225/1.txt` for `wav48/p225/1.wav`."""
    below = {_below_first(f) for f in media}
    alike = tuple(f for f in data if suffix_of(f.name) in (".txt", ".lab") and _below_first(f) in below)
    folders, own = ({f.name.partition("/")[0] for f in files} for files in (media, alike))
    if "" in below or 2 * len(alike) <= len(media) or not folders.isdisjoint(own):
        return None
    return Layout("spoken apart", f"a text of each file in {' and '.join(map(printable, sorted(own)))}", alike)


def _below_first(file: RawFile) -> str:
    return file.name.rpartition(".")[0].partition("/")[2]


_FORMS: tuple[Callable[[Sequence[RawFile], Sequence[RawFile]], Layout | None], ...] = (
    _foreign,
    _metadata,
    _ljspeech,
    _box_tables,
    _transcripts,
    _voc,
    _coco,
    _coco_captions,
    _yolo,
    _common_voice,
    _kaggle,
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


def _names_files(table: RawFile) -> bool:
    if suffix_of(table.name) == ".parquet":
        return True
    words = _CELL.findall(_first_line(table).decode("utf-8-sig", "replace"))
    return any(word.strip().lower() in FILE_KEYS for word in words)


def _first_line(file: RawFile) -> bytes:
    found = _FIRST_LINE.match(read_head(file, _TITLE_BYTES))
    return found[0] if found else b""


def _in_folders(kind: str, title: str, labels: Sequence[RawFile]) -> Layout:
    return Layout(kind, title, tuple(labels), folders=tuple(f.name.rpartition("/")[0] for f in labels))


def _with_parents(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[: level + 1]) for level in range(len(parts))]


def _base(file: RawFile) -> str:
    return file.name.rpartition("/")[2]


def _stem(file: RawFile) -> str:
    return _base(file).rpartition(".")[0] or _base(file)


def _folders(file: RawFile) -> list[str]:
    return file.name.split("/")[:-1]
