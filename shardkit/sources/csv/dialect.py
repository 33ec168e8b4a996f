"""How one delimited file is written: its delimiter, its columns, and where its data starts."""

from __future__ import annotations

import functools
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, count

import msgspec

from shardkit.errors import DamagedFileError, UsageError
from shardkit.file_types import foreign_format
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.csv.titles import check_no_title
from shardkit.sources.files.streams import read_head
from shardkit.sources.text.quoting import SNIFF_BYTES, QuotedRecords, num_decimals, other_delimiter, sniff_delimiter
from shardkit.sources.text_heads import BOM, check_is_text
from shardkit.units import MiB, format_size

_HEADER_BYTES = MiB
_HINT = re.compile(rb"(?P<quote>\x22?)sep=(?P<delimiter>[\x09\x20-\x7e])(?P=quote)(?:\r\n|\n|\r)[\r\n]*", re.IGNORECASE)
_SAME_HEADER = (
    "Add --union-by-name, which makes missing values null, leave columns unread with --drop-columns, leave files out "
    "with --exclude GLOB, or convert them one by one"
)
_LISTED_FILES, _LISTED_COLUMNS = 5, 10


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How one delimited file is written.

    Attributes:
        delimiter: One character.
        columns: Names, in the order of the file.
        data_start: Byte where the first data record starts, after decompression.
        first_line: 1-based line number of that record.
        other_delimiter: One that the text holds although only one column was found.
        has_bom: Whether it begins with a byte order mark.
        unnamed: Those of the columns that the header does not name, called after their positions.
        has_quotes: Whether quotes are more than text.
    """

    delimiter: str
    columns: tuple[str, ...]
    data_start: int
    first_line: int
    other_delimiter: str | None = None
    has_bom: bool = False
    unnamed: tuple[str, ...] = ()
    has_quotes: bool = True

    @property
    def rule(self) -> QuotedRecords:
        """Where records end."""
        return QuotedRecords(self.delimiter, self.has_quotes)


# Planning asks for that of every file several times, and so does reading in the same process.
@functools.lru_cache(maxsize=65536)
def read_dialect(file: RawFile, options: SourceOptions) -> Dialect | None:
    """Returns how a file is written, None if it holds nothing but blank lines.

    Raises:
        UsageError: If the header names a column twice or not at all, or the delimiter is none.
        DamagedFileError: If the text is not UTF-8, or the header is damaged or does not end.
    """
    head = read_head(file, SNIFF_BYTES)
    dialect = parse_dialect(head, len(head) < SNIFF_BYTES, file, options)
    if dialect is None and len(head) == SNIFF_BYTES:
        head = read_head(file, _HEADER_BYTES)
        dialect = parse_dialect(head, len(head) < _HEADER_BYTES, file, options)
        if dialect is None and len(head) == _HEADER_BYTES and head.strip():
            raise DamagedFileError(
                "the header line does not end", where=place(file), why=f"within {format_size(_HEADER_BYTES)}"
            )
    return dialect


def read_first_line(file: RawFile, options: SourceOptions) -> tuple[str, ...]:
    """Returns the cells of the first line that is not blank, as they stand without quotes; none if there is no line.

    Raises:
        UsageError: If the delimiter is none.
        DamagedFileError: If the text is not UTF-8.
    """
    dialect = read_dialect(file, msgspec.structs.replace(options, columns=()))
    if dialect is None:
        return ()
    text = read_head(file, _HEADER_BYTES)[dialect.data_start :]
    return tuple(
        field.decode(errors="replace") for field in dialect.rule.fields(text[: int(dialect.rule.ends(text)[0])])
    )


def parse_dialect(head: bytes, is_whole: bool, file: RawFile, options: SourceOptions) -> Dialect | None:
    """Returns how a text with this head is written, None if no record ends in it.

    Args:
        is_whole: Whether that is all of it.
        options: Hold the columns of a file without a header, and a delimiter.

    Raises:
        UsageError, DamagedFileError: As `read_dialect`.
    """
    check_is_text(head, file)
    start = len(BOM) if head.startswith(BOM) else 0
    text = head[start:]
    blank = len(text) - len(text.lstrip(b"\r\n"))
    text = text[blank:]
    if not text:
        return None
    # Excel may write the delimiter on a separate line.
    hint = _HINT.match(text)
    if hint is not None:
        blank += hint.end()
        text = text[hint.end() :]
        if not text:
            return None
        options = msgspec.structs.replace(options, delimiter=options.delimiter or hint["delimiter"].decode())
    delimiter = _delimiter(text, is_whole, options, place(file))
    rule = QuotedRecords(delimiter, options.quote != "none")
    first_line = 1 + rule.count_lines(head[start : start + blank])
    unnamed: tuple[str, ...] = ()
    if not options.columns:
        check_no_title(text, is_whole, rule, place(file), first_line, is_sure=options.delimiter is not None)
    header, columns = b"", options.columns
    if columns is None:
        header = text[: int(rule.ends(text)[0])]
        if len(header) == len(text) and not is_whole:
            return None
        columns, unnamed = _header_columns(header, rule, file, start + blank, first_line)
    return Dialect(
        delimiter=delimiter,
        columns=columns,
        data_start=start + blank + len(header),
        first_line=first_line + rule.count_lines(header),
        other_delimiter=other_delimiter(text, is_whole, rule) if len(columns) == 1 else None,
        has_bom=start > 0,
        unnamed=unnamed,
        has_quotes=rule.has_quotes,
    )


def quoted_rows_notes(file: RawFile, dialect: Dialect) -> tuple[str, ...]:
    """Returns a note on the first record whose quotes hold lines that would be records by themselves."""
    text = read_head(file, SNIFF_BYTES)[dialect.data_start :]
    if not dialect.has_quotes or len(dialect.columns) < 2 or b'"' not in text:
        return ()
    records = dialect.rule.records(text[: dialect.rule.last_end(text)])
    lines = QuotedRecords(dialect.delimiter, has_quotes=False)
    for number, (start, end) in enumerate(zip(records.starts.tolist(), records.ends.tolist(), strict=True), start=1):
        num_lines = text.count(b"\n", start, end)
        if num_lines > 1 and (lines.records(text[start:end]).widths == len(dialect.columns)).all():
            return (
                f"row {number:,} of {printable(file.name)} spans {num_lines} lines by its quotes, each of "
                f"{len(dialect.columns)} fields; --quote none reads a row a line",
            )
    return ()


def check_columns(columns: tuple[str, ...], where: str, next_step: str) -> None:
    """Checks that columns have names, each its own.

    Raises:
        UsageError: If not.
    """
    for position, name in enumerate(columns, start=1):
        if not name.strip():
            raise UsageError(f"column {position} of {len(columns)} has no name", where=where, next_step=next_step)
    name, count = Counter(columns).most_common(1)[0]
    if count > 1:
        times = "twice" if count == 2 else f"{count} times"
        raise UsageError(f"column {shown(name)} appears {times}", where=where, next_step=next_step)


def check_same_columns(first: tuple[str, ...], first_name: str, other: tuple[str, ...], other_name: str) -> None:
    """Checks that two files have the same columns, in whatever order.

    Raises:
        UsageError: If not; says which are in one and not in the other.
    """
    missing = [c for c in first if c not in other]
    extra = [c for c in other if c not in first]
    if not missing and not extra:
        return
    parts = []
    if missing:
        parts.append(f"{', '.join(map(shown, missing[:10]))} only in {printable(first_name)}")
    if extra:
        parts.append(f"{', '.join(map(shown, extra[:10]))} only in {printable(other_name)}")
    raise UsageError(
        f"{printable(first_name)} and {printable(other_name)} have different columns",
        why="; ".join(parts),
        next_step=_SAME_HEADER,
    )


def check_alike(files: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Checks that files have the same columns, in whatever order.

    Args:
        files: The name and the columns of each.

    Raises:
        UsageError: If not; says what each has that the first has not, and the other way round.
    """
    first_name, first = files[0]
    others = [(name, columns) for name, columns in files[1:] if set(columns) != set(first)]
    if not others:
        return
    if len(files) == 2:
        check_same_columns(first, first_name, others[0][1], others[0][0])
    parts = [_difference(first, name, columns) for name, columns in others[:_LISTED_FILES]]
    if len(others) > _LISTED_FILES:
        parts.append(f"and so on for {len(others) - _LISTED_FILES:,} more files")
    have = "has" if len(others) == 1 else "have"
    raise UsageError(
        f"{len(others):,} of {len(files):,} files {have} other columns than {printable(first_name)}",
        why="; ".join(parts),
        next_step=_SAME_HEADER,
    )


def _difference(first: tuple[str, ...], name: str, columns: tuple[str, ...]) -> str:
    missing = [c for c in first if c not in columns]
    extra = [c for c in columns if c not in first]
    parts = [f"lacks {_listed(missing)}"] if missing else []
    parts += [f"has {_listed(extra)} besides"] if extra else []
    return f"{printable(name)} {' and '.join(parts)}"


def _listed(columns: list[str]) -> str:
    more = f" and {len(columns) - _LISTED_COLUMNS:,} more" if len(columns) > _LISTED_COLUMNS else ""
    return ", ".join(map(shown, columns[:_LISTED_COLUMNS])) + more


def _header_columns(
    header: bytes, rule: QuotedRecords, file: RawFile, offset: int, line: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if rule.open_quote(header) is not None:
        raise DamagedFileError("a quote opened in the header is never closed", where=place(file, line=line))
    try:
        header.decode()
    except UnicodeDecodeError as error:
        foreign = foreign_format(header, file.name)
        if foreign is not None:
            raise DamagedFileError("the file is no text", where=place(file), why=f"it is {foreign}") from error
        raise DamagedFileError(
            "the header is not UTF-8",
            where=place(file, line=line),
            why=f"not UTF-8 at byte {offset + error.start}",
            next_step="Name its encoding with --encoding, such as cp1252 (of Windows) or latin-1",
        ) from error
    if b"\0" in header:
        raise DamagedFileError("a NUL byte is in the header", where=place(file, line=line))
    written = tuple(field.decode() for field in rule.fields(header))
    if not any(name.strip() for name in written):
        raise UsageError(
            "the header names no column",
            where=place(file, line=line),
            next_step="Name the columns in the header line; --columns A,B,... is for files without a header",
        )
    columns = _with_all_names(written)
    if len(set(columns)) < len(columns):
        options = f"--skip-lines {line} {columns_option(columns)}"
        check_columns(columns, place(file, line=line), f"Name each column once in the header line, or with {options}")
    return columns, tuple(name for name, given in zip(columns, written, strict=True) if not given.strip())


def columns_option(written: Sequence[str]) -> str:
    """Returns the option that gives columns their names, those without one and those of one name names of their own."""
    names = ",".join(_with_numbers(_with_all_names(tuple(written))))
    is_usable = names.isprintable() and not any("," in name for name in written)
    return f"--columns {shlex.quote(names) if is_usable else 'A,B,...'}"


def _with_numbers(columns: Sequence[str]) -> Iterator[str]:
    """Yields names that differ: the second `x` is `x_2`."""
    given: set[str] = set()
    for name in columns:
        ways = chain([name], (f"{name}_{number}" for number in count(2)))
        given.add(found := next(way for way in ways if way not in given and (way == name or way not in columns)))
        yield found


def _with_all_names(written: tuple[str, ...]) -> tuple[str, ...]:
    # Data frames write their index as a column without a name.
    names = []
    for position, name in enumerate(written, start=1):
        made = f"unnamed_{position}"
        while made in written:
            made += "_"
        names.append(name if name.strip() else made)
    return tuple(names)


def _delimiter(text: bytes, is_whole: bool, options: SourceOptions, where: str) -> str:
    if options.delimiter is not None:
        valid = len(options.delimiter) == 1 and options.delimiter.isascii() and options.delimiter not in '"\r\n\0'
        if not valid:
            raise UsageError(
                f"{options.delimiter!r} is not a delimiter",
                why="it must be one ASCII character and no quote",
                next_step="Give one character, such as --delimiter ';' or --delimiter tab",
            )
        return options.delimiter
    if options.format == "tsv":
        return "\t"
    num_columns = len(options.columns) if options.columns else None
    has_quotes = options.quote != "none"
    found = sniff_delimiter(text, is_whole, num_columns, has_quotes=has_quotes)
    if found == ";" and num_columns is None and num_decimals(text, is_whole, has_quotes=has_quotes) == 1:
        raise UsageError(
            "either semicolons or commas are the delimiters",
            where=where,
            why="each line has a comma that may be that of a decimal",
            next_step="Say which: --delimiter ';' or --delimiter ,",
        )
    return found
