"""JSON Lines: one object a line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, numbered, place
from shardkit.sources.columns.folder_columns import FolderColumns
from shardkit.sources.columns.sampling import HEAD_BYTES, HEAD_ROWS
from shardkit.sources.files.streams import guard_unchanged, is_seekable, open_stream, read_exactly, read_head
from shardkit.sources.json.bad_lines import parse_line, readers, wider_lines
from shardkit.sources.json.decoder import try_decode
from shardkit.sources.json.table_signs import check_no_bulk, check_not_arrays
from shardkit.sources.json.type_sample import Inferred, Rows, SampledSource, infer_features
from shardkit.sources.json.values import Mode, written_modes
from shardkit.sources.text.blocks import Lines
from shardkit.sources.text.line_numbers import LineNumbers
from shardkit.sources.text.rejected_records import BatchMaker, error_at
from shardkit.sources.text.splits import read_blocks, split_file
from shardkit.sources.text.together import SmallText, read_small_texts, rows_of
from shardkit.sources.text_heads import BOM, check_is_text
from shardkit.units import KiB

_RULE = Lines()
_NUM_WINDOWS = 8
_WINDOW_BYTES = 128 * KiB
_BEGINNING_BYTES = 64 * KiB
_ONLY_BLANK = "the input files hold nothing but blank lines"
_NO_OBJECT = "there is no object in the input files"
_ARRAY = re.compile(rb"\s*\[\s*(\{|$)")


@dataclass(frozen=True)
class JsonLinesSource(SampledSource):
    """JSON Lines."""

    format: str = "jsonl"

    def sample(self, files: tuple[RawFile, ...], options: SourceOptions) -> Inferred:
        """Returns what the objects in the heads of the files, and at places evenly spread over large files have."""
        return _infer(files, options)

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files at the ends of lines; a compressed file is one split."""
        return numbered(
            chain.from_iterable(split_file(f, i, _RULE, options, self.split_bytes) for i, f in enumerate(files))
        )

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split. Raises DamagedFileError if a line is too long, or the file is no JSON Lines."""
        file = files[split.file_start]
        with guard_unchanged(file):
            folders = FolderColumns(file, features)
            beginning = _beginning(file, folders.stored)
            start = split.start or beginning.start
            if split.stop and start >= split.stop:
                return
            rows = self._read_rows(split, start, file, folders.stored, beginning.modes, options)
            yield from map(folders.fill, rows)

    def read_together(
        self, indices: Sequence[int], files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> RowBatch | None:
        """Returns the rows of small whole files at once; None if each must be read alone."""
        texts = read_small_texts(indices, files, options, _object_lines)
        return None if texts is None else decode_together(texts, files, features, options)

    def _read_rows(
        self,
        split: InputSplit,
        start: int,
        file: RawFile,
        features: Features,
        modes: dict[str, Mode],
        options: SourceOptions,
    ) -> Iterator[RowBatch]:
        tolerates = options.tolerates_bad_rows
        decoder, line_filter = readers(features, modes, options)
        maker = BatchMaker(file, split.file_start, split.start, LineNumbers(file, _RULE), tolerates_bad_rows=tolerates)
        for block in read_blocks(file, _RULE, options, start=start, stop=split.stop, block_bytes=self.batch_bytes):
            data = bytes(block.data)
            parsed = try_decode(decoder, data)
            if parsed is None:
                yield maker.good_records(
                    block, data, line_filter.split_lines(data, block.offset, only_first=not tolerates)
                )
            else:
                yield maker.clean(block, *parsed)


def _object_lines(_: int, data: bytes) -> tuple[bytes, int]:
    lines = data.removeprefix(BOM)
    return lines, sum(1 for line in lines.splitlines() if line.strip())


def decode_together(
    texts: Sequence[SmallText], files: tuple[RawFile, ...], features: Features, options: SourceOptions
) -> RowBatch | None:
    """Returns the rows of texts of an object a line; None if each must be read alone."""
    # A file of which a column is written in another way has values that do not fit this decoder.
    decoder, _ = readers(features, {}, options)
    parsed = try_decode(decoder, b"".join(text.data for text in texts))
    return None if parsed is None else rows_of(*parsed, texts, files)


# `infer` and `notes` ask for it.
@functools.lru_cache(maxsize=1)
def _infer(files: tuple[RawFile, ...], options: SourceOptions) -> Inferred:
    return infer_features(
        files,
        lambda f: _sample(f, options),
        options,
        wider_rows=functools.partial(_wider_rows, files, options) if options.types_of_all_rows else None,
        nothing=_NO_OBJECT if options.tolerates_bad_rows else _ONLY_BLANK,
    )


class _Beginning(NamedTuple):
    # Where the first line starts, and how the columns are written.
    start: int
    modes: dict[str, Mode]


@functools.lru_cache(maxsize=64)
def _beginning(file: RawFile, features: Features) -> _Beginning:
    head = read_head(file, _BEGINNING_BYTES)
    check_is_text(head, file)
    _refuse_array(head, file)
    start = len(BOM) if head.startswith(BOM) else 0
    return _Beginning(start, written_modes(features, _first_objects(file, head, start)))


def _first_objects(file: RawFile, head: bytes, start: int) -> Iterator[dict[str, object]]:
    # Reads the whole sample only if the head is not enough.
    if len(head) < _BEGINNING_BYTES:
        yield from (row for _, row in _parsed_rows(head[start:], file))
        return
    end = head.rfind(b"\n") + 1
    yield from (row for _, row in _parsed_rows(head[start:end], file))
    with open_stream(file, end) as stream:
        more = read_exactly(stream, HEAD_BYTES)
    yield from (row for _, row in _parsed_rows(more[: more.rfind(b"\n") + 1], file))
    for rows in _window_rows(file):
        yield from (row for _, row in rows)


def _sample(file: RawFile, options: SourceOptions) -> Iterator[Rows]:
    yield _head_rows(file, options)
    yield from _window_rows(file)


def _wider_rows(files: tuple[RawFile, ...], options: SourceOptions, features: Features) -> Iterator[Rows]:
    decoder, line_filter = readers(features, {}, options)
    for file in files:
        head = read_head(file, _BEGINNING_BYTES)
        start, line = len(BOM) if head.startswith(BOM) else 0, 1
        for block in read_blocks(file, _RULE, options, start=start, stop=0, block_bytes=HEAD_BYTES):
            data = bytes(block.data)
            found = wider_lines(decoder, line_filter, data)
            parsed = ((line + number, parse_line(text, 0)) for number, text in found if text.strip())
            yield [(place(file, line=number), row) for number, (row, problem) in parsed if problem is None]
            line += data.count(b"\n")


def _head_rows(file: RawFile, options: SourceOptions) -> Rows:
    head = read_head(file, _BEGINNING_BYTES)
    check_is_text(head, file)
    _refuse_array(head, file)
    if not options.tolerates_bad_rows:
        check_not_arrays(head.removeprefix(BOM), file)
    check_no_bulk(head.removeprefix(BOM), file)
    start = len(BOM) if head.startswith(BOM) else 0
    blocks = read_blocks(file, _RULE, options, start=start, stop=0, block_bytes=HEAD_BYTES, is_head=True)
    block = next(blocks, None)
    rows: Rows = []
    if block is None:
        return rows
    data = bytes(block.data)
    blocks.close()
    offset = start
    for line, text in enumerate(data.split(b"\n"), start=1):
        if len(rows) == HEAD_ROWS:
            break
        if text.strip():
            row, problem = parse_line(text, offset)
            if problem is None:
                rows.append((place(file, line=line), row))
            elif not options.tolerates_bad_rows:
                raise error_at(problem, file, line)
        offset += len(text) + 1
    return rows


def _window_rows(file: RawFile) -> Iterator[Rows]:
    # Keys that appear late would otherwise be unknown; reading reports lines that do not parse.
    if not is_seekable(file) or file.num_bytes <= HEAD_BYTES + _NUM_WINDOWS * _WINDOW_BYTES:
        return
    for number in range(1, _NUM_WINDOWS + 1):
        start = HEAD_BYTES + (file.num_bytes - HEAD_BYTES - _WINDOW_BYTES) * number // _NUM_WINDOWS
        with open_stream(file, start) as stream:
            data = read_exactly(stream, _WINDOW_BYTES)
        first, last = data.find(b"\n") + 1, data.rfind(b"\n") + 1
        yield list(_parsed_rows(data[first:last], file, start)) if first else []


def _parsed_rows(data: bytes, file: RawFile, start: int = 0) -> Iterator[tuple[str, dict[str, object]]]:
    for text in data.split(b"\n"):
        row, problem = parse_line(text, 0) if text.strip() else (None, None)
        if row is not None and problem is None:
            yield f"{place(file)}, behind byte {start}", row


def _refuse_array(head: bytes, file: RawFile) -> None:
    if _ARRAY.match(head.removeprefix(BOM)):
        raise DamagedFileError(
            "the file is a JSON array",
            where=place(file),
            why="JSON Lines is expected: one object a line",
            next_step="Read it with --format json",
        )
