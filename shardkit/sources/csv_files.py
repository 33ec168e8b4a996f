"""Delimited text: CSV, TSV and their relatives, with or without a header line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv

from shardkit import storage
from shardkit.errors import BadInputError, UsageError
from shardkit.features import Features, make_feature
from shardkit.sources.base import (
    BATCH_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    choose_split_bytes,
    row_identities,
)
from shardkit.sources.csv_dialect import Dialect, check_columns, check_same_columns, read_dialect
from shardkit.sources.csv_parse import CsvParser, Parsed, explain, is_blank
from shardkit.sources.fitting import UnfitValueError
from shardkit.sources.quoting import QuotedRecords
from shardkit.sources.sampling import HEAD_BYTES, HEAD_ROWS, sample_files
from shardkit.sources.streams import guard_unchanged, place, printable
from shardkit.sources.text_blocks import TextBlock
from shardkit.sources.text_splits import line_at, numbered, read_blocks, split_file
from shardkit.sources.text_types import Evidence, column_notes, decide, examine, unite

_T = TypeVar("_T")
_REMOTE_THREADS = 32


@dataclass(frozen=True)
class CsvSource:
    """Delimited text.

    Attributes:
        format: `csv` or `tsv`.
        split_bytes: Wanted size of a split; None chooses by the size of the file.
        block_bytes: Wanted text of a batch.
    """

    format: str = "csv"
    split_bytes: int | None = None
    block_bytes: int = BATCH_BYTES

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns of the header, in the order of the first file, with types from the heads of the files.

        Raises:
            UsageError: If files have different columns, or a header is wrong.
            BadInputError: If a file is no text, or all are empty.
        """
        written = self._dialects(files, options)
        columns = written[0][1].columns
        sampled = sample_files(written)
        evidence = _on_threads([f for f, _ in sampled], lambda i: _read_head(*sampled[i], options).evidence)
        return tuple(decide(name, unite(e[name] for e in evidence)) for name in columns)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on a delimiter that may be wrong, and on numbers that stay text for their leading zeros."""
        notes = []
        written = self._dialects(files, options)
        for file, dialect in written:
            if dialect.other_delimiter is not None:
                notes.append(
                    f"only one column was found in {printable(file.name)}, though its lines hold "
                    f"{dialect.other_delimiter!r}; --delimiter tells which it is"
                )
                break
        head = _read_head(*written[0], options)
        return (*notes, *column_notes(head.columns, head.evidence, options.null_values))

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files at the ends of records; a compressed file is one split.

        Raises:
            BadInputError: If a record is too long, or a quote is never closed.
        """
        return numbered(chain.from_iterable(self._split_one(f, i, options) for i, f in enumerate(files)))

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            BadInputError: At the first row that does not fit, or if the file changed since it was listed.
        """
        file = files[split.file_start]
        with guard_unchanged(file):
            dialect = read_dialect(file, self._with_format(options))
            if dialect is None:
                return
            _check_header(dialect, features, file)
            start = split.start or dialect.data_start
            if split.stop and start >= split.stop:
                return
            reader = _SplitReader(file, dialect, features, options, start)
            first_row = 0
            for batch, rounded in reader.batches(split.stop, self.block_bytes):
                identities = row_identities(file, split.start, first_row, batch.num_rows)
                first_row += batch.num_rows
                yield RowBatch(batch, identities, split.file_start, rounded)

    def _split_one(self, file: RawFile, file_index: int, options: SourceOptions) -> list[InputSplit]:
        split_bytes = self.split_bytes or choose_split_bytes(file.num_bytes)
        if file.compression is None and file.num_bytes <= split_bytes:
            # No record end is looked for, so the delimiter does not matter.
            return split_file(file, file_index, QuotedRecords(","), options, split_bytes)
        dialect = read_dialect(file, self._with_format(options))
        return [] if dialect is None else split_file(file, file_index, dialect.rule, options, split_bytes)

    def _dialects(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[tuple[RawFile, Dialect]]:
        options = self._with_format(options)
        if options.columns is not None:
            check_columns(options.columns, "--columns", "Give each column one name")
        filled = [f for f in files if f.num_bytes]
        dialects = _on_threads(filled, lambda i: read_dialect(filled[i], options))
        written = [(f, d) for f, d in zip(filled, dialects, strict=True) if d is not None]
        if not written:
            raise BadInputError("there are no rows", why="all input files are empty")
        first_file, first = written[0]
        for file, dialect in written[1:]:
            check_same_columns(first.columns, first_file.name, dialect.columns, file.name)
        return written

    def _with_format(self, options: SourceOptions) -> SourceOptions:
        return msgspec.structs.replace(options, format=self.format)


class _SplitReader:
    """Reads one part of one file.

    Args:
        file: The file.
        dialect: How it is written.
        features: What is wanted.
        options: Hold spellings of null and the longest record.
        start: Byte where the first record starts.
    """

    def __init__(
        self,
        file: RawFile,
        dialect: Dialect,
        features: Features,
        options: SourceOptions,
        start: int,
    ) -> None:
        self._file = file
        self._dialect = dialect
        self._features = features
        self._options = options
        self._start = start
        self._parser = CsvParser(dialect, features, options.null_values)

    def batches(self, stop: int, block_bytes: int) -> Iterator[Parsed]:
        """Yields the rows up to byte `stop`, or to the end of the file if that is 0."""
        blocks = read_blocks(
            self._file,
            self._dialect.rule,
            self._options,
            start=self._start,
            stop=stop,
            block_bytes=block_bytes,
        )
        for block in blocks:
            yield self._parse(block)

    def _parse(self, block: TextBlock) -> Parsed:
        try:
            return self._parser.parse(block.data)
        except (pa.ArrowInvalid, UnfitValueError) as error:
            line = line_at(self._file, self._dialect.rule, block.offset)
            nulls = self._options.null_values
            raise explain(block, self._dialect, self._features, nulls, self._file, line, error) from error


def _check_header(dialect: Dialect, features: Features, file: RawFile) -> None:
    names = tuple(f.name for f in features)
    if set(names) != set(dialect.columns):
        try:
            check_same_columns(names, "the other files", dialect.columns, file.name)
        except UsageError as error:
            raise BadInputError(error.what, where=place(file), why=error.why) from error


class _Head(NamedTuple):
    columns: dict[str, pa.Array]
    evidence: dict[str, Evidence]


def _read_head(file: RawFile, dialect: Dialect, options: SourceOptions) -> _Head:
    blocks = read_blocks(
        file,
        dialect.rule,
        options,
        start=dialect.data_start,
        stop=0,
        block_bytes=HEAD_BYTES,
        is_head=True,
    )
    block = next(blocks, None)
    if block is None or is_blank(block.data):
        empty = pa.array([], pa.string())
        return _Head(dict.fromkeys(dialect.columns, empty), dict.fromkeys(dialect.columns, Evidence()))
    try:
        return _examine_head(bytes(block.data), dialect, options.null_values)
    except pa.ArrowInvalid as error:
        features = tuple(make_feature(name, "string", nullable=True) for name in dialect.columns)
        raise explain(block, dialect, features, options.null_values, file, dialect.first_line, error) from error


@functools.lru_cache(maxsize=1)
def _examine_head(data: bytes, dialect: Dialect, null_values: tuple[str, ...]) -> _Head:
    # Asked twice of the first file, for the features and for the notes.
    table = pacsv.read_csv(
        pa.BufferReader(data),
        pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(dialect.columns)),
        # Rows that do not fit say nothing about types; reading them is what tells the user.
        pacsv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True, invalid_row_handler=lambda _: "skip"),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(dialect.columns, pa.string()),
            null_values=["", *null_values],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).slice(0, HEAD_ROWS)
    empty = pa.array([], pa.string())
    columns = {name: pa.concat_arrays([empty, *table.column(name).chunks]) for name in dialect.columns}
    return _Head(columns, {name: examine(values, null_values) for name, values in columns.items()})


def _on_threads(files: list[RawFile], work: Callable[[int], _T]) -> list[_T]:
    # Stores answer slowly, so many are asked at once; local files gain nothing from that.
    if len(files) < 2 or all(storage.is_local(f.path) for f in files):
        return [work(i) for i in range(len(files))]
    with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
        return list(threads.map(work, range(len(files))))
