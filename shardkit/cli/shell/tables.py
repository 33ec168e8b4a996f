"""Aligned columns on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from shardkit.messages import visible

GAP = 2
# What a file or a pipe gets where a page chooses what it shows.
_PAGE_WIDTH = 100
_MIN_PROSE_WIDTH = 20


def print_columns(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    num_left: int = 2,
    last_is_left: bool = False,
) -> None:
    """Prints aligned columns, as wide as their cells. Nothing is cut, and a million rows take seconds.

    Where a terminal is narrower, a text in the last column is wrapped, and columns that do not fit beside the first one
    follow below, with the first one again.
    """
    widths = column_widths([headings, *rows])
    width = console.width if console.is_terminal else sum(widths) + GAP * len(widths)
    least = widths[-1]
    if last_is_left:
        # A word is never cut.
        words = max((cell_len(word) for row in rows for word in row[-1].split()), default=0)
        least = min(least, max(_MIN_PROSE_WIDTH, words))
    for columns in _cut_to_fit(widths, width, least):
        room = width - sum(widths[j] + GAP for j in columns[:-1])
        is_prose = last_is_left and columns[-1] == len(headings) - 1 and widths[-1] > room >= _MIN_PROSE_WIDTH
        console.print()
        for i, row in enumerate((headings, *rows)):
            cells = [pad(row[j], widths[j], right=not (j < num_left or (last_is_left and j == len(row) - 1)))
                     for j in columns]  # fmt: skip
            lines = [cells[-1]]
            if is_prose:
                lines = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
            indent = " " * (width - room)
            text = (" " * GAP).join([*cells[:-1], lines[0]]).rstrip()
            text = "\n".join([text, *(f"{indent}{line}" for line in lines[1:])])
            console.print(Text(text, style="" if i else "bold"), soft_wrap=True)


def print_prose(console: Console, text: Text) -> None:
    """Prints a text; a terminal gets lines that end between words, a file or a pipe gets one line."""
    console.print(text, soft_wrap=not console.is_terminal)


def print_facts(console: Console, facts: Iterable[tuple[str, str]], width: int = 12) -> None:
    """Prints a line for each name and value; the names take so many cells."""
    for name, value in facts:
        console.print(Text(f"  {name:<{width}}{visible(value)}".rstrip()), soft_wrap=True)


def page_width(console: Console) -> int:
    """Returns how many cells a line should have: those of a terminal, a fixed number for a file or a pipe."""
    return console.width if console.is_terminal else _PAGE_WIDTH


def _cut_to_fit(widths: Sequence[int], room: int, least_last: int) -> list[list[int]]:
    """Returns the positions of the columns that are side by side; the first column is always among them.

    Args:
        least_last: Cells that the last column needs where its text is wrapped.
    """
    parts, taken = [[0]], widths[0]
    for position, width in enumerate(widths[1:], start=1):
        least = least_last if position == len(widths) - 1 else width
        if taken + GAP + least > room and len(parts[-1]) > 1:
            parts.append([0])
            taken = widths[0]
        parts[-1].append(position)
        taken += GAP + width
    return parts


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns how many cells of a terminal each column needs."""
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Returns text filled up with spaces to a width, on the left if it goes to the right."""
    gap = " " * (width - cell_len(text))
    return gap + text if right else text + gap
