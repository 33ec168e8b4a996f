"""Whether the lines below the first one are rows: titles, units, descriptions and names of several levels are none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile

import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.messages import printable, shown
from shardkit.sources.base import place
from shardkit.sources.csv.dialect import columns_option
from shardkit.sources.csv.header import COMMENT, KINDS, NO_VALUES, FirstRows, is_of_a_kind, kind_of, share
from shardkit.sources.text.type_inference import USUAL_NULLS

# Fewer values tell no kind of a column.
_MIN_COUNT = 3
_MAX_LEVELS = 6
_RULE = re.compile(r":-+:?|-+:|[:\s|+-]*--[:\s|+-]*")
# A name, a question or a description, also in brackets; `-` is the unit of what has none.
_UNIT = re.compile(r"(?!<)\W{0,2}[^\W\d].{0,200}|%|°\w?|1/\w+", re.DOTALL)


def check_no_second_header(rows: FirstRows, num_skipped: int = 0) -> None:
    """Checks that the lines below the first one are rows: where all values of a column but its first are numbers, dates
    or the like, a line may hold names, or units, unless a value of it is of the kind of its column. Two such lines may
    be there, as loggers write them. Below merged cells, and above the names of an index, numbers are names too.

    Args:
        rows: The first line, which may be the header, and what is below it.
        num_skipped: Lines above the header that `--skip-lines` passes over.

    Raises:
        UsageError: If one may be none.
    """
    lines = [[cell.strip() for cell in rows.cells], *_first_lines(rows.below, _MAX_LEVELS)]
    num_titles = _num_titles(lines)
    if num_titles:
        raise UsageError(
            "the first line may be a title above the table",
            where=place(rows.file),
            why="cells of it are empty, and none of a line below it is",
            next_step=f"Say which: --skip-lines {num_skipped + num_titles} takes {shown(lines[num_titles][0])} and the "
            "like as the names, --header takes the first line",
        )
    _check_no_rule(rows, lines)
    number, why = _num_levels(lines), "names of several levels are written so, by data frames and above merged cells"
    # Data frames repeat the outer names, also where the index has no name or is left out.
    is_repeated = len(set(lines[0])) < len(lines[0])
    has_levels = number > 0 or is_repeated or "" in lines[0][1:]
    for few in (2, 1):
        if not number and (word := _word_above_kinds(rows.below, few, are_few=is_repeated)) is not None:
            number, why = few, f"{shown(word)} stands above values of another kind in it"
    if not number:
        return
    if number == 1 and (mark := COMMENT.match(rows.cells[0])) is not None:
        ways = f"--comment {shlex.quote(mark[0])} takes it as the names"
    else:
        first = num_skipped + 1
        are_names = number == 1 and not has_levels and len(set(lines[1])) == len(lines[1])
        as_names = f"--skip-lines {first} takes it as the names, " if are_names else ""
        names = columns_option(_joined(lines[: number + 1]) if has_levels else lines[0])
        ways = f"{as_names}--skip-lines {first + number} {names} leaves {'it' if number == 1 else 'them'} out"
    below, reader = ("the second line", "it as a row") if number == 1 else (f"lines 2 to {number + 1}", "them as rows")
    raise UsageError(
        f"{below} may be names, units or {'a row' if number == 1 else 'rows'}",
        where=place(rows.file),
        why=why,
        next_step=f"Say which: {ways}, --header takes {reader}",
    )


def _check_no_rule(rows: FirstRows, lines: Sequence[Sequence[str]]) -> None:
    if len(lines) > 1 and any(lines[1]) and all(not cell or _RULE.fullmatch(cell) for cell in lines[1]):
        plain = "sed -E '2d; s/^ *[|] *| *[|] *$//g; s/ *[|] */|/g'"
        raise UsageError(
            "the second line is a rule, as tables of Markdown have it",
            where=place(rows.file),
            why=f"it holds {shown(next(filter(None, lines[1])))} and the like alone",
            next_step=f"To have the rows, run  {plain} {shlex.quote(printable(rows.file.path))} >table.csv  and "
            "convert table.csv. --header takes the line as a row",
        )


def _num_titles(lines: Sequence[Sequence[str]]) -> int:
    """Returns how many lines are above that of names: a title in the first cell, or lines above one that is blank."""
    names = next((i for i, line in enumerate(lines) if all(line)), 0)
    titles = [line for line in lines[:names] if any(line)]
    is_alone = len(titles) == 1 and not any(titles[0][1:])
    are_titles = len(lines[0]) >= _MIN_COUNT and any(lines[0]) and (is_alone or len(titles) < names)
    return names if are_titles and not any(map(is_of_a_kind, lines[names])) else 0


def _num_levels(lines: Sequence[Sequence[str]]) -> int:
    """Returns how many lines below the first one are names with it; 0 if none is for sure.

    Data frames write a line of each level of names, of which the outer ones repeat, and then the name of the index
    alone. Below merged cells, as of `Area;Men;;Women;`, the second line begins with an empty one, as `;2023;2024`.
    """
    if len(lines[0]) < _MIN_COUNT or len(lines) < _MIN_COUNT:
        return 0
    index = next((i for i, line in enumerate(lines) if i > 1 and line[0] and not any(line[1:])), 0)
    levels = lines[:index]
    if levels and all(all(line[1:]) for line in levels) and len(set(lines[0][1:])) < len(lines[0]) - 1:
        return index
    # Nor has the line of an index without a name a first cell, which the rows below have.
    levels = list(takewhile(lambda line: not line[0], lines[1:]))
    further = lines[1 + len(levels) :]
    is_merged = not all(lines[0][1:]) or not lines[0][0]
    are_names = bool(levels and further) and all(all(line[1:]) for line in levels) and all(line[0] for line in further)
    return len(levels) if is_merged and are_names else 0


def _joined(lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns names that are joined of all levels."""
    outer = [lines[0][0]]
    for cell in lines[0][1:]:
        outer.append(cell or (outer[-1] if len(outer) > 1 else ""))
    return ["_".join(cell for cell in cells if cell) for cells in zip(outer, *lines[1:], strict=True)]


def _word_above_kinds(below: Sequence[pa.Array], number: int, *, are_few: bool) -> str | None:
    """Returns a word of the first lines above values of other kinds; None if these may be rows.

    A cell may be empty, as that of the units of a time. Few values are enough below a line of words alone.

    Args:
        are_few: Whether few values are enough anyway.
    """
    words: list[str] = []
    are_words = all(len(column) > number and _is_unit((column[0].as_py() or "").strip()) for column in below)
    min_count = 1 if are_few or (are_words and len(below) > 2) else _MIN_COUNT
    for column in below:
        first = [(cell or "").strip() for cell in column[:number].to_pylist()]
        rest = column[number:].drop_null()
        kind = kind_of(rest) if len(rest) >= min_count else None
        if kind is None or share(rest, KINDS[kind]) < 1:
            continue
        given = [cell for cell in first if cell]
        if not all(map(_is_unit, given)):
            return None
        words += [cell for cell in given if cell != "-"]
    # A bad row may be a word with nothing behind it.
    is_alone = len(words) == 1 and len(below) > 1 and not any(_first_lines(below[1:], 1)[0])
    return words[0] if words and all(map(any, _first_lines(below, number))) and not is_alone else None


def _first_lines(below: Sequence[pa.Array], number: int) -> list[list[str]]:
    is_there = [line for line in range(number) if all(len(column) > line for column in below)]
    return [[(column[line].as_py() or "").strip() for column in below] for line in is_there]


def _is_unit(cell: str) -> bool:
    is_word = _UNIT.fullmatch(cell) is not None and cell not in USUAL_NULLS and cell.lower() not in NO_VALUES
    return cell == "-" or (is_word and not is_of_a_kind(cell))
