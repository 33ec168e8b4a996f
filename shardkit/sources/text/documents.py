"""Text files that are one row each, read whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources.base import (
    BATCH_BYTES,
    MAX_RAW_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    numbered,
    place,
)
from shardkit.sources.columns.whole_rows import WholeRows
from shardkit.sources.files.streams import guard_unchanged, is_seekable, open_stream, read_exactly
from shardkit.sources.files.whole_files import read_whole_files, split_files
from shardkit.sources.folders.class_folders import class_of
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
    rows = WholeRows(files, features, options)
    documents = _Documents(files, options, rows)
    held: list[_Content] = []
    num_bytes = 0
    for content in documents.contents(split, batch_bytes):
        if content is not None:
            held.append(content)
            num_bytes += len(content[1])
        if num_bytes + rows.num_rejected_bytes >= batch_bytes:
            yield documents.batch(held)
            held, num_bytes = [], 0
    if held or rows.has_rejected:
        yield documents.batch(held)


class _Documents:
    """Reads files and makes rows of them.

    Args:
        options: Say how long a file may be.
        rows: Takes what is read, and files that cannot be.
    """

    def __init__(self, files: tuple[RawFile, ...], options: SourceOptions, rows: WholeRows) -> None:
        self._files = files
        self._options = options
        self._rows = rows
        self._max_bytes = min(options.max_record_bytes, _MAX_COLUMN_BYTES)

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
        texts = pa.array([text for _, text in contents], pa.binary())
        problems = find_decoding_errors(texts, self._max_bytes, np.zeros(len(texts), np.int64))
        for row, problem in problems.items():
            index, text = contents[row]
            self._rows.reject(index, problem.error(place(self._files[index])), bytes(text[:MAX_RAW_BYTES]))
        good = np.delete(np.arange(len(contents)), list(problems))
        raw = {contents[row][0]: contents[row][1] for row in good.tolist()}
        columns = {
            "text": (texts.take(pa.array(good)) if problems else texts).view(pa.string()),
            "label": pa.array([class_of(self._files[index], self._options) for index in raw], pa.string()),
            "filename": pa.array([self._files[index].name for index in raw], pa.string()),
        }
        return self._rows.batch(columns, list(raw), lambda index: bytes(raw[index][:MAX_RAW_BYTES]))

    def _read_plain(self, indices: list[int]) -> Iterator[_Content | None]:
        if not indices:
            return
        contents = read_whole_files([self._files[i] for i in indices]).contents()
        for index, content in zip(indices, contents, strict=True):
            yield from self._checked(index, content)

    def _read_stream(self, index: int) -> Iterator[_Content | None]:
        file = self._files[index]
        try:
            with guard_unchanged(file), open_stream(file) as stream:
                text = read_exactly(stream, self._max_bytes + 1)
        except DamagedFileError as error:
            # The file is the row, so it is known how many are lost.
            self._rows.reject(index, error, b"")
            yield None
            return
        if len(text) > self._max_bytes:
            too_long = too_long_fault(self._max_bytes).error(place(file))
            self._rows.reject(index, too_long, text[:MAX_RAW_BYTES])
            yield None
        else:
            yield from self._checked(index, text)

    def _checked(self, index: int, text: bytes | memoryview) -> Iterator[_Content | None]:
        error = other_encoding(bytes(text[:_FIRST_BYTES]), self._files[index])
        if error is not None:
            self._rows.reject(index, error, bytes(text[:MAX_RAW_BYTES]))
            yield None
        else:
            yield index, text[len(BOM) :] if bytes(text[: len(BOM)]) == BOM else text
