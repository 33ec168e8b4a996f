"""Layouts of tables beside images, sounds and videos: of Kaggle, one for each split, and one for each folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from shardkit.file_types import suffix_of
from shardkit.sources.base import RawFile
from shardkit.sources.media.label_tables import FILE_KEYS
from shardkit.sources.media.layout_files import Layout, base_of, first_line_of, stem_of
from shardkit.sources.naming_tables import cells_of, is_list, is_template, lines_of, names_of
from shardkit.sources.split_words import split_in_name

_LISTED = 5
_MIN_NAMES = 3
_CELL = re.compile(r"""[^,;\t|{}:"']+""")
_FIRST_KEY = re.compile(r'\s*\{\s*"([^"]*)"')
_LETTERS_AND_DIGITS = re.compile(r"[^\W\d_].*\d|\d.*[^\W\d_]")
_BLANKS = re.compile(r"\s+")
_LABEL_WORDS = re.compile(
    r"(?:^|[_-]|(?-i:(?<=[a-z])(?=[A-Z])))(?:labels?|annotations?|images?|imgs?|files?|data)$", re.IGNORECASE
)
_SPLIT_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".txt")


def find_kaggle(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of a table called like the folder of its files, as `trainLabels.csv` of `train`."""
    tables = [f for f in rest if suffix_of(f.name) == ".csv"]
    if not tables:
        return None
    folders = {parent for folder in {f.name.rpartition("/")[0] for f in media} for parent in _with_parents(folder)}
    by_word = {_without_label_words(folder): folder for folder in sorted(folders, reverse=True)}
    found = {f: by_word.get(_without_label_words(f.name.rpartition(".")[0])) for f in tables}
    titles = {first_line_of(f) for f, folder in found.items() if folder is not None and stem_of(f) != "test"}
    # A table of the test set often names its files and has no labels.
    is_labelled = {f: stem_of(f) != "test" or first_line_of(f) in titles for f in tables}
    labels = tuple(f for f, folder in found.items() if folder is not None and is_labelled[f])
    if not labels:
        return None
    # One of another split may name files of the same folder.
    of_splits = find_split_tables(media, [f for f in tables if f in labels or found[f] is None], are_disjoint=True)
    if of_splits is not None and {*labels} < {*of_splits.labels}:
        return of_splits._replace(others=tuple(f for f in tables if f not in of_splits.labels))
    title = f"{base_of(labels[0])} beside a folder"
    others = tuple(f for f in tables if f not in labels)
    return Layout("table", title, labels, others, folders=tuple(str(found[f]) for f in labels))


def find_split_tables(
    media: Sequence[RawFile], rest: Sequence[RawFile], *, are_disjoint: bool = False
) -> Layout | None:
    """Returns the layout of a table for each split, such as train.csv and val.csv, that name the files of one folder.

    A table may lack columns of another one, as that of a test set lacks the labels.

    Args:
        are_disjoint: Whether no file may be in the tables of two splits.
    """
    named_so = [f for f in rest if split_in_name(base_of(f)) is not None and not (is_template(f) or is_list(f))]
    by_suffix = {suffix: [f for f in named_so if suffix_of(f.name) == suffix] for suffix in _SPLIT_TABLES}
    suffix, tables = max(by_suffix.items(), key=lambda item: len(item[1]))
    if len(tables) < 2:
        return None
    names = {name for file in media for name in names_of(file)}
    tables = [f for f in tables if names_files(f) or _names_some(f, names)]
    titles = {f: _title_of(f, names) for f in tables}
    widest = max(titles.values(), key=len, default=())
    labels = tuple(f for f in tables if len(widest) > 1 and {*titles[f]} <= {*widest})
    splits = {found.split for f in labels if (found := split_in_name(base_of(f))) is not None}
    # The development set of FSD50K holds what is trained on.
    if len(splits) < 2 or "train" not in splits:
        return None
    cells = [{*cells_of(f)} & names for f in labels] if are_disjoint else []
    if sum(map(len, cells)) > len(set[str]().union(*cells)):
        return None
    listed = " and ".join(base_of(f) for f in labels[:_LISTED])
    others = tuple(f for f in rest if suffix_of(f.name) == suffix and f not in labels)
    return Layout("split tables", f"{listed} beside the files", labels, others)


def find_table_a_folder(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of a table in each folder of files, with the same columns, that names the files beside it."""
    tables = [f for f in rest if suffix_of(f.name) in (".csv", ".tsv")]
    folders = [f.name.rpartition("/")[0] for f in tables]
    is_each = len(tables) > 1 and sorted(folders) == sorted({f.name.rpartition("/")[0] for f in media})
    if not is_each or len(set(map(first_line_of, tables))) > 1 or not names_files(tables[0]):
        return None
    return in_folders("folder table", "a table in each folder", tables)


def names_files(table: RawFile) -> bool:
    """Whether a column of a table is called as that of the names of files."""
    if suffix_of(table.name) == ".parquet":
        return True
    words = _CELL.findall(first_line_of(table).decode("utf-8-sig", "replace"))
    return any(word.strip().lower() in FILE_KEYS for word in words)


def in_folders(kind: str, title: str, labels: Sequence[RawFile]) -> Layout:
    """Returns the layout of tables whose names of files are relative to their own folder."""
    return Layout(kind, title, tuple(labels), folders=tuple(f.name.rpartition("/")[0] for f in labels))


def _title_of(table: RawFile, names: Collection[str]) -> tuple[str, ...]:
    """Returns the names of the columns of a table: numbers where its first line names a file, none where blanks part
    different numbers of words; in JSON those of files and of labels, and none in an object of something else."""
    if suffix_of(table.name) in (".jsonl", ".json"):
        key = _FIRST_KEY.match("\n".join(lines_of(table)))
        is_object = suffix_of(table.name) == ".json" and key is not None
        return () if is_object and key and key[1].rpartition("/")[2] not in names else ("file", "label")
    lines = [line for line in lines_of(table) if line.strip()]
    is_words = suffix_of(table.name) == ".txt" and not re.search("[,;\t|]", lines[0])
    rows = [_BLANKS.split(line.strip()) if is_words else re.split("[,;\t|]", line) for line in lines[: len(lines) - 1]]
    if is_words and len(set(map(len, rows))) > 1:
        return ()
    title = [cell.strip().strip('"') for cell in rows[0]] if rows else []
    is_row = any(cell.replace("\\", "/").rpartition("/")[2] in names for cell in title)
    return tuple(map(str, range(len(title)))) if is_row else tuple(title)


def _names_some(table: RawFile, names: Collection[str]) -> bool:
    """Whether three lines of a table name files, most of its first lines do, or one by a name of letters and digits."""
    num_lines = sum(1 for line in lines_of(table) if line.strip())
    found = {name for name in cells_of(table) if name in names}
    is_sure = len(found) >= _MIN_NAMES or any(map(_LETTERS_AND_DIGITS.search, found))
    return is_sure or (len(found) > 0 and 2 * len(found) >= num_lines - 1)


def _without_label_words(path: str) -> str:
    # train_labels.csv is the table of train_images.
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{_LABEL_WORDS.sub('', name) or name}"


def _with_parents(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[: level + 1]) for level in range(len(parts))]
