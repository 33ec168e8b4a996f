"""Several tables in one file: a header line that stands again, or another one below a blank line."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.columns.sampling import HEAD_BYTES
from shardkit.sources.csv.dialect import Dialect, read_dialect
from shardkit.sources.csv.header import FirstRows, is_of_a_kind, made_names, read_header
from shardkit.sources.files.streams import is_seekable, open_stream, read_head
from shardkit.units import KiB, format_number

_WITHOUT_REPEATED = "NR == 1 {h = tolower($0)} NR == 1 || tolower($0) != h"
_MARK = "\ufeff"
_TAIL_BYTES = 64 * KiB
# It begins with a byte that `re` can search for, which takes a ninth of the time.
_BLANK_LINES = re.compile(rb"\n(?:[ \t]*\r?\n)+(?=[^\r\n])")


def check_one_table(rows: FirstRows, options: SourceOptions) -> None:
    """Checks that the first rows of a file are those of one table.

    Raises:
        UsageError: If its header line stands again among them, or another one below a blank line.
    """
    dialect = read_dialect(rows.file, msgspec.structs.replace(options, columns=made_names(len(rows.cells))))
    if dialect is None:
        return
    text = read_head(rows.file, HEAD_BYTES)
    _check_header_stands_once(rows, text)
    _check_no_other_header(rows.file, text[dialect.data_start :], dialect)


def _check_header_stands_once(rows: FirstRows, text: bytes) -> None:
    # Without the lines that repeat it the first line must be one of names: a row may stand twice.
    if not rows.below or len(rows.cells) < 2:
        return
    # A file of Excel, too, begins with a mark, which stays where files were put together.
    below = [pc.utf8_ltrim(rows.below[0], _MARK), *rows.below[1:]]
    same = (pc.equal(pc.utf8_lower(col), cell.lower()) for col, cell in zip(below, rows.cells, strict=True))
    is_repeated = pc.fill_null(functools.reduce(pc.and_, same), False)
    if not pc.any(is_repeated).as_py():
        return
    rest = [column.filter(pc.invert(is_repeated)) for column in rows.below]
    if read_header(rows.cells, rest).kind != "names":
        return
    number = pc.sum(is_repeated.cast(pa.int64())).as_py()
    name = printable(rows.file.path)
    made = shlex.quote("one-" + name.rpartition("/")[2])
    raise UsageError(
        "the header line stands again among the rows",
        where=place(rows.file, line=_line_of_repeated(text)),
        why=f"{format_number(number, 'row')} of those looked at {'are' if number > 1 else 'is'} the same line, as "
        "where files were put together",
        next_step=f"Leave these lines out by  awk {shlex.quote(_WITHOUT_REPEATED)} "
        f"{shlex.quote(name)} >{made}  and convert that file, or read "
        "them as rows with --header, or the first line too with --no-header",
    )


def _line_of_repeated(text: bytes) -> int | None:
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return None
    header = lines[first].removeprefix(b"\xef\xbb\xbf").lower()
    rest = (line.removeprefix(b"\xef\xbb\xbf") for line in lines[first + 1 :])
    return next((number for number, line in enumerate(rest, first + 2) if line.lower() == header), None)


def _check_no_other_header(file: RawFile, text: bytes, dialect: Dialect) -> None:
    for blank in _BLANK_LINES.finditer(text):
        above, below = text[: blank.start()], text[blank.end() :]
        if not above or dialect.rule.open_quote(above) is not None:
            continue
        before = _cells(dialect, above[above.rfind(b"\n") + 1 :])
        after = _cells(dialect, below.partition(b"\n")[0])
        if len(after) < 2 or not all(map(_is_word, after)) or not any(map(is_of_a_kind, before)):
            continue
        line = dialect.first_line + dialect.rule.count_lines(text[: blank.end()])
        name, base = shlex.quote(printable(file.path)), printable(file.name.rpartition("/")[2])
        first, second = (shlex.quote(f"{word}-{base}") for word in ("first", "second"))
        raise UsageError(
            "a second table stands below a blank line",
            where=place(file, line=line),
            why=f"{', '.join(map(shown, after[:3]))} may be names of columns",
            next_step=f"Cut the file by  head -n {line - 1} {name} >{first}; tail -n +{line} {name} >{second}  and "
            "convert one of them, or read all lines as rows with --header",
        )


def _cells(dialect: Dialect, record: bytes) -> list[str]:
    return [field.decode("utf-8", "replace").strip() for field in dialect.rule.fields(record)]


def _is_word(cell: str) -> bool:
    return re.search(r"[^\W\d]", cell) is not None and not is_of_a_kind(cell)


def empty_rows_notes(file: RawFile, dialect: Dialect) -> Iterator[str]:
    """Yields a note on lines of delimiters alone at the end of a file, as spreadsheets write them."""
    if len(dialect.columns) < 2 or not is_seekable(file):
        return
    with open_stream(file, max(dialect.data_start, file.num_bytes - _TAIL_BYTES)) as stream:
        tail = stream.read(_TAIL_BYTES)
    lines = [line for line in tail.splitlines() if line]
    empty = dialect.delimiter.encode() * (len(dialect.columns) - 1)
    number = next((count for count, line in enumerate(reversed(lines)) if line != empty), len(lines))
    if number:
        yield (
            f"{format_number(number, 'line')} at the end of {printable(file.name)} {'hold' if number > 1 else 'holds'} "
            f"delimiters alone, and {'become rows' if number > 1 else 'becomes a row'} of nulls; --select "
            f"{shlex.quote(f'SELECT * FROM rows WHERE {_identifier(dialect.columns[0])} IS NOT NULL')} leaves them out"
        )


def _identifier(name: str) -> str:
    return name if re.fullmatch("[A-Za-z_]+", name) else f'"{name.replace(chr(34), chr(34) * 2)}"'
