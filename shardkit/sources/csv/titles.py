"""Lines above a table that are no part of it, and header lines that name one column too few."""

from __future__ import annotations

import re
import shlex

from shardkit.errors import UsageError
from shardkit.messages import printable
from shardkit.sources.text.quoting import DELIMITERS, QuotedRecords, Records
from shardkit.units import KiB, format_number

_TITLE_BYTES = 16 * KiB
_MAX_TITLES, _MIN_RECORDS = 20, 3
_COMMENT_MARKS = re.compile(r"[#|%!;*]{0,8}")


class TitleError(UsageError):
    """Lines stand above a table; `skip` is the option that passes over as many in each file, if there is one."""

    skip: str | None = None


def check_no_title(
    text: bytes, is_whole: bool, rule: QuotedRecords, where: str, first_line: int, *, is_sure: bool
) -> None:
    """Checks that the first lines are part of the table: some stand above records of more fields otherwise.

    Args:
        text: Without blank lines at its start.
        is_whole: Whether that is all of it.
        rule: How records are cut.
        where: The file, for messages.
        first_line: 1-based number of the first line.
        is_sure: Whether the delimiter was asked for.

    Raises:
        UsageError: If they are not.
    """
    sample = text[:_TITLE_BYTES]
    sample = sample if is_whole and len(sample) == len(text) else sample[: rule.last_end(sample)]
    records = rule.records(sample)
    is_wide = bool((records.widths[:1] > 1).any())
    # Where the first line has several fields, commas in the texts of a TSV are no delimiters.
    for delimiter in (rule.delimiter,) if is_wide or is_sure else (rule.delimiter, *DELIMITERS):
        rule = rule._replace(delimiter=delimiter)
        records = rule.records(sample)
        num_titles = _num_titles(records, is_wide=is_wide)
        if not num_titles:
            continue
        widths = records.widths
        if is_wide and num_titles == 1 and widths[0] == widths[1] - 1:
            raise _short_header(sample, records, rule, where)
        titles = text[: int(records.starts[num_titles])]
        fields = "of one field" if not is_wide else "of fewer fields"
        number = first_line - 1 + rule.count_lines(titles)
        mark = _mark_of(titles)
        step = f"Leave the lines before the table out with --skip-lines {number}, which skips as many in each file"
        if num_titles == 1 and not is_wide:
            step += "; --delimiter tab takes each line as one text, with the first as its name"
        error = TitleError(
            f"a table of {widths[num_titles]} fields stands below {format_number(num_titles, 'line')} {fields}",
            where=where,
            next_step=f"Leave these lines out with --comment '{mark}'" if mark else step,
        )
        error.skip = None if mark else f"--skip-lines {number}"
        raise error


def _num_titles(records: Records, *, is_wide: bool) -> int:
    # All lines of the table have the same number of fields, and those above it fewer.
    widths = records.widths
    if len(widths) < _MIN_RECORDS:
        return 0
    num = int((widths == widths[-1]).argmax()) if is_wide else int((widths > 1).argmax())
    table = widths[num:]
    is_table = num and num <= _MAX_TITLES and len(table) >= _MIN_RECORDS and (table == table[0]).all()
    return num if is_table and (widths[:num] < table[0]).all() else 0


def _mark_of(titles: bytes) -> str:
    # In VCF `##` begins remarks, and `#` the header.
    lines = [line.decode("latin-1") for line in titles.splitlines() if line]
    return min((found[0] for line in lines if (found := _COMMENT_MARKS.match(line))), key=len, default="")


def _short_header(sample: bytes, records: Records, rule: QuotedRecords, where: str) -> UsageError:
    names, *rows = (
        [field.decode("utf-8", "replace") for field in rule.fields(sample[int(start) : int(end)])]
        for start, end in zip(records.starts, records.ends, strict=True)
    )
    is_trailing = all(not row[-1].strip() for row in rows)
    columns = [*names, "rest"] if is_trailing else ["row", *names]
    if any("," in name or not name.strip() for name in columns):
        columns = [f"column_{position}" for position in range(1, len(columns) + 1)]
    options = f"--skip-lines 1 --columns {shlex.quote(printable(','.join(columns)))}"
    reasons = ("the first may name the row, as of R, or one holds a delimiter", "each row ends in a delimiter")
    return UsageError(
        f"the header line names {len(names)} columns, and the rows have {len(columns)} fields",
        where=where,
        why=reasons[is_trailing],
        next_step=f"Name all columns with {options}{f' --drop-columns {columns[-1]}' if is_trailing else ''}",
    )
