"""The first rows of CSV files: what they tell of the types of the columns."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as pacsv

from shardkit.errors import DamagedFileError
from shardkit.features import make_feature
from shardkit.file_types import is_utf8
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.columns.sampling import HEAD_BYTES, HEAD_ROWS
from shardkit.sources.csv.bad_records import parse_good_records
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.csv.leading_zeros import OddValue, find_line
from shardkit.sources.csv.parser import is_blank, with_blanks
from shardkit.sources.files.many_files import attempt
from shardkit.sources.text.blocks import TextBlock
from shardkit.sources.text.rejected_records import BadRecord, error_at
from shardkit.sources.text.splits import read_blocks
from shardkit.sources.text.type_inference import Evidence, decide, examine, find_untyped_value, unite

_FEW_ROWS = 10


class CsvHead(NamedTuple):
    """The first rows of a file as text, and what they tell of each column."""

    columns: dict[str, pa.Array]
    evidence: dict[str, Evidence]


# Cached: it is asked for the features, and for the notes on columns of text.
@functools.lru_cache(maxsize=64)
def read_evidence(file: RawFile, dialect: Dialect, options: SourceOptions) -> dict[str, Evidence]:
    """Returns what the first rows tell of each column.

    Raises:
        BadInputError: If a row is bad, unless bad rows are tolerated.
    """
    return read_csv_head(file, dialect, options).evidence


def find_odd_values(
    written: list[tuple[RawFile, Dialect]], columns: list[str], options: SourceOptions
) -> list[OddValue]:
    """Returns the value of each column that makes text of it, where all before it are of another type.

    Args:
        written: The files, with how they are written.
        columns: Which to look at.
    """
    # The file of each column in which it turns into text, with the evidence of the files before.
    turned: dict[str, tuple[int, Evidence]] = {}
    seen: dict[str, Evidence] = dict.fromkeys(columns, Evidence())
    for index, (file, dialect) in enumerate(written):
        evidence = attempt(read_evidence, file, dialect, options)
        if isinstance(evidence, DamagedFileError):
            continue
        for name in (name for name in columns if name in evidence):
            both = unite((seen[name], evidence[name]))
            if name not in turned and both.kinds and decide(name, both).dtype == "string":
                turned[name] = index, seen[name]
            seen[name] = both
    found = []
    for name, (index, before) in turned.items():
        if seen[name].num_leading_zeros:
            continue
        file, dialect = written[index]
        values = read_csv_head(file, dialect, options).columns[name]
        # One wrong date makes text of all dates, so the first few are asked.
        if seen[name].kinds == {"text"} and examine(values[:_FEW_ROWS]).kinds <= {"text"}:
            continue
        odd = find_untyped_value(values, with_blanks(options.null_values), before if before.kinds else None)
        if odd is not None:
            block = _read_block(file, dialect, options)
            line = None if block is None else find_line(bytes(block.data), dialect, name, odd.value)
            found.append(OddValue(name, odd, file, line))
    return found


def _read_block(file: RawFile, dialect: Dialect, options: SourceOptions) -> TextBlock | None:
    start = dialect.data_start
    blocks = read_blocks(file, dialect.rule, options, start=start, stop=0, block_bytes=HEAD_BYTES, is_head=True)
    return next(blocks, None)


def read_csv_head(file: RawFile, dialect: Dialect, options: SourceOptions) -> CsvHead:
    """Returns the first rows of a file.

    Raises:
        BadInputError: If one of them is bad, unless bad rows are tolerated.
    """
    block = _read_block(file, dialect, options)
    data, nulls = b"" if block is None else bytes(block.data), options.null_values
    if block is not None and not is_blank(data):
        try:
            if is_utf8(data) and not (options.tolerates_bad_rows and b"\0" in data):
                return _examine_head(data, dialect, nulls)
        except pa.ArrowInvalid:
            # There is not one row with the right number of fields.
            pass
        bad = _bad_records(block, data, dialect, nulls)
        if bad and not options.tolerates_bad_rows:
            raise error_at(bad[0].problem, file, dialect.first_line + bad[0].num_lines)
        if not is_blank(good := _without(bad, data)):
            return _examine_head(good, dialect, nulls)
    empty = pa.array([], pa.string())
    return CsvHead(dict.fromkeys(dialect.columns, empty), dict.fromkeys(dialect.columns, Evidence()))


def texts_of_block(block: TextBlock, dialect: Dialect, null_values: tuple[str, ...]) -> dict[str, pa.Array]:
    """Returns the columns of a block as text, without the records that are bad; none if it has no row."""
    data = bytes(block.data)
    try:
        if is_utf8(data) and not is_blank(data):
            return _read_texts(data, dialect, null_values)
    except pa.ArrowInvalid:
        pass
    good = b"" if is_blank(data) else _without(_bad_records(block, data, dialect, null_values), data)
    return {} if is_blank(good) else _read_texts(good, dialect, null_values)


def _bad_records(block: TextBlock, data: bytes, dialect: Dialect, null_values: tuple[str, ...]) -> Sequence[BadRecord]:
    features = tuple(make_feature(name, "string", nullable=True) for name in dialect.columns)
    return parse_good_records(block, data, dialect, features, SourceOptions(null_values=null_values)).bad


def _without(bad: Sequence[BadRecord], data: bytes) -> bytes:
    bounds = zip([0, *(b.stop for b in bad)], [*(b.start for b in bad), len(data)], strict=True)
    return b"".join(data[start:stop] for start, stop in bounds)


@functools.lru_cache(maxsize=1)
def _examine_head(data: bytes, dialect: Dialect, null_values: tuple[str, ...]) -> CsvHead:
    # Cached: it is asked twice for the first file, for the features and for the notes.
    columns = {n: values[:HEAD_ROWS] for n, values in _read_texts(data, dialect, null_values).items()}
    return CsvHead(columns, {name: examine(values, with_blanks(null_values)) for name, values in columns.items()})


def _read_texts(data: bytes, dialect: Dialect, null_values: tuple[str, ...]) -> dict[str, pa.Array]:
    table = pacsv.read_csv(
        pa.BufferReader(data),
        pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(dialect.columns)),
        # Rows that do not fit say nothing about types; reading reports them.
        pacsv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char='"' if dialect.has_quotes else False,
            newlines_in_values=dialect.has_quotes,
            invalid_row_handler=lambda _: "skip",
        ),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(dialect.columns, pa.string()),
            null_values=["", *with_blanks(null_values)],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    empty = pa.array([], pa.string())
    return {name: pa.concat_arrays([empty, *table.column(name).chunks]) for name in dialect.columns}
