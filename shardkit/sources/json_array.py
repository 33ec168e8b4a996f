"""JSON that is not one object a line: arrays of objects, and objects one behind the other, laid out in any way."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RowBatch, SourceOptions
from shardkit.sources.json_frames import Elements, FrameError, iter_elements
from shardkit.sources.json_modes import Mode, written_modes
from shardkit.sources.json_rows import RowDecoder, try_decode
from shardkit.sources.json_sample import Rows, infer_features
from shardkit.sources.json_sift import JsonSieve, parse_line
from shardkit.sources.sampling import HEAD_BYTES, HEAD_ROWS, sample_files
from shardkit.sources.streams import guard_unchanged, open_stream, place, read_head
from shardkit.sources.text_blocks import Lines, RecordTooLongError, TextBlock
from shardkit.sources.text_heads import BOM, check_is_text
from shardkit.sources.text_lines import LineNumbers, line_at
from shardkit.sources.text_rejects import BadRecord, BatchMaker, Sifted
from shardkit.units import KiB, format_size

_RULE = Lines()
_BEGINNING_BYTES = 64 * KiB
# An object whose brace is alone in its line belongs to no JSON Lines.
_RECOGNIZED = re.compile(rb"\s*(\[\s*\{|\{[ \t\r]*\n)")


@dataclass(frozen=True)
class JsonArraySource:
    """Arrays of objects, and objects one behind the other.

    Attributes:
        format: `json`.
        block_bytes: Wanted text of a batch.
    """

    format: str = "json"
    block_bytes: int = BATCH_BYTES

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file begins with an array of objects, or with an object that has a line for its brace."""
        return _RECOGNIZED.match(head.removeprefix(BOM)) is not None

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the keys that the heads of the files hold, as for JSON Lines.

        Raises:
            UsageError: If a key holds values that do not go together, or that no example can hold.
            BadInputError: If a head is no JSON, or there are no objects.
        """
        return infer_features(
            sample_files([f for f in files if f.num_bytes]),
            lambda file: [_head_rows(file, options)],
            tolerates_bad_rows=options.tolerates_bad_rows,
        )

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: JSON says what it is."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Returns a split a file: where elements begin shows only to those who read everything before."""
        filled = [(index, file) for index, file in enumerate(files) if file.num_bytes]
        return [
            InputSplit(index=number, file_start=index, file_stop=index + 1, num_bytes=file.num_bytes)
            for number, (index, file) in enumerate(filled)
        ]

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the objects of one file.

        Raises:
            BadInputError: At the first element that does not fit, unless bad rows are tolerated, or if the file changed
                since it was listed.
            DamagedFileError: If elements cannot be told apart, one is too long, or the text ends too early.
        """
        file = files[split.file_start]
        with guard_unchanged(file):
            modes = _modes(file, features)
            decoder, sieve = RowDecoder(features, modes), JsonSieve(features, modes)
            tolerates = options.tolerates_bad_rows
            lines = LineNumbers(file, _RULE)
            maker = BatchMaker(
                file, split.file_start, split.start, lines, tolerates_bad_rows=tolerates, names_rows=True
            )
            for elements in _read_elements(file, options, self.block_bytes):
                data = elements.as_lines()
                block = TextBlock(memoryview(elements.data), elements.offset, elements.is_last)
                parsed = try_decode(decoder, data)
                if parsed is None:
                    places = elements.offset + elements.starts
                    sifted = sieve.sift(data, 0, only_first=not tolerates, offsets=places)
                    yield maker.sifted(block, elements.data, _in_place(sifted, elements))
                else:
                    yield maker.clean(block, *parsed)


def _in_place(sifted: Sifted, elements: Elements) -> Sifted:
    numbers = [bad.number for bad in sifted.bad]
    starts, stops = elements.starts[numbers], elements.stops[numbers]
    lines = _RULE.lines_before(elements.data, starts)
    places = zip(sifted.bad, starts.tolist(), stops.tolist(), lines.tolist(), strict=True)
    bad = [BadRecord(b.number, start, stop, num_lines, b.problem) for b, start, stop, num_lines in places]
    return sifted._replace(bad=bad)


def _read_elements(
    file: RawFile, options: SourceOptions, block_bytes: int, *, is_head: bool = False
) -> Iterator[Elements]:
    head = read_head(file, _BEGINNING_BYTES)
    check_is_text(head, file)
    start = len(BOM) if head.startswith(BOM) else 0
    try:
        with open_stream(file, start, is_read_through=not is_head) as stream:
            yield from iter_elements(
                stream, offset=start, max_record_bytes=options.max_record_bytes, block_bytes=block_bytes
            )
    except FrameError as error:
        line = line_at(file, _RULE, error.offset)
        raise DamagedFileError(
            "the file is not valid JSON", where=place(file, line=line), why=f"at byte {error.offset}, {error.why}"
        ) from error
    except RecordTooLongError as error:
        line = line_at(file, _RULE, error.offset)
        raise DamagedFileError(
            "an object is too long",
            where=place(file, line=line),
            why=f"it has more than the {format_size(options.max_record_bytes)} that a record may have, or never ends",
        ) from error


def _head_rows(file: RawFile, options: SourceOptions) -> Rows:
    rows: Rows = []
    for elements in islice(_read_elements(file, options, HEAD_BYTES, is_head=True), 1):
        texts = elements.as_lines().split(b"\n")[:HEAD_ROWS]
        for row, (text, start) in enumerate(zip(texts, elements.starts.tolist(), strict=False), start=1):
            value, problem = parse_line(text, elements.offset + start)
            if problem is None:
                rows.append((place(file, row=row), value))
            elif not options.tolerates_bad_rows:
                line = line_at(file, _RULE, elements.offset + start)
                where = f"{place(file, row=row)}, line {line}"
                raise problem.error(where)
    return rows


@functools.lru_cache(maxsize=64)
def _modes(file: RawFile, features: Features) -> dict[str, Mode]:
    rows: list[dict[str, Any]] = []
    options = SourceOptions(tolerates_bad_rows=True)
    rows = [row for _, row in _head_rows(file, options)]
    return written_modes(features, rows)
