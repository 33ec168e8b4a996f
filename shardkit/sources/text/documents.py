"""Text files that are one row each, read whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError, DamagedFileError
from shardkit.features import Features
from shardkit.sources.base import (
    BATCH_BYTES,
    MAX_RAW_BYTES,
    InputSplit,
    RawFile,
    RejectedRow,
    RowBatch,
    SourceOptions,
    file_identities,
    numbered,
    place,
    rejected_row,
)
from shardkit.sources.class_folders import class_of
from shardkit.sources.columns.row_casting import bad_value_error, cast_rows
from shardkit.sources.files.streams import guard_unchanged, is_seekable, open_stream, read_exactly
from shardkit.sources.files.whole_files import read_whole_files, split_files
from shardkit.sources.text.decoding_errors import find_decoding_errors, other_encoding, too_long_fault
from shardkit.sources.text.splits import BOM
from shardkit.units import KiB

_MIN_SPLIT_FILES = 256
_FIRST_BYTES = 4 * KiB
_MAX_COLUMN_BYTES = 2**31 - 1 - 2 * BATCH_BYTES  # Arrow counts the bytes of a batch with 32 bits.

_Content = tuple[int, bytes | memoryview]


def split_documents(files: tuple[RawFile, ...], split_bytes: int | None) -> list[InputSplit]:
    """Returns the list of files cut into splits, without those of empty files alone."""
    return numbered(s for s in split_files(files, split_bytes, _MIN_SPLIT_FILES) if s.num_bytes)


def read_documents(
    split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions, batch_bytes: int
) -> Iterator[RowBatch]:
    """Yields the files of one split, those that are empty left out.

    Raises:
        BadInputError: At the first file that is no text or too long, unless bad rows are tolerated; or that changed
            since it was listed.
    """
    documents = _Documents(files, features, options)
    held: list[_Content] = []
    num_bytes = 0
    for content in documents.contents(split, batch_bytes):
        if content is not None:
            held.append(content)
            num_bytes += len(content[1])
        if num_bytes + sum(len(r.raw) for r in documents.rejected) >= batch_bytes:
            yield documents.batch(held)
            held, num_bytes = [], 0
    if held or documents.rejected:
        yield documents.batch(held)


class _Documents:
    """Reads files and makes rows of them.

    Args:
        files: All inputs.
        features: What is wanted.
        options: Say how long a file may be, and whether bad ones are tolerated.
    """

    def __init__(self, files: tuple[RawFile, ...], features: Features, options: SourceOptions) -> None:
        self._files = files
        self._features = features
        self._options = options
        self._max_bytes = min(options.max_record_bytes, _MAX_COLUMN_BYTES)
        self.rejected: list[RejectedRow] = []

    def contents(self, split: InputSplit, batch_bytes: int) -> Iterator[_Content | None]:
        """Yields the position and the content of each file that can be read, without the mark of UTF-8.

        Of a file that was rejected, None.
        """
        plain: list[int] = []
        num_bytes = 0
        for index in range(split.file_start, split.file_stop):
            file = self._files[index]
            if not file.num_bytes:
                continue
            if is_seekable(file) and file.num_bytes <= self._max_bytes:
                plain.append(index)
                num_bytes += file.num_bytes
                if num_bytes < batch_bytes:
                    continue
            yield from self._read_plain(plain)
            plain, num_bytes = [], 0
            if not is_seekable(file) or file.num_bytes > self._max_bytes:
                yield from self._read_stream(index)
        yield from self._read_plain(plain)

    def batch(self, contents: Sequence[_Content]) -> RowBatch:
        """Returns the rows of some files, with whatever was rejected since the last ones."""
        good: list[_Content] = []
        texts = pa.array([text for _, text in contents], pa.binary())
        found_errors = find_decoding_errors(texts, self._max_bytes)
        for row, (index, text) in enumerate(contents):
            if row in found_errors:
                fault = found_errors[row]
                self._reject(fault.as_error(self._files[index]), index, bytes(text[:MAX_RAW_BYTES]))
            else:
                good.append((index, text))
        if found_errors:
            texts = pa.array([text for _, text in good], pa.binary())
        names = [self._files[index].name for index, _ in good]
        classes = [class_of(self._files[index], self._options) for index, _ in good]
        columns = {
            "text": texts.view(pa.string()),
            "label": pa.array(classes, pa.string()),
            "filename": pa.array(names, pa.string()),
        }
        cast = cast_rows(
            lambda start, stop: {name: column.slice(start, stop - start) for name, column in columns.items()},
            len(names),
            self._features,
            tolerates_bad_rows=True,
        )
        for row, bad_values in cast.bad_values:
            index, text = good[row]
            self._reject(bad_value_error(bad_values, place(self._files[index])), index, bytes(text[:MAX_RAW_BYTES]))
        kept = cast.kept.tolist()
        rejected, self.rejected = self.rejected, []
        return RowBatch(
            cast.batch,
            file_identities([names[row] for row in kept]),
            np.array([good[row][0] for row in kept], dtype=np.int64),
            cast.num_rounded,
            rejected,
        )

    def _read_plain(self, indices: list[int]) -> Iterator[_Content | None]:
        if not indices:
            return
        data, offsets = read_whole_files([self._files[i] for i in indices])
        view = memoryview(data).cast("B")
        for position, index in enumerate(indices):
            yield from self._checked(index, view[offsets[position] : offsets[position + 1]])

    def _read_stream(self, index: int) -> Iterator[_Content | None]:
        file = self._files[index]
        try:
            with guard_unchanged(file), open_stream(file) as stream:
                text = read_exactly(stream, self._max_bytes + 1)
        except DamagedFileError as error:
            # The file is the row, so it is known how many are lost.
            self._reject(error, index, b"")
            yield None
            return
        if len(text) > self._max_bytes:
            self._reject(too_long_fault(self._max_bytes).as_error(file), index, text[:MAX_RAW_BYTES])
            yield None
        else:
            yield from self._checked(index, text)

    def _checked(self, index: int, text: bytes | memoryview) -> Iterator[_Content | None]:
        error = other_encoding(bytes(text[:_FIRST_BYTES]), self._files[index])
        if error is not None:
            self._reject(error, index, bytes(text[:MAX_RAW_BYTES]))
            yield None
        else:
            yield index, text[len(BOM) :] if bytes(text[: len(BOM)]) == BOM else text

    def _reject(self, error: BadInputError, index: int, raw: bytes) -> None:
        if not self._options.tolerates_bad_rows:
            raise error
        self.rejected.append(rejected_row(error, file_index=index, position="", first_byte=None, raw=raw))
