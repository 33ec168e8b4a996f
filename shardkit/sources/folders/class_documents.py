"""Small texts in class folders, of which each is a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from glob import escape

from shardkit.errors import UsageError
from shardkit.file_types import suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.file_globs import glob_in_shell, glob_options
from shardkit.sources.folders.class_levels import is_date
from shardkit.sources.inventory import is_companion_file
from shardkit.sources.split_names import folders_below_split, split_of
from shardkit.units import MiB, format_count

_MAX_DOCUMENT_BYTES = MiB
_MIN_DOCUMENTS = 4
# Of all files, so many must be texts of classes; the others are refused.
_MIN_SHARE = 0.75
_MIN_SHARE_IN_SPLITS = 0.5
_LISTED_FOLDERS = 3
_MANY_OTHERS = 10
# The hash of a mail may stand where others have an extension.
_DOCUMENT_SUFFIX = re.compile(r"(?:\.(?:txt|[0-9]+|[0-9a-f]{8,}))?", re.IGNORECASE)


def are_class_documents(files: Sequence[RawFile]) -> bool:
    """Whether files are small texts by their names and sizes, several in each of at least two class folders.

    A folder is no class if it is called after a date, a number of several digits, or a key and a value.

    Raises:
        UsageError: If a few files lie beside such texts, or alone in their folder.
    """
    data = [file for file in files if file.num_bytes and not is_companion_file(file.name)]
    texts = [f for f in data if _DOCUMENT_SUFFIX.fullmatch(suffix_of(f.name)) and _class_name(f) is not None]
    by_folder = Counter(file.name.rpartition("/")[0] for file in texts)
    # A folder that holds class folders is none itself, such as train of train/pos, train/neg and train/urls_pos.txt.
    around = {"/".join(parts[:level]) for parts in (f.split("/") for f in by_folder) for level in range(len(parts))}
    texts = [f for f in texts if by_folder[f.name.rpartition("/")[0]] > 1 and f.name.rpartition("/")[0] not in around]
    # A small sample of reviews has as many lists beside them as the whole.
    min_share = _MIN_SHARE_IN_SPLITS if _are_classes_of_splits(texts) else _MIN_SHARE
    is_large = any(file.num_bytes > _MAX_DOCUMENT_BYTES for file in texts)
    if is_large or len(texts) < max(_MIN_DOCUMENTS, min_share * len(data)):
        return False
    numbered = [file for file in texts if re.search("[0-9]", file.name.rpartition("/")[2])]
    if len(numbered) >= _MIN_SHARE * len(texts):
        # Such as the list of commands that made the folders.
        texts = numbered
    if len(set(map(_class_name, texts))) < 2 or len(texts) < min_share * len(data):
        return False
    if len(texts) < len(data):
        raise _files_beside(texts, data)
    return True


def _are_classes_of_splits(texts: Sequence[RawFile]) -> bool:
    """Whether two splits or more have the same class folders, two or more of them."""
    found: dict[str | None, set[str | None]] = {}
    for file in texts:
        found.setdefault(split_of(file), set()).add(_class_name(file))
    return len(found) > 1 and len(set.intersection(*found.values())) > 1


def _files_beside(texts: Sequence[RawFile], data: Sequence[RawFile]) -> UsageError:
    kept = {file.name for file in texts}
    others = [file.name for file in data if file.name not in kept]
    few = len(others) <= _MANY_OTHERS
    excluded = " ".join(f"--exclude {glob_in_shell(escape(name))}" for name in others) if few else "--exclude GLOB"
    one_split = folders_of_one_split(texts)
    both = f", and with them folders that one split alone has, with {excluded} {one_split}" if one_split else ""
    listed = ", ".join(map(printable, others[:_LISTED_FOLDERS]))
    return UsageError(
        "files lie beside class folders of texts",
        why=f"{format_count(len(others))} of {format_count(len(data))}: {listed}",
        next_step=f"Leave these out{both or f' with {excluded}'}, or add --no-labels to read the lines of all files",
    )


def folders_of_one_split(files: Sequence[RawFile]) -> str:
    """Returns the options that leave out folders which one of the splits alone has, such as `unsup` of `train`.

    Empty if there is none, or if splits have no folder in common.
    """
    found: dict[str, set[str]] = {}
    for file in files:
        found.setdefault(split_of(file) or "", set()).add(str(_class_name(file)))
    shared = set.intersection(*found.values())
    globs = [f"*{escape(name)}/*" for names in found.values() for name in sorted(names - shared)]
    return glob_options("--exclude", globs) if shared and len(globs) <= _LISTED_FOLDERS else ""


def _class_name(file: RawFile) -> str | None:
    folders = folders_below_split(file.name)
    while folders and is_date(folders[-1]):
        folders.pop()
    name = folders[-1] if folders else ""
    is_class = (len(name) == 1 or re.search("[^\\W\\d_]", name)) and "=" not in name
    return name if is_class else None
