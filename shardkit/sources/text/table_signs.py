"""Whether a text is a table: the same number of fields in nearly all lines, as no prose has."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardkit.errors import UsageError
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.columns.sampling import HEAD_BYTES
from shardkit.sources.files.streams import read_head
from shardkit.sources.text.quoting import QuotedRecords, sniff_delimiter
from shardkit.sources.text.splits import BOM

_EVEN_SHARE = 0.95
_SAMPLED_LINES = 200
_MIN_LINES = 3
_MIN_COLUMNS = 3
_MIN_SHORT_LINES = 10
_SHORT = 8
_MAX_WIDTH = 4096
_NUMBER_SHARE = 0.8
_TAG_SHARE = 0.6
_BLANKS = 'read_csv({}, sep=r"\\s+", '
_MILLISECONDS = re.compile(rb"(\d:\d\d:\d\d),(\d{3}\b)")
_WORD = re.compile(rb'"(?:[^"]|"")*"(?=\s|$)|\S+')
# Numbers between several blanks, in one field of a table.
_PADDED = re.compile(r"\s*[-+.\d?]+(?:\s{2,}[-+.\d?]+){2,}\s*")
_NUMBER = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


class BlankColumns(NamedTuple):
    """Columns between blanks.

    Attributes:
        num_columns: How many words each line has.
        num_numeric: In how many of these columns nearly all are numbers.
        is_single: Whether one blank is between two words, and none before the first.
        has_quotes: Whether words are in quotes, which may hold blanks.
        names: Those of a first line that names one column fewer, as R writes it; else none.
    """

    num_columns: int
    num_numeric: int
    is_single: bool
    has_quotes: bool = False
    names: tuple[str, ...] = ()

    @property
    def is_table(self) -> bool:
        """Whether half of the columns or more are numbers; in a log of equal lines fewer are."""
        return 2 * self.num_numeric >= self.num_columns


def looks_like_table(head: bytes) -> bool:
    """Whether one delimiter cuts nearly all lines into the same number of fields.

    Commas before blanks do so in lists and verses too: there a column must be one of numbers.
    """
    delimiter = even_delimiter(head)
    if delimiter is None or has_colon_pairs(head):
        return False
    lines = _whole_lines(head)
    is_spaced = lines.count(f"{delimiter} ".encode()) * 2 > lines.count(delimiter.encode())
    if delimiter not in ",;" or not is_spaced:
        return True
    rule = QuotedRecords(delimiter)
    rows = [[cell.strip() for cell in rule.fields(line)] for line in _sample(lines)]
    return _num_numeric(rows) > 0


def even_delimiter(head: bytes) -> str | None:
    """Returns the delimiter that cuts nearly all lines into the same number of fields, None if none does."""
    lines = _whole_lines(head)
    delimiter = sniff_delimiter(lines, True)
    widths = QuotedRecords(delimiter).records(lines).widths
    usual = np.bincount(widths).argmax() if len(widths) > 1 else 1
    # The first line may be a title.
    widths = widths[1:] if usual >= _MIN_COLUMNS and widths[0] == 1 else widths
    is_even = usual > 1 and (widths == usual).mean() >= _EVEN_SHARE
    # Lines of code end in semicolons.
    num_at_ends = lines.count(f"{delimiter}\n".encode()) + lines.count(f"{delimiter}\r\n".encode())
    is_code = usual == 2 and num_at_ends * 2 > len(widths)
    return delimiter if is_even and not is_code else None


def may_be_table(head: bytes) -> bool:
    """Whether a text is a table or has short words between even commas before blanks, as no sentences are."""
    delimiter = even_delimiter(head)
    if delimiter is None or looks_like_table(head):
        return delimiter is not None
    cells = [line.split(delimiter.encode()) for line in _sample(_whole_lines(head)) if line.strip()]
    lengths = [len(cell.strip()) for row in cells for cell in row]
    is_wide = np.median([len(row) for row in cells]) >= _MIN_COLUMNS
    return bool(is_wide and len(cells) >= _MIN_SHORT_LINES and np.mean(lengths) <= _SHORT)


def has_colon_pairs(head: bytes) -> bool:
    """Whether all lines have the same number of `::`, two or more, which MovieLens writes between its columns."""
    counts = {line.count(b"::") for line in _sample(_whole_lines(head)) if line.strip()}
    return len(counts) == 1 and counts.pop() > 1


def columns_between_blanks(head: bytes) -> BlankColumns | None:
    """Returns the columns of a text whose lines all have the same number of words, one column of numbers at least."""
    lines = [line for line in _sample(_whole_lines(head)) if line.strip()]
    rows = [[word.strip(b'"') for word in _WORD.findall(line)] for line in lines]
    width = len(rows[-1]) if rows else 0
    lacks_name = bool(rows) and len(rows[0]) == width - 1
    if len(rows) < _MIN_LINES or width < _MIN_COLUMNS or any(len(row) != width for row in rows[lacks_name:]):
        return None
    num_numeric = _num_numeric(rows)
    names = [word.decode(errors="replace") for word in rows[0]] if lacks_name else []
    has_quotes = any(b'"' in line for line in lines)
    return BlankColumns(width, num_numeric, _are_single(lines), has_quotes, tuple(names)) if num_numeric else None


def has_fixed_widths(head: bytes) -> bool:
    """Whether blanks are at the same places of all lines, two or more in a row, and half of the columns or more
    between them are numbers, as in files of fixed widths."""
    lines = [line.expandtabs().rstrip() for line in _sample(_whole_lines(head)) if line.strip()]
    width = max(map(len, lines), default=0)
    if (
        len(lines) < _MIN_SHORT_LINES
        or width > _MAX_WIDTH
        or sum(b"  " in line.strip() for line in lines) < len(lines) / 2
    ):
        return False
    are_blank = np.all([np.frombuffer(line.ljust(width), np.uint8) == ord(" ") for line in lines], axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate([[True], are_blank, [True]])))
    columns = [[line[start:stop].strip() for line in lines] for start, stop in edges.reshape(-1, 2).tolist()]
    rows = list(zip(*columns, strict=True))
    return len(columns) > 1 and 2 * _num_numeric(rows) >= len(columns)


def _are_single(lines: Sequence[bytes]) -> bool:
    return all(b" ".join(_WORD.findall(line)) == line.rstrip() for line in lines)


def _num_numeric(rows: Sequence[Sequence[bytes]]) -> int:
    width = np.bincount([len(row) for row in rows]).argmax()
    columns = zip(*(row for row in rows if len(row) == width), strict=True)
    return sum(
        sum(_NUMBER.fullmatch(cell) is not None for cell in column) >= _NUMBER_SHARE * len(column) for column in columns
    )


def _whole_lines(head: bytes) -> bytes:
    # Python's logs write milliseconds behind a comma.
    text = _MILLISECONDS.sub(rb"\1.\2", head.removeprefix(BOM))
    return text[: text.rfind(b"\n") + 1] or text


def _sample(lines: bytes) -> list[bytes]:
    return lines.splitlines()[:_SAMPLED_LINES]


def check_no_padded_columns(file: RawFile, fields: Sequence[Sequence[str | None]]) -> None:
    """Checks that no field of a table holds several numbers between blanks, as where a tab is before the last one.

    Args:
        fields: Of the first rows, by column.

    Raises:
        UsageError: If one does in all rows.
    """
    for values in fields:
        if len(values) > 1 and all(value is not None and _PADDED.fullmatch(value) for value in values):
            raise UsageError(
                "the text looks like a table with blanks between its columns",
                where=place(file),
                why=f"a field of it is {shown(str(values[0]))}",
                next_step=f"{_rewritten(file, _BLANKS)}; --delimiter tab takes the fields between tabs as they are",
            )


def check_no_odd_columns(file: RawFile) -> None:
    """Checks that a text is no table whose columns are between blanks, most of them numbers, or between `::`.

    Raises:
        UsageError: If it is.
    """
    head = read_head(file, HEAD_BYTES)
    found = columns_between_blanks(head)
    example = shlex.quote(printable(file.path))
    what = "the text looks like a table with blanks between its columns"
    if has_colon_pairs(head):
        what = "the text looks like a table with :: between its columns"
        why = "all of its first lines have the same number of them"
        columns = f"to have the columns, run  sed -E 's/::/\\t/g' {example} >table.tsv"
    elif found is not None and found.is_table:
        why = f"each of its first lines has {found.num_columns} words, {found.num_numeric} of them numbers"
        if found.names:
            why = f"each of its lines but the first has {found.num_columns} words"
        columns = f"to have the columns, run  sed -E 's/^ +| +$//g; s/[ \\t]+/,/g' {example} >table.csv"
        if found.is_single:
            names = f" --skip-lines 1 --columns {shlex.quote(','.join(['row', *found.names]))}" if found.names else ""
            columns = f"--delimiter ' '{names} reads the columns"
        elif found.has_quotes:
            columns = _rewritten(file, _BLANKS)
    elif has_fixed_widths(head):
        why, columns = "blanks stand at the same places of all lines", _rewritten(file, "read_fwf({}, ")
    else:
        return
    raise UsageError(what, where=place(file), why=why, next_step=f"--format text reads its lines; {columns}")


def check_no_tokens(file: RawFile, format: str) -> None:
    """Checks that the lines of a table or text are no words of sentences with columns each, as CoNLL has them.

    Raises:
        UsageError: If they are.
    """
    if has_token_lines(read_head(file, HEAD_BYTES)):
        raise UsageError(
            "the lines look like the words of sentences, between which blank lines stand",
            where=place(file),
            why="all lines of its first groups have the same number of columns",
            next_step=f"Add --text-record paragraph to make each sentence a row, or --format {format} for each word; "
            "rows are shuffled, so the words of a sentence are parted",
        )


def has_token_lines(head: bytes) -> bool:
    """Whether blank lines part groups of lines with the same number of columns, but for remarks behind `#`."""
    lines = [line.strip() for line in _sample(_whole_lines(head)) if not line.startswith(b"# ")]
    words = [line.split(b"\t") if b"\t" in line else line.split() for line in lines if line]
    num_groups = sum(bool(line) and not before for before, line in itertools.pairwise([b"", *lines]))
    widths = {len(word) for word in words}
    if num_groups < _MIN_LINES or len(words) < 2 * num_groups or len(widths) > 1 or min(widths) < 2:
        return False
    # Tags are few, and no numbers; groups of rows of a table have others.
    tags = [word[-1] for word in words]
    return len(set(tags)) <= _TAG_SHARE * len(tags) and not any(map(_NUMBER.fullmatch, tags))


def _rewritten(file: RawFile, call: str) -> str:
    """Returns the command that writes a text as CSV, as it is: its values stay text, its first line a row."""
    call = call.format(json.dumps(printable(file.path)))
    script = (
        f"import pandas; pandas.{call}header=None, dtype=str, keep_default_na=False)"
        '.to_csv("table.csv", index=False, header=False)'
    )
    return f"to have the columns, run  python -c {shlex.quote(script)}  and convert table.csv"
