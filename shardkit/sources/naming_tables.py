"""Tables that name other files of the inputs, whose labels they may hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from shardkit.errors import BadInputError
from shardkit.file_types import suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.files.streams import read_head
from shardkit.units import KiB

_SUFFIXES = frozenset({".csv", ".tsv", ".txt", ".jsonl", ".json"})
_HEAD_BYTES = 64 * KiB
_MAX_TABLES = 8
_MIN_NAMES = 3
# What a competition of Kaggle wants to be filled in; its labels are dummies.
_TEMPLATE = re.compile("submission", re.IGNORECASE)
_BETWEEN = re.compile(r"""[,;\t|"'\r\n{}\[\]:]+| (?=\S)""")


def tables_that_name(
    files: Sequence[RawFile], others: Sequence[RawFile], options: SourceOptions | None = None
) -> tuple[RawFile, ...]:
    """Returns those of the other files whose first bytes name three of the files or all, and more than a name a line.

    Args:
        files: A row each.
        others: Further files of the inputs.
        options: How the files are read; where labels are named or unwanted no table is looked for.
    """
    if options is not None and (options.labels is not None or options.no_labels):
        return ()
    named_so = (file for file in others if suffix_of(file.name) in _SUFFIXES and not _TEMPLATE.search(file.name))
    tables = [file for file in named_so if file.member is None][:_MAX_TABLES]
    names = {name for file in files for name in _names_of(file)} if tables else set()
    found = tuple(table for table in tables if _names_some(table, names, min(_MIN_NAMES, len(files))))
    # Tables of several folders are for a part of the files each.
    return found if len({table.name.rpartition("/")[0] for table in found}) == 1 else ()


def labels_option(table: RawFile) -> str:
    """Returns the option that reads a table as the labels of other files."""
    return f"--labels {printable(shlex.quote(table.path))}"


def naming_notes(tables: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns a note on each of some tables that name the files that are read."""
    return tuple(f"{printable(t.name)} names these files: {labels_option(t)} joins its columns" for t in tables)


def _names_some(table: RawFile, names: set[str], wanted: int) -> bool:
    try:
        text = read_head(table, _HEAD_BYTES).decode("utf-8", "replace")
    except BadInputError:
        return False
    cells = [cell.strip().rpartition("/")[2] for cell in _BETWEEN.split(text)]
    found = names.intersection(cells)
    # A list has nothing but the names.
    return len(found) >= wanted and len(list(filter(None, cells))) > len(text.split("\n")) + 1


def _names_of(file: RawFile) -> tuple[str, str]:
    base = file.name.rpartition("/")[2]
    return base, base.rpartition(".")[0] or base
