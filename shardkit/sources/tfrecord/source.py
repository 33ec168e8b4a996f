"""TFRecords of `tf.train.Example` and `tf.train.SequenceExample`, plain or compressed with gzip or zlib."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError, DamagedFileError, NarrowTypesError, NoRowsError
from shardkit.features import Features, arrow_schema, make_feature
from shardkit.messages import printable, shown
from shardkit.sources.base import (
    InputSplit,
    RawFile,
    RejectedRow,
    RowBatch,
    SourceOptions,
    SourceSettings,
    choose_split_bytes,
    place,
    rejected_row,
    row_identities,
)
from shardkit.sources.columns.row_casting import cast_rows
from shardkit.sources.columns.sampling import HEAD_BYTES, HEAD_ROWS, sample_files
from shardkit.sources.files.streams import guard_unchanged, read_exactly
from shardkit.sources.tfrecord.blocks import (
    CutOffError,
    Form,
    Frames,
    RecordBlock,
    byte_place,
    byte_words,
    count_records,
    find_cuts,
    find_records,
    form_of,
    is_record_header,
    is_zlib_of_records,
    max_length,
    open_records,
    read_blocks,
)
from shardkit.sources.tfrecord.feature_shapes import FileShape, check_alike, features_of, never_filled, observe
from shardkit.sources.tfrecord.rows import BlockDecoder, DecodedBlock, whole_records
from shardkit.units import KiB

_NUM_WINDOWS = 8
_WINDOW_BYTES = 256 * KiB
_MAX_SHAPES = 64
_MAX_HEADS = 16
_DECLARE = "Leave the record out, or declare the feature in a --schema file, with dtype and nullable = true"
_KEEP = "Leave the record out, or keep all records as they are with --tfrecord-as bytes"
_RECORD = make_feature("record", "bytes")
_OWN_SHARD = re.compile(r"/data/[0-9a-f]{32}/[^/]+-\d{5}-of-\d{5}\.tfrecord(\.gz)?$")


@dataclass(frozen=True)
class TfrecordSource(SourceSettings):
    """TFRecords of Examples or SequenceExamples.

    A feature list becomes a list of any length: the values of its steps, one step after the other. Records of any
    content are a column of bytes, where that is asked for.
    """

    format: str = "tfrecord"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file begins with a record, or with a zlib stream that does."""
        return is_record_header(head) or is_zlib_of_records(head)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features that the heads of the files hold, and places evenly spread over large files.

        Raises:
            UsageError: If a feature is of different kinds in different files, or has no place in an example.
        """
        if options.tfrecord_as == "bytes":
            if not any(file.num_bytes for file in files):
                raise NoRowsError(why="all input files are empty")
            return (_RECORD,)
        shapes = self._shapes(files, options)
        if not any(s.num_records for s in shapes):
            raise NoRowsError(why="no file holds an Example")
        check_alike(shapes)
        features = features_of(shapes)
        if not features:
            raise BadInputError("the records hold no features", where=shapes[0].name)
        return features

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on feature lists with several values a step, and on features that not all files hold."""
        if options.tfrecord_as == "bytes":
            return ()
        notes = []
        shapes = [s for s in self._shapes(files, options) if s.num_records]
        steps = {name: seen.most for shape in shapes for name, seen in shape.lists.items() if seen.most > 1}
        for name, size in sorted(steps.items()):
            notes.append(f"the feature list {shown(name)} has {size} values a step and is read as one list of them")
        names = sorted({name for shape in shapes for name in shape.features})
        for name in names:
            without = next((s for s in shapes if name not in s.features), None)
            if without is not None:
                notes.append(f"feature {shown(name)} is in none of the records looked at in {without.name}")
        empty = [f"feature {shown(n)} is empty in all records looked at and is left out" for n in never_filled(shapes)]
        own = next((file for file in files if _OWN_SHARD.search(file.path)), None)
        if own is not None:
            notes.append(
                f"{place(own)} is called like a shard of a dataset; name the folder of the dataset instead to keep its "
                "types, classes and splits"
            )
        return (*notes, *empty)

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts plain files at records; a compressed file is one split, and so is one whose records cannot be followed.

        Raises:
            BadInputError: If a file changed since it was listed.
        """
        splits: list[InputSplit] = []
        for file_index, file in enumerate(files):
            for start, stop in self._cuts(file, options) if file.num_bytes else ():
                splits.append(
                    InputSplit(
                        index=len(splits),
                        file_start=file_index,
                        file_stop=file_index + 1,
                        start=start,
                        stop=stop,
                        num_bytes=stop - start or file.num_bytes,
                    )
                )
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            DamagedFileError: If a length is damaged, so that what follows is lost, or the last record is cut off. Where
                bad rows are tolerated, the latter is one.
        """
        file = files[split.file_start]
        with guard_unchanged(file):
            form = form_of(file)
            decoder = (
                _RawDecoder(features, max_length(options))
                if options.tfrecord_as == "bytes"
                else BlockDecoder(features, _head_shape(file, options), max_length(options))
            )
            reader = _SplitReader(file, form, split, options, self.batch_bytes)
            first_row = 0
            with open_records(file, form, split.start, is_read_through=True) as stream:
                frames = Frames(stream, file, form, split.start, split.stop)
                blocks = read_blocks(frames, options, block_bytes=self.batch_bytes)
                try:
                    for block in blocks:
                        identities = row_identities(file, split.start, first_row, len(block.starts))
                        for rows in decoder.decode(block):
                            rejected = [reader.reject(block, row, first_row, why) for row, why in rows.bad_values]
                            yield RowBatch(
                                rows.batch, identities[rows.rows], split.file_start, rows.num_rounded, rejected
                            )
                        first_row += len(block.starts)
                except CutOffError as error:
                    if not first_row or not options.tolerates_bad_rows:
                        raise
                    rejected = [reader.reject_rest(error, first_row)]
                    nothing = pa.RecordBatch.from_pylist([], arrow_schema(features))
                    identities = row_identities(file, split.start, first_row, 0)
                    yield RowBatch(nothing, identities, split.file_start, {}, rejected)

    def _cuts(self, file: RawFile, options: SourceOptions) -> list[tuple[int, int]]:
        wanted = self.split_bytes or choose_split_bytes(file.num_bytes)
        if form_of(file) != "plain":
            return [(0, 0)]
        if file.num_bytes <= wanted:
            return [(0, file.num_bytes)]
        with guard_unchanged(file):
            try:
                cuts = find_cuts(file, options, wanted, self.batch_bytes)
            except DamagedFileError:
                # Reading from the start comes to the damage, and handles it.
                return [(0, file.num_bytes)]
        return list(itertools.pairwise(cuts))

    def _shapes(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[FileShape]:
        shapes = []
        filled = [f for f in files if f.num_bytes]
        for file in filled if options.types_of_all_rows else sample_files(filled):
            with guard_unchanged(file):
                shapes.append(_sampled_shape(file, options))
        return shapes


class _RawDecoder:
    """Gives the records of blocks as bytes, or as what bytes are declared to be.

    Args:
        features: `_RECORD`, and others that records lack.
        max_record_bytes: Longer records do not fit.
    """

    def __init__(self, features: Features, max_record_bytes: int) -> None:
        self._features = features
        self._max_record_bytes = max_record_bytes

    def decode(self, block: RecordBlock) -> Iterator[DecodedBlock]:
        """Yields the rows of a block in one piece."""
        bad_values: dict[int, str] = {}
        rows = whole_records(block, np.arange(len(block.starts)), self._max_record_bytes, bad_values)
        records = pa.array([block.record(row) for row in rows.tolist()], pa.binary())

        def take(start: int, stop: int) -> dict[str, pa.Array]:
            absent = {f.name: pa.nulls(stop - start, f.arrow_type) for f in self._features}
            return absent | {_RECORD.name: records.slice(start, stop - start)}

        found = cast_rows(take, len(rows), self._features, tolerates_bad_rows=True)
        for row, error in found.bad_values:
            bad_values[int(rows[row])] = f"expected {error.expected}, got {error.got}"
        yield DecodedBlock(found.batch, rows[found.kept], found.num_rounded, sorted(bad_values.items()))


class _SplitReader:
    """Says where rows of a split are, and rejects those that do not fit.

    Args:
        block_bytes: Of the blocks that rows are counted in.
    """

    def __init__(self, file: RawFile, form: Form, split: InputSplit, options: SourceOptions, block_bytes: int) -> None:
        self._file = file
        self._form = form
        self._split = split
        self._options = options
        self._block_bytes = block_bytes
        self._rows_before: int | None = None

    def reject(self, block: RecordBlock, row: int, first_row: int, why: str) -> RejectedRow:
        """Returns the rejected row of a block. Raises BadInputError if bad rows are not tolerated."""
        number = self._number(first_row + row)
        error = _bad_record(self._file, self._form, block, row, number, why)
        if not self._options.tolerates_bad_rows:
            raise error
        return rejected_row(
            error,
            file_index=self._split.file_start,
            position=f"row {number}",
            first_byte=block.first_byte(row),
            raw=block.record(row),
        )

    def reject_rest(self, error: CutOffError, num_rows: int) -> RejectedRow:
        """Returns the rejected row of a record that is cut off behind so many rows of the split."""
        return rejected_row(
            error,
            file_index=self._split.file_start,
            position=f"row {self._number(num_rows)}, {byte_words(error.offset, is_compressed=self._form != 'plain')}",
            first_byte=error.offset,
            raw=error.data,
        )

    def _number(self, row: int) -> int:
        """Returns the number in the file, from 1, of a 0-based row of the split."""
        if self._rows_before is None:
            start = self._split.start
            self._rows_before = count_records(self._file, self._options, start, self._block_bytes) if start else 0
        return self._rows_before + row + 1


# Cached, so that `notes` does not read again after `infer`, nor one split of a file after another.
@functools.lru_cache(maxsize=_MAX_SHAPES)
def _sampled_shape(file: RawFile, options: SourceOptions) -> FileShape:
    form = form_of(file)
    shape = FileShape(printable(file.name))
    for row, block in _head(file, form, options, is_strict=not options.tolerates_bad_rows):
        bad = observe(block, shape)
        if bad and not options.tolerates_bad_rows:
            position, why = bad[0]
            raise _bad_record(file, form, block, position, row + position + 1, f"it {why}")
    rest = _all_blocks(file, form, options) if options.types_of_all_rows else _windows(file, form)
    for block in rest:
        observe(block, shape)
    return shape


@functools.lru_cache(maxsize=_MAX_HEADS)
def _head_shape(file: RawFile, options: SourceOptions) -> FileShape:
    shape = FileShape(printable(file.name))
    for _, block in _head(file, form_of(file), options):
        observe(block, shape)
    return shape


def _head(
    file: RawFile, form: Form, options: SourceOptions, *, is_strict: bool = False
) -> Iterator[tuple[int, RecordBlock]]:
    # Records of the head that are short enough, and the number of those before. Reading reports damage.
    num_rows = num_bytes = 0
    limit = max_length(options)
    with open_records(file, form) as stream:
        stop = file.num_bytes if form == "plain" else 0
        blocks = read_blocks(Frames(stream, file, form, 0, stop), options, block_bytes=HEAD_BYTES)
        try:
            for block in blocks:
                yield num_rows, _shortened(block, HEAD_ROWS - num_rows, limit)
                num_rows += len(block.starts)
                num_bytes += len(block.data)
                if num_rows >= HEAD_ROWS or num_bytes >= HEAD_BYTES:
                    return
        except DamagedFileError:
            if is_strict:
                raise


def _all_blocks(file: RawFile, form: Form, options: SourceOptions) -> Iterator[RecordBlock]:
    # Reading reports damage.
    with suppress(DamagedFileError), open_records(file, form) as stream:
        stop = file.num_bytes if form == "plain" else 0
        for block in read_blocks(Frames(stream, file, form, 0, stop), options, block_bytes=HEAD_BYTES):
            yield _shortened(block, len(block.starts), max_length(options))


def _bad_record(file: RawFile, form: Form, block: RecordBlock, row: int, number: int, why: str) -> BadInputError:
    is_unread = "Example" in why or "parse" in why
    is_other_kind = "records before it have" in why or " values, got " in why
    kind = BadInputError if is_unread or block.is_damaged[row] else NarrowTypesError
    return kind(
        "a record does not fit",
        where=byte_place(file, block.first_byte(row), is_compressed=form != "plain", row=number),
        why=why,
        next_step=_KEEP if is_unread or is_other_kind else _DECLARE,
    )


def _shortened(block: RecordBlock, num_rows: int, limit: int) -> RecordBlock:
    keep = np.flatnonzero(block.lengths[:num_rows] <= limit)
    return block._replace(starts=block.starts[keep], lengths=block.lengths[keep], is_damaged=block.is_damaged[keep])


def _windows(file: RawFile, form: Form) -> Iterator[RecordBlock]:
    # Features that appear late would otherwise be unknown.
    if form != "plain" or file.num_bytes <= HEAD_BYTES + _NUM_WINDOWS * _WINDOW_BYTES:
        return
    for number in range(1, _NUM_WINDOWS + 1):
        start = HEAD_BYTES + (file.num_bytes - HEAD_BYTES - _WINDOW_BYTES) * number // _NUM_WINDOWS
        with open_records(file, form, start) as stream:
            block = find_records(read_exactly(stream, _WINDOW_BYTES))
        if block is not None:
            yield block
