"""Whether the first line of delimited text names its columns: decided from that line and the values below it.

A cell of the first line is a sign of data if a value below it could be the same: a number over numbers, a date over
dates, a word that stands again below it. It is a sign of a header if no value below it could be: a word over numbers, a
word above a few classes, a name above sentences. Where signs contradict each other, or none is there, the line stays
undecided: a wrong guess loses a row, or reads names as values.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from glob import escape
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.file_types import suffix_of
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.file_globs import glob_in_shell
from shardkit.sources.text.column_notes import DECIMAL_COMMA, STYLED
from shardkit.sources.text.type_inference import USUAL_NULLS, count_from_zero

# A column is of a kind if this share of its values is. A word among numbers is often an unusual way to write null.
_KIND_SHARE = 0.8
_PLAIN_NUMBER = r"^\s*[-+]?([$€£]?([0-9][0-9,_]*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*%?|(?i:nan|inf|infinity))\s*$"
KINDS = {
    "number": rf"{_PLAIN_NUMBER}|{STYLED}|{DECIMAL_COMMA}",
    "date": r"^\s*[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([ T].*)?$",
    "time": r"^\s*[0-9]{1,3}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?\s*([aApP][mM])?\s*$",
    "boolean": r"(?i)^\s*(true|false|yes|no)\s*$",
}
# Good and Turing: the share of values that occur once is about the chance that one more value is new.
_MAX_NEW_SHARE = 0.01
_MIN_VALUES = 20
# Fewer numbers in order may be values.
_MIN_COUNT = 3
_LISTED_CELLS = 5
_MAX_SHORTER_SHARE = 0.02
_NAME = re.compile(r"[^\W\d][\w .:/()%#$&+@*\[\]'-]{0,59}")
COMMENT = re.compile(r"#|%|//|--")
# What stands for a value that is not there, and is no name.
NO_VALUES = frozenset("absent invalid missing nil none offline pending tbd undefined unknown".split())  # noqa: SIM905
# As `<missing>`.
_IN_BRACKETS = re.compile(r"<.*>|\[.*\]|\(.*\)")
_SENTENCE_CHARACTERS = 24
_ENTRY = r"^\s*[\pL'-]+(?: [\pL'-]+)?\s*$"
_YEAR = "(1[0-9]|20)[0-9]{2}"
# What people call columns.
_USUAL_NAMES = frozenset(
    """abstract address age answer artist author body caption category city class code comment content country created
    date description email file filename gender id image image_id img index key label labels lang language lat latitude
    lon longitude month name path phone price question rating region review score sentence sentiment sex source species
    split state status tag tags target text time timestamp title token tokens tweet type url user user_id username value
    weight word words year""".split()  # noqa: SIM905
)
_EITHER = "--header takes the first line as names, --no-header as values, and --columns A,B,... gives names"


class HeaderReading(NamedTuple):
    """What a first line is.

    Attributes:
        kind: `names`, or `values`, or `undecided`.
        why: The sign that decides, or the two that contradict each other, in words.
        is_sure: Whether that needs no note.
    """

    kind: Literal["names", "values", "undecided"]
    why: str
    is_sure: bool = True


def read_header(cells: Sequence[str], columns: Sequence[pa.Array]) -> HeaderReading:
    """Returns what a first line is.

    Args:
        cells: Of the line, without their quotes.
        columns: The text values below each cell; null where there is none.
    """
    names = [cell.strip() for cell in cells]
    given = [name for name in names if name]
    if not any(len(column) for column in columns):
        return HeaderReading("values" if any(map(is_of_a_kind, given)) else "names", "it is the only line")
    if not given:
        return HeaderReading("names", "it is blank")
    values = [column.drop_null() for column in columns]
    if _counts_columns(names, values):
        return HeaderReading("names", "its cells count the columns")
    signs = [_sign(name, below) for name, below in zip(names, values, strict=True)]
    if (series := _series_of(names, values)) is not None and (read := _read_series(names, signs, series)) is not None:
        return read
    found = [sign for sign in signs if sign is not None]
    of_values = [sign.why for sign in found if not sign.is_name]
    of_names = [sign.why for sign in found if sign.is_name]
    repeated = next((name for name, count in Counter(given).items() if count > 1), None)
    if of_names and of_values and any(sign.is_sure for sign in found if sign.is_name):
        return HeaderReading("undecided", f"{of_names[0]}, but {of_values[0]}")
    if of_values:
        return HeaderReading("values", of_values[0])
    usual = {name.lower(): name for name in given if name.lower() in _USUAL_NAMES}
    if of_names:
        return HeaderReading("names", of_names[0], bool(usual) or any(sign.is_sure for sign in found))
    if repeated is not None:
        return HeaderReading("values", f"{shown(repeated)} stands twice in it")
    are_entries = len(usual) < len(names) and _is_glossary(values)
    if usual and not are_entries and len(given) == len(names) and all(_NAME.fullmatch(name) for name in names):
        first = next(iter(usual.values()))
        return HeaderReading("names", f"{shown(first)} is a usual name of a column", len(usual) == len(names))
    are_words = all(kind_of(column) is None for column in values)
    return HeaderReading("undecided", "all values below it are text" if are_words else "no cell of it is like a name")


def _is_glossary(values: Sequence[pa.Array]) -> bool:
    """Whether two columns hold words that hardly occur twice, as of two languages: `word` and `Wort` may be a row."""
    return len(values) == 2 and all(
        len(column) > 0 and share(column, _ENTRY) >= _KIND_SHARE and len(column.unique()) >= _KIND_SHARE * len(column)
        for column in values
    )


def _counts_columns(names: Sequence[str], values: Sequence[pa.Array]) -> bool:
    """Whether a first line counts its columns, as data frames write those that have no names.

    Few numbers over numbers may be values, unless those below an empty first cell count the rows or are words.
    """
    given = [name for name in names if name]
    starts_empty = not names[0] and len(given) == len(names) - 1
    if not count_from_zero(given) and not (starts_empty and given == [str(i) for i in range(1, len(names))]):
        return False
    texts = (below for name, below in zip(names, values, strict=True) if name and len(below))
    is_over_texts = any(not share(below, KINDS["number"]) for below in texts)
    is_index = (
        starts_empty
        and len(values[0]) > 0
        and (count_from_zero(values[0].to_pylist()) or not share(values[0], KINDS["number"]))
    )
    return len(given) > _MIN_COUNT or is_over_texts or is_index


class FirstRows(NamedTuple):
    """The first line of a file, and the first values below it.

    Attributes:
        file: The file.
        cells: Of the line, without their quotes.
        below: The text values below each cell; null where there is none.
    """

    file: RawFile
    cells: tuple[str, ...]
    below: list[pa.Array]


def have_header(found: Sequence[FirstRows]) -> bool:
    """Returns whether the first lines of some files name their columns. A line that all files begin with does.

    Raises:
        UsageError: If nothing decides it, or some files have a header line and others have none.
    """
    read = [(rows, read_header(*rows[1:])) for rows in found]
    readings = {reading.kind: (rows.file, reading.why) for rows, reading in reversed(read)}
    if "names" in readings and "values" in readings:
        (file, why), (other, why_not) = readings["names"], readings["values"]
        raise UsageError(
            f"{printable(file.name)} has a header line, and {printable(other.name)} has none",
            why=f"{why}; {why_not}",
            next_step=f"Convert those with a header line alone by --header{_without(read, 'values')}, and the others "
            f"by --no-header{_without(read, 'names')}",
        )
    is_common = len(found) > 1 and len({rows.cells for rows in found}) == 1
    if len(readings) == 1 and "undecided" in readings and not is_common:
        file, why = readings["undecided"]
        lines = "" if suffix_of(file.name) in (".csv", ".tsv") else "; --format text reads lines"
        mark = next((COMMENT.match(rows.cells[0]) for rows in found if rows.file == file and rows.cells), None)
        comment = f"; --comment {shlex.quote(mark[0])} passes over lines that begin so" if mark else ""
        # Data loggers of Campbell write themselves above the names.
        is_logger = any(rows.cells[:1] == ("TOA5",) for rows in found if rows.file == file)
        logger = "; --skip-lines 1 leaves out the line that describes a logger" if is_logger else ""
        step = f"Say which: {_EITHER}{comment}{lines}{logger}"
        raise UsageError("the first line may be names or values", where=place(file), why=why, next_step=step)
    return "values" not in readings


def check_no_names(found: Sequence[FirstRows], columns: Sequence[str], num_skipped: int) -> None:
    """Checks that no first line of some files names columns whose names are given: it would be a row of words.

    Args:
        num_skipped: Lines above it that `--skip-lines` passes over.

    Raises:
        UsageError: If one surely does.
    """
    for rows in found:
        reading = read_header(*rows[1:])
        is_alike = len(rows.cells) == len(columns) and any(map(len, rows.below))
        if reading.kind == "names" and reading.is_sure and is_alike:
            raise UsageError(
                "the first line may name the columns, as --columns does",
                where=place(rows.file),
                why=reading.why,
                next_step=f"Say which: --skip-lines {num_skipped + 1} leaves it out, --no-header reads it as a row",
            )


def _without(read: Sequence[tuple[FirstRows, HeaderReading]], kind: str) -> str:
    return "".join(f" --exclude {glob_in_shell(escape(rows.file.name))}" for rows, one in read if one.kind == kind)


def header_notes(file: RawFile, columns: Sequence[str], rows: FirstRows | None) -> Iterator[str]:
    """Yields notes where the first line that names the columns may be a row after all.

    Args:
        file: That begins with it.
        rows: The line and what is below it; None where that needs no look.
    """
    names = f"the first line of {printable(file.name)} names the columns"
    number = next((c for c in columns if c.strip().isdecimal()), None)
    if number is not None:
        yield f"{names}, though {shown(number)} is a number; --no-header reads it as a row"
    elif rows is not None and not (reading := read_header(*rows[1:])).is_sure:
        line = ", ".join(map(shown, rows.cells[:_LISTED_CELLS]))
        yield f"{names}, because {reading.why}: {line}; --no-header reads it as a row"


def made_names(number: int) -> tuple[str, ...]:
    """Returns names for columns that have none."""
    return tuple(f"column_{position}" for position in range(1, number + 1))


class _Sign(NamedTuple):
    # A sign is sure where the values below the cell are of another kind; a new word may still be a rare value.
    is_name: bool
    is_sure: bool
    why: str


def _sign(name: str, values: pa.Array) -> _Sign | None:
    values = values.filter(pc.invert(pc.is_in(values, pa.array(["", *USUAL_NULLS]))))
    is_no_value = name in USUAL_NULLS or name.lower() in NO_VALUES or _IN_BRACKETS.fullmatch(name) is not None
    if not name or is_no_value or not len(values):
        return None
    kind = kind_of(values)
    if kind is not None:
        if re.match(KINDS[kind], name):
            return _Sign(False, True, f"{shown(name)} is a {kind} as the values below it")
        is_date = kind == "number" and re.match(KINDS["date"], name)
        if kind == "number" and name[0].isnumeric() and not is_date:
            # As `12a` is among house numbers.
            return None
        is_word = is_date or (re.search(r"[^\W\d]", name) and not is_of_a_kind(name))
        return _Sign(True, True, f"{shown(name)} is no {kind}, but the values below it are") if is_word else None
    counts = values.value_counts()
    if pc.index(counts.field(0), pa.scalar(name, values.type)).as_py() >= 0:
        return _Sign(False, True, f"{shown(name)} stands again below it")
    if re.search("[0-9]", name) and share(values, _form_of(name)) >= _KIND_SHARE:
        return _Sign(False, True, f"{shown(name)} has the form of the values below it")
    if len(values) < _MIN_VALUES or not _NAME.fullmatch(name):
        return None
    if pc.sum(pc.equal(counts.field(1), 1)).as_py() <= _MAX_NEW_SHARE * len(values):
        return _Sign(True, False, f"{shown(name)} is none of the {len(counts):,} values below it")
    if _num_usual_characters(values) >= max(_SENTENCE_CHARACTERS, 2 * len(name)):
        return _Sign(True, False, f"{shown(name)} is much shorter than the values below it")
    return None


def kind_of(values: pa.Array) -> str | None:
    if not len(values):
        return None
    return next((kind for kind, pattern in KINDS.items() if share(values, pattern) >= _KIND_SHARE), None)


def is_of_a_kind(cell: str) -> bool:
    """Returns whether a cell is a number, a date, a time or a boolean."""
    return any(re.match(pattern, cell) for pattern in KINDS.values())


def _form_of(cell: str) -> str:
    """Returns a pattern of cells whose letters, digits and signs stand as in this one, such as `s17` for `s1`."""
    parts = re.findall(r"[0-9]+|[^\W\d_]+|[\W_]", cell)
    forms = (r"[0-9]+" if part[0].isdigit() else r"\pL+" if part[0].isalpha() else re.escape(part) for part in parts)
    return f"^{''.join(forms)}$"


def share(values: pa.Array, pattern: str) -> float:
    return float(pc.mean(pc.match_substring_regex(values, pattern).cast(pa.float64())).as_py())


def _num_usual_characters(values: pa.Array) -> int:
    # Nearly no value is shorter.
    return int(pc.quantile(pc.utf8_length(values), _MAX_SHORTER_SHARE, interpolation="lower")[0].as_py())


class _Series(NamedTuple):
    # Cells that are numbers in order, as wide tables have them in their header.
    positions: frozenset[int]
    why: str
    is_over_alike: bool


def _series_of(names: Sequence[str], values: Sequence[pa.Array]) -> _Series | None:
    numbers = {i: int(name) for i, name in enumerate(names) if re.fullmatch("[0-9]{1,6}", name)}
    if len(numbers) >= _MIN_COUNT and list(numbers.values()) == list(range(len(numbers))):
        return _Series(frozenset(numbers), "its numbers count from 0", is_over_alike=False)
    years = {i: number for i, number in numbers.items() if re.fullmatch(_YEAR, names[i]) and len(values[i])}
    if len(years) < 2 or any(after - before != 1 for before, after in itertools.pairwise(years.values())):
        return None
    is_over_years = all(share(values[i], f"^{_YEAR}$") >= 1 - _KIND_SHARE for i in years)
    return _Series(frozenset(years), "its years follow each other", is_over_years)


def _read_series(names: Sequence[str], signs: Sequence[_Sign | None], series: _Series) -> HeaderReading | None:
    """Returns what a first line is in which numbers are in order; None if the other cells or the values below tell."""
    others = [sign for i, sign in enumerate(signs) if sign is not None and i not in series.positions]
    if not all(sign.is_name for sign in others):
        return None
    words = {word for name in names for word in re.findall(r"[^\W\d_]+", name.lower())}
    is_usual = not words.isdisjoint(_USUAL_NAMES)
    is_name = bool(others) or is_usual or not all(names)
    if is_name and not series.is_over_alike:
        return HeaderReading("names", series.why, is_usual)
    numbers = "its numbers may be values as those below them"
    return HeaderReading("undecided", f"{series.why}, but {numbers}") if is_name or not series.is_over_alike else None
