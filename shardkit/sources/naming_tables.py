"""Tables that name other files of the inputs, whose labels they may hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from glob import escape

from shardkit.errors import BadInputError, UsageError
from shardkit.file_types import suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.file_globs import glob_in_shell
from shardkit.sources.files.streams import read_head
from shardkit.sources.split_lists import list_options
from shardkit.sources.split_words import shared_parts, split_in_name
from shardkit.units import KiB

_SUFFIXES = frozenset({".csv", ".tsv", ".txt", ".jsonl", ".json"})
_HEAD_BYTES = 64 * KiB
_MAX_TABLES = 8
_MIN_NAMES = 3
# All columns behind the number, of the lines of one number.
_JOIN = '{ n = $1; $1 = ""; row[n] = row[n] $0 } END { for (n in row) print row[n] }'
_TEMPLATE = re.compile("submission", re.IGNORECASE)
# A value of JSON behind its key, or a list behind what is no word, as the name of a file is none.
_FIELD = re.compile(r'"\s*:\s*[^\s\[{]|\.\w+"\s*:')
# As Flickr8k counts the captions of an image.
_NUMBER_OF_FILE = re.compile(r"(?<=\w)#[0-9]+$")
_BETWEEN = re.compile(r"""[,;\t|"'\r\n{}\[\]:]+| (?=\S)""")


def tables_that_name(
    files: Sequence[RawFile], others: Sequence[RawFile], options: SourceOptions | None = None
) -> tuple[RawFile, ...]:
    """Returns those of the other files whose first bytes name three of the files or all, and more than a name a line.

    Args:
        files: A row each.
        options: How the files are read; where labels are named or unwanted no table is looked for.
    """
    if options is not None and (options.no_labels or options.labels is not None or options.class_folder is not None):
        return ()
    found = _all_that_name(files, others)
    # Tables of several folders are for a part of the files each.
    return found if len({table.name.rpartition("/")[0] for table in found}) == 1 else ()


def check_not_numbered(files: Sequence[RawFile], tables: Sequence[RawFile], others: Sequence[RawFile]) -> None:
    """Checks that no table numbers the files for others that speak of the numbers, as images.txt of CUB-200 does.

    Args:
        files: A row each; where one is called by a number, a table that begins with numbers names files itself.

    Raises:
        UsageError: If one does: no option joins such tables.
    """
    for table in tables:
        numbers = _numbers_in(table)
        if numbers and not set(numbers).isdisjoint(name for file in files for name in names_of(file)):
            continue
        texts = [file for file in others if suffix_of(file.name) == ".txt" and file.name != table.name]
        joined = [file for file in texts if numbers and _numbers_in(file)[: len(numbers)] == numbers]
        if joined:
            paths = " ".join(printable(shlex.quote(file.path)) for file in (table, *joined))
            raise UsageError(
                "a table numbers the files, and others speak of the numbers",
                where=printable(table.name),
                why=f"such as {', '.join(printable(file.name) for file in joined)}",
                next_step=f"Join them to one table, with awk '{_JOIN}' {paths} > labels.txt, and add --labels "
                f"labels.txt. Or take the files without these, with --exclude {glob_in_shell(escape(table.name))}",
            )


def advice_on_rows(files: Sequence[RawFile], others: Sequence[RawFile], format: str) -> str | None:
    """Returns which options read labels and splits of files from others beside them; None if none does.

    Args:
        files: A row each.

    Raises:
        UsageError: If these must be joined first.
    """
    tables = tables_that_name(files, others)
    check_not_numbered(files, tables, others)
    if parts := _parts(files, others):
        return _advice_on_parts(parts, format)
    lists = "".join(f" {option}" for option in list_options(files, others))
    splits = [split_in_name(table.name.rpartition("/")[2]) for table in tables]
    if len(tables) > 1 and all(splits):
        paths = " ".join(printable(shlex.quote(table.path)) for table in tables)
        if any(suffix_of(table.name) != ".txt" for table in tables):
            is_json = suffix_of(tables[0].name) == ".json"
            what = "Write the tables of the splits as JSON Lines" if is_json else "Name the columns of the tables alike"
            return f"{what}, which are read then: {paths}"
        ways = " ".join(
            f"--split {split.split}=@{printable(shlex.quote(table.path))}"
            for split, table in zip(splits, tables, strict=True)
            if split is not None
        )
        joined = f"join them with cat {paths} > labels.txt"
        return f"Several tables name the files: {joined}, and add --labels labels.txt {ways}"
    if tables:
        return f"{labels_option(tables[0])}{lists} joins a table that names the files"
    return f"--format {format}{lists} takes the splits that lists of files name" if lists else None


def _advice_on_parts(parts: Sequence[tuple[RawFile, str]], format: str) -> str:
    (table, folder), (other, other_folder) = parts[:2]
    glob, other_glob = (glob_in_shell(f"{escape(name)}/*") for name in (folder, other_folder))
    is_beside = table.name.rpartition("/")[0] == other.name.rpartition("/")[0]
    rest = f"--include {other_glob} {labels_option(other)}" if is_beside else f"--format {format} --exclude {glob}"
    return (
        f"Tables name a part of the files each: convert these apart, with --include {glob} {labels_option(table)}, and "
        f"with {rest}"
    )


def _parts(files: Sequence[RawFile], others: Sequence[RawFile]) -> list[tuple[RawFile, str]]:
    """Returns tables that name files of other folders than the first one, which is among them, and these folders."""
    found: list[tuple[RawFile, set[str]]] = []
    all_folders = {file.name.rpartition("/")[0] for file in files}
    for table in _all_that_name(files, others):
        cells = set(cells_of(table))
        found.append((table, {f.name.rpartition("/")[0] for f in files if not cells.isdisjoint(names_of(f))}))
    if any(folders == all_folders for _, folders in found):
        return []
    parts = [(table, folders) for table, folders in found if folders == found[0][1] or not folders & found[0][1]]
    around = [(table, "/".join(shared_parts([folder.split("/") for folder in folders]))) for table, folders in parts]
    return around if len({folder for _, folder in around}) > 1 and all(folder for _, folder in around) else []


def _all_that_name(files: Sequence[RawFile], others: Sequence[RawFile]) -> tuple[RawFile, ...]:
    named_so = (file for file in others if suffix_of(file.name) in _SUFFIXES and not is_template(file))
    tables = sorted((file for file in named_so if file.member is None), key=lambda file: file.name.count("/"))
    names = {name for file in files for name in names_of(file)} if tables else set()
    found = [table for table in tables[:_MAX_TABLES] if _names_some(table, names, min(_MIN_NAMES, len(files)))]
    return tuple(sorted(found, key=lambda file: (_pairs(file, names), file.name.count("/"), file.name.count("."))))


def is_template(table: RawFile) -> bool:
    """Whether a table is called as what a competition of Kaggle wants to be filled in; its labels are dummies."""
    return _TEMPLATE.search(table.name) is not None


def labels_option(table: RawFile) -> str:
    """Returns the option that reads a table as the labels of other files."""
    return f"--labels {printable(shlex.quote(table.path))}"


def naming_notes(tables: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns a note on each of some tables that name the files that are read."""
    return tuple(f"{printable(t.name)} names these files: {labels_option(t)} joins its columns" for t in tables)


def _names_some(table: RawFile, names: set[str], wanted: int) -> bool:
    cells = cells_of(table)
    found = names.intersection(cells)
    # A list has nothing but the names, and one of JSON those of classes or splits.
    return len(found) >= wanted and not is_list(table) and len(cells) > len(lines_of(table)) + 1


def is_list(table: RawFile) -> bool:
    """Whether a document of JSON holds lists of names, as of classes or splits, and nothing of each name."""
    return suffix_of(table.name) == ".json" and not _FIELD.search("\n".join(lines_of(table)))


def _pairs(table: RawFile, names: set[str]) -> bool:
    """Whether most lines name two files, as those that compare captions of other files in Flickr8k."""
    lines = [
        {name.rpartition(".")[0] or name for name in names.intersection(_cells_in(line))} for line in lines_of(table)
    ]
    return sum(len(found) > 1 for found in lines) > len(lines) // 2


def cells_of(table: RawFile) -> list[str]:
    """Returns what stands between the delimiters of the first lines of a table, of paths the last part."""
    return _cells_in("\n".join(lines_of(table)))


def _cells_in(text: str) -> list[str]:
    cells = (_NUMBER_OF_FILE.sub("", cell.strip().rpartition("/")[2]) for cell in _BETWEEN.split(text))
    return list(filter(None, cells))


def lines_of(table: RawFile) -> list[str]:
    """Returns the first lines of a table, of which the last may be cut off; none of a damaged one."""
    try:
        return read_head(table, _HEAD_BYTES).decode("utf-8", "replace").split("\n")
    except BadInputError:
        return []


def _numbers_in(table: RawFile) -> list[str]:
    """Returns the first words of the lines but the last, which may be cut off, where all are different numbers."""
    rows = [line.split() for line in lines_of(table)[:-1]]
    numbers = [row[0] for row in rows if len(row) > 1 and row[0].isdecimal()]
    return numbers if len(set(numbers)) == len(rows) >= _MIN_NAMES else []


def names_of(file: RawFile) -> tuple[str, str]:
    """Returns what tables may call a file: its name with and without the extension."""
    base = file.name.rpartition("/")[2]
    return base, base.rpartition(".")[0] or base
