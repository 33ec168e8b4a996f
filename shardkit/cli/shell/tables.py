"""Aligned columns on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

PAGE_WIDTH = 100
GAP = 2


class Table(NamedTuple):
    """Headings, and rows of as many cells."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def print_columns(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    num_left: int = 2,
    last_is_left: bool = False,
) -> None:
    """Prints aligned columns, as wide as their cells: nothing is cut, and a million rows take seconds."""
    widths = column_widths([headings, *rows])
    left = {*range(num_left), *([len(headings) - 1] if last_is_left else [])}
    console.print()
    for i, row in enumerate((headings, *rows)):
        cells = [
            pad(c, w) if j in left else pad(c, w, right=True) for j, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        console.print(Text((" " * GAP).join(cells).rstrip(), style="" if i else "bold"), soft_wrap=True)


def first_that_fits(console: Console, tables: Sequence[Table]) -> Table:
    """Returns the first table that is no wider than the page, the last one if none is."""
    room = console.width if console.is_terminal else PAGE_WIDTH
    for table in tables:
        widths = column_widths([table.headings, *table.rows])
        if sum(widths) + GAP * (len(widths) - 1) <= room:
            return table
    return tables[-1]


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns how many cells of a terminal each column needs."""
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Returns text filled up with spaces to a width, on the left if it goes to the right."""
    gap = " " * (width - cell_len(text))
    return gap + text if right else text + gap
