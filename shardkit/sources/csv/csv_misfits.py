"""Notes on columns that a few values make text, with the line of the first of them."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardkit.messages import shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.text.type_inference import Misfit

_LISTED_COLUMNS = 5


class ColumnMisfit(NamedTuple):
    """A value that makes a column text, and where it is.

    Attributes:
        column: Name.
        misfit: The value.
        file: That it is in.
        line: 1-based, None if it is not known.
    """

    column: str
    misfit: Misfit
    file: RawFile
    line: int | None


def find_line(text: bytes, dialect: Dialect, column: str, value: str) -> int | None:
    """Returns the 1-based line of the first record of a head that has a value in a column."""
    position, before = dialect.columns.index(column), 0
    reader = csv.reader(io.StringIO(text.decode(errors="replace"), newline=""), delimiter=dialect.delimiter)
    try:
        for record in reader:
            if len(record) == len(dialect.columns) and record[position] == value:
                return dialect.first_line + before
            before = reader.line_num
    except csv.Error:
        # A longer field than the module takes.
        pass
    return None


def misfit_notes(found: Sequence[ColumnMisfit]) -> Iterator[str]:
    """Yields a note on each column, or on how many more there are."""
    for column, misfit, file, line in found[:_LISTED_COLUMNS]:
        value = f"{shown(misfit.value)} in {place(file, line=line)}"
        if misfit.is_usual_null:
            otherwise = f"--null-value {shlex.quote(misfit.value)}"
        else:
            otherwise = f"--schema or --cast {shlex.quote(f'{column}={misfit.dtype}')}"
        yield f"column {shown(column)} is text because {value} is no {misfit.dtype}, unless {otherwise} says otherwise"
    if len(found) > _LISTED_COLUMNS:
        yield f"and so are {len(found) - _LISTED_COLUMNS:,} more columns"
