"""Plain text: a line, a paragraph or a whole file is a row.

Only a line feed ends a line, with a carriage return before it or not: no form feed, U+0085 or U+2028 does. A line that
is empty is no row. A paragraph is a run of lines that are not empty, joined by the line ends that are between them;
a line of blanks is not empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from shardkit import file_types
from shardkit.errors import NoRowsError
from shardkit.features import Features, arrow_schema, make_feature
from shardkit.messages import printable
from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RowBatch, SourceOptions, SourceSettings, numbered
from shardkit.sources.columns.row_casting import cast_rows
from shardkit.sources.columns.sampling import HEAD_BYTES, sample_files
from shardkit.sources.files.streams import guard_unchanged, open_stream, read_head
from shardkit.sources.folders.class_documents import are_class_documents, folders_of_one_split
from shardkit.sources.folders.class_folders import (
    check_depth,
    check_level,
    check_no_container,
    class_of,
    classes_of,
    describe_classes,
    find_class_level,
)
from shardkit.sources.text.blocks import Lines, Text, TextBlock, as_array
from shardkit.sources.text.decoding_errors import find_decoding_errors, other_encoding, too_long_fault
from shardkit.sources.text.documents import read_documents, split_documents
from shardkit.sources.text.line_numbers import LineNumbers
from shardkit.sources.text.records import LINES, PARAGRAPHS, TextPart, TextRule, find_cuts, read_parts, take_texts
from shardkit.sources.text.rejected_records import BadRecord, BatchMaker, GoodRecords, bad_value_problem
from shardkit.sources.text.splits import BOM, cut_file
from shardkit.sources.text.table_signs import columns_between_blanks, looks_like_table, may_be_table
from shardkit.sources.text.together import read_small_texts, rows_of

_TABLE_NAME = re.compile(r"\.(csv|tsv|tab|psv)(\.\w+)?$", re.IGNORECASE)
_RULES = {"line": LINES, "paragraph": PARAGRAPHS}
_MAX_COLUMN_BYTES = 2**31 - 1 - 2 * BATCH_BYTES  # Arrow counts the bytes of a batch with 32 bits.

ColumnsOf = Callable[[pa.Array, Features, SourceOptions], Mapping[str, pa.Array]]


@dataclass(frozen=True)
class TextSource(SourceSettings):
    """Plain text."""

    format: str = "text"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file holds text, but neither JSON nor a table; one column is a table by its name alone."""
        if _TABLE_NAME.search(name) is not None or file_types.format_of(head, name) != "csv":
            return False
        return not looks_like_table(head)

    def settle(self, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
        """Returns the options for a row a file, with its folder as class, where files are texts in class folders.

        Raises:
            UsageError: If a few other files are beside such texts, or folders of two levels may be their classes.
        """
        leveled = msgspec.structs.replace(options, class_level=find_class_level(files, options))
        if options.class_folder is None:
            are_rows = options.text_record == "file" or (options.text_record == "line" and are_class_documents(files))
            if options.no_labels or not are_rows:
                return options
            classes = {class_of(file, leveled) for file in files}
            if None in classes or len(classes) < 2:
                return options
            check_depth(files, leveled)
            check_level(files, leveled)
            check_no_container(files, leveled)
        return msgspec.structs.replace(leveled, text_record="file", has_text_classes=True)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the one column `text`, and `filename` where a file is a row, with its class if its folder says so."""
        filled = [f for f in files if f.num_bytes]
        if not filled:
            raise NoRowsError(why="all input files are empty")
        for file in sample_files(filled):
            if error := other_encoding(read_head(file, file_types.HEAD_BYTES), file):
                raise error
        text = make_feature("text", "string", media_type="text")
        if options.text_record != "file":
            return (text,)
        classes = classes_of(files, "a text", options) if options.has_text_classes else ()
        label = (make_feature("label", "int64", vocabulary=classes),) if classes else ()
        return (text, *label, make_feature("filename", "string"))

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on empty lines, and on a table that is read as text."""
        first = next((f for f in files if f.num_bytes), None)
        if options.has_text_classes:
            classes = describe_classes(files, options)
            one_split = folders_of_one_split(files)
            return (
                f"texts in class folders, a row a file: {classes}; --no-labels reads lines instead",
                *([f"a class lies in one split alone; if it is none, add {one_split}"] if one_split else []),
            )
        if first is None or options.text_record == "file":
            return ()
        head = read_head(first, HEAD_BYTES)
        notes = []
        if may_be_table(head):
            notes.append(f"{printable(first.name)} looks like a table; --format csv reads its columns")
        elif (blanks := columns_between_blanks(head)) is not None and blanks.is_single:
            notes.append(
                f"each line of {printable(first.name)} has {blanks.num_columns} words; --delimiter ' ' reads columns"
            )
        found = LINES.find(as_array(head))
        num_empty = found.num_lines + (head[-1:] != b"\n") - len(found.starts)
        if num_empty and options.text_record == "line":
            lines = found.num_lines + (head[-1:] != b"\n")
            of = f"{num_empty:,} of the first {lines:,} of {printable(first.name)}"
            notes.append(f"empty lines are no rows: {of}; --text-record paragraph reads what they part as rows")
        return tuple(notes)

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files at the ends of records, or the list of files where each is a row."""
        if options.text_record == "file":
            return split_documents(files, self.split_bytes)
        rule = _RULES[options.text_record]
        return numbered(
            part
            for index, file in enumerate(files)
            for part in cut_file(file, index, self.split_bytes, options, partial(find_cuts, file, rule))
        )

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            DamagedFileError: If the text is in another encoding, or damaged where it was compressed.
        """
        if options.text_record == "file":
            yield from read_documents(split, files, features, options, self.batch_bytes)
            return
        file = files[split.file_start]
        with guard_unchanged(file):
            if not split.start and (error := other_encoding(read_head(file, file_types.HEAD_BYTES), file)):
                raise error
            reader = _SplitReader(file, split, features, options, self.columns_of)
            yield from reader.batches(self.block_bytes_of(options))

    def read_together(
        self, indices: Sequence[int], files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> RowBatch | None:
        """Returns the rows of small files of lines at once; None if each must be read alone."""
        if options.text_record != "line":
            return None
        texts = read_small_texts(indices, files, options, lambda index, data: _lines(data, files[index]))
        if texts is None:
            return None
        found = _Records(features, options, self.columns_of).parse(b"".join(text.data for text in texts), 0)
        return None if found.bad else rows_of(found.batch, found.num_rounded, texts, files)

    def columns_of(self, texts: pa.Array, features: Features, options: SourceOptions) -> Mapping[str, pa.Array]:
        """Returns the columns of some records, each of any type that fits its feature; may raise BadValueError."""
        return {"text": texts}

    def block_bytes_of(self, options: SourceOptions) -> int:
        """Returns how much text makes a batch."""
        return self.batch_bytes


def _lines(data: bytes, file: RawFile) -> tuple[bytes, int] | None:
    # A return that ends the file is text, and with a line feed behind it is none.
    if data.endswith(b"\r") or other_encoding(data[: file_types.HEAD_BYTES], file) is not None:
        return None
    lines = data.removeprefix(BOM)
    return lines, sum(1 for line in lines.split(b"\n") if line not in (b"", b"\r"))


class _SplitReader:
    """Reads one part of one file.

    Args:
        options: Say what a record is, how long it may be, and whether bad ones are tolerated.
    """

    def __init__(
        self, file: RawFile, split: InputSplit, features: Features, options: SourceOptions, columns_of: ColumnsOf
    ) -> None:
        self._file = file
        self._split = split
        self._records = _Records(features, options, columns_of)
        self._lines = LineNumbers(file, Lines())
        self._maker = BatchMaker(
            file, split.file_start, split.start, self._lines, tolerates_bad_rows=options.tolerates_bad_rows
        )

    def batches(self, block_bytes: int) -> Iterator[RowBatch]:
        """Yields the rows."""
        start, stop = self._split.start, self._split.stop
        if not start and read_head(self._file, len(BOM)) == BOM:
            start = len(BOM)
        if stop and start >= stop:
            return
        with open_stream(self._file, start, is_read_through=True) as stream:
            for part in read_parts(
                stream,
                self._records.rule,
                offset=start,
                stop=stop or None,
                max_record_bytes=self._records.max_record_bytes,
                block_bytes=block_bytes,
            ):
                block = TextBlock(part.data, part.offset, is_last=False)
                if part.num_skipped_lines is not None:
                    line = self._lines.first_of(block)
                    yield self._maker.good_records(block, bytes(part.data), self._too_long(part))
                    self._lines.know(part.stop, line + part.num_skipped_lines)
                elif (found := self._records.parse(part.data, part.offset)).bad:
                    yield self._maker.good_records(block, bytes(part.data), found)
                else:
                    yield self._maker.clean(block, found.batch, found.num_rounded)

    def _too_long(self, part: TextPart) -> GoodRecords:
        nothing = pa.RecordBatch.from_pylist([], schema=arrow_schema(self._records.features))
        problem = too_long_fault(self._records.max_record_bytes)
        return GoodRecords(nothing, {}, [BadRecord(0, 0, len(part.data), 0, problem)])


class _Records(NamedTuple):
    # What makes rows of the records of a text.
    features: Features
    options: SourceOptions
    columns_of: ColumnsOf

    @property
    def rule(self) -> TextRule:
        return _RULES[self.options.text_record]

    @property
    def max_record_bytes(self) -> int:
        return min(self.options.max_record_bytes, _MAX_COLUMN_BYTES)

    def parse(self, text: Text, offset: int) -> GoodRecords:
        data = as_array(text)
        records = self.rule.find(data)
        texts = take_texts(data, records)
        problems = find_decoding_errors(texts, self.max_record_bytes, offset + records.starts)
        good = np.arange(len(texts))
        if problems:
            good = np.delete(good, list(problems))
            texts = texts.take(pa.array(good))
        strings = texts.view(pa.string())
        cast = cast_rows(
            lambda start, stop: self.columns_of(strings.slice(start, stop - start), self.features, self.options),
            len(strings),
            self.features,
            tolerates_bad_rows=True,
        )
        problems |= {int(good[position]): bad_value_problem(error) for position, error in cast.bad_values}
        starts, stops, lines = records.starts, records.stops, records.lines
        bad = [
            BadRecord(row, int(starts[row]), int(stops[row]), int(lines[row]), problem)
            for row, problem in sorted(problems.items())
        ]
        return GoodRecords(cast.batch, cast.num_rounded, bad)
