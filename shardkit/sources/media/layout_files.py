"""What a layout is, and what the names and first lines of its files tell."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardkit.file_types import has_image_suffix, suffix_of
from shardkit.sources.base import RawFile
from shardkit.sources.files.streams import read_head
from shardkit.sources.formats import STREAM_SUFFIXES
from shardkit.units import KiB

_FIRST_LINE = re.compile(rb"[^\r\n]*")
_TITLE_BYTES = 64 * KiB


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
    """Whether a file is called like an image, a sound, a video or an array."""
    return has_image_suffix(name) or suffix_of(name) in (".npy", *STREAM_SUFFIXES)


def first_line_of(file: RawFile) -> bytes:
    found = _FIRST_LINE.match(read_head(file, _TITLE_BYTES))
    return found[0] if found else b""


def base_of(file: RawFile) -> str:
    return file.name.rpartition("/")[2]


def stem_of(file: RawFile) -> str:
    return base_of(file).rpartition(".")[0] or base_of(file)


def folders_of(file: RawFile) -> list[str]:
    return file.name.split("/")[:-1]
