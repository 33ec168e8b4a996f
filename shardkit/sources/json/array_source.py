"""JSON that is not one object a line: arrays of objects, and objects one behind the other, laid out in any way."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import msgspec

from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, numbered, place
from shardkit.sources.columns.folder_columns import FolderColumns
from shardkit.sources.columns.sampling import HEAD_BYTES, HEAD_ROWS
from shardkit.sources.files.streams import guard_unchanged, open_stream, read_head
from shardkit.sources.json.bad_lines import parse_line, readers, wider_lines
from shardkit.sources.json.decoder import try_decode
from shardkit.sources.json.lines_source import decode_together
from shardkit.sources.json.object_bounds import Elements, FrameError, State, iter_elements, state_behind_element
from shardkit.sources.json.type_sample import Inferred, Rows, SampledSource, infer_features
from shardkit.sources.json.values import Mode, written_modes
from shardkit.sources.text.blocks import Lines, RecordTooLongError, TextBlock
from shardkit.sources.text.line_numbers import LineNumbers, line_at
from shardkit.sources.text.rejected_records import BadRecord, BatchMaker, GoodRecords
from shardkit.sources.text.splits import cut_file
from shardkit.sources.text.together import read_small_texts
from shardkit.sources.text_heads import BOM, check_is_text
from shardkit.units import KiB, MiB, format_size

_RULE = Lines()
_BEGINNING_BYTES = 64 * KiB
_SCAN_BYTES = 2 * MiB
# An object whose brace is alone in its line belongs to no JSON Lines.
_RECOGNIZED = re.compile(rb"\s*(\[\s*\{|\{[ \t\r]*\n)")
_NEXT = re.compile(rb"\}\s*\{")
_EMPTY = re.compile(rb"\s*\[\s*\]\s*")
_CALLED_JSON = re.compile(r"\.json(\.\w+)?$", re.IGNORECASE)
# Strings hold no line breaks, so they stand between the tokens.
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_TOLERANT = SourceOptions(tolerates_bad_rows=True)


def _has_two_in_a_line(line: bytes) -> bool:
    if not line.startswith(b"{") or _NEXT.search(line) is None:
        return False
    try:
        text = line.decode(errors="replace")
        _, stop = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return text[stop:].lstrip().startswith("{")


@dataclass(frozen=True)
class JsonArraySource(SampledSource):
    """Arrays of objects, and objects one behind the other."""

    format: str = "json"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file begins with an array of objects, an object that has a line for its brace, or two
        objects in a line.

        An empty array may be anything: the name decides.
        """
        text = head.removeprefix(BOM)
        if _EMPTY.fullmatch(text):
            return _CALLED_JSON.search(name) is not None
        return _RECOGNIZED.match(text) is not None or _has_two_in_a_line(text.lstrip().partition(b"\n")[0])

    def sample(self, files: tuple[RawFile, ...], options: SourceOptions) -> Inferred:
        """Returns what the objects in the heads of the files have."""
        return _infer(files, options)

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files behind elements, for which large ones are read once; a compressed file is one split."""
        return numbered(chain.from_iterable(self._split_one(f, i, options) for i, f in enumerate(files)))

    def _split_one(self, file: RawFile, file_index: int, options: SourceOptions) -> list[InputSplit]:
        find_cuts = functools.partial(_find_cuts, file, options)
        # The last one is read up to the end, which tells whether the array is closed.
        return [
            msgspec.structs.replace(split, stop=0 if split.stop == file.num_bytes else split.stop)
            for split in cut_file(file, file_index, self.split_bytes, options, find_cuts)
        ]

    def read_together(
        self, indices: Sequence[int], files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> RowBatch | None:
        """Returns the rows of small arrays at once; None if each must be read alone."""
        texts = read_small_texts(indices, files, options, _element_lines)
        return None if texts is None else decode_together(texts, files, features, options)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the objects of one split.

        Raises:
            DamagedFileError: If elements cannot be separated, one is too long, or the text ends too early.
        """
        file = files[split.file_start]
        with guard_unchanged(file):
            folders = FolderColumns(file, features)
            pieces: Iterator[Elements] = _read_elements(
                file, options, self.batch_bytes, start=split.start, stop=split.stop
            )
            if file.num_bytes <= HEAD_BYTES and file.compression is None:
                # Of thousands of small files each is read once.
                first = list(islice(pieces, 1))
                modes, pieces = _modes_of(folders.stored, file, first), chain(first, pieces)
            else:
                modes = _modes(file, folders.stored)
            decoder, line_filter = readers(folders.stored, modes, options)
            tolerates = options.tolerates_bad_rows
            lines = LineNumbers(file, _RULE)
            maker = BatchMaker(
                file,
                split.file_start,
                split.start,
                lines,
                tolerates_bad_rows=tolerates,
                rows_before=lambda: _count_elements(file, options, split.start),
            )
            for elements in pieces:
                data = elements.as_lines()
                block = TextBlock(memoryview(elements.data), elements.offset, elements.is_last)
                parsed = try_decode(decoder, data)
                if parsed is None:
                    places = elements.offset + elements.starts
                    good_records = line_filter.split_lines(data, 0, only_first=not tolerates, offsets=places)
                    yield folders.fill(maker.good_records(block, elements.data, _in_place(good_records, elements)))
                else:
                    yield folders.fill(maker.clean(block, *parsed))


def _element_lines(_: int, data: bytes) -> tuple[bytes, int] | None:
    try:
        elements = msgspec.json.decode(data.removeprefix(BOM), type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    return b"\n".join(bytes(element).translate(_ONE_LINE) for element in elements), len(elements)


# `infer` and `notes` ask for it.
@functools.lru_cache(maxsize=1)
def _infer(files: tuple[RawFile, ...], options: SourceOptions) -> Inferred:
    return infer_features(
        files,
        lambda file: [_head_rows(file, options)],
        options,
        wider_rows=functools.partial(_wider_rows, files, options) if options.types_of_all_rows else None,
    )


def _in_place(good_records: GoodRecords, elements: Elements) -> GoodRecords:
    numbers = [bad.number for bad in good_records.bad]
    starts, stops = elements.starts[numbers], elements.stops[numbers]
    lines = _RULE.lines_before(elements.data, starts)
    places = zip(good_records.bad, starts.tolist(), stops.tolist(), lines.tolist(), strict=True)
    bad = [BadRecord(b.number, start, stop, num_lines, b.problem) for b, start, stop, num_lines in places]
    return good_records._replace(bad=bad)


def _find_cuts(file: RawFile, options: SourceOptions, split_bytes: int) -> Iterator[int]:
    # The last split takes the rest if that is less than a quarter of a split.
    last_cut, cut = file.num_bytes - split_bytes // 4, 0
    scan_bytes = max(1, min(_SCAN_BYTES, split_bytes // 8))
    state = state_behind_element(read_head(file, _BEGINNING_BYTES).removeprefix(BOM))
    for elements in _read_elements(file, options, scan_bytes):
        end = elements.offset + len(elements.data)
        if end - cut > split_bytes - scan_bytes and end < last_cut and elements.state == state:
            cut = end
            yield cut
        if cut + split_bytes - scan_bytes >= last_cut:
            break


def _count_elements(file: RawFile, options: SourceOptions, stop: int) -> int:
    # Used for messages only, because it reads the file again up to the split.
    if not stop:
        return 0
    return sum(len(elements.starts) for elements in _read_elements(file, options, _SCAN_BYTES, stop=stop))


def _read_elements(
    file: RawFile, options: SourceOptions, block_bytes: int, *, start: int = 0, stop: int = 0, is_head: bool = False
) -> Iterator[Elements]:
    head = read_head(file, _BEGINNING_BYTES)
    check_is_text(head, file)
    state = state_behind_element(head.removeprefix(BOM)) if start else State()
    start = start or (len(BOM) if head.startswith(BOM) else 0)
    try:
        with open_stream(file, start, is_read_through=not is_head) as stream:
            yield from iter_elements(
                stream,
                offset=start,
                max_record_bytes=options.max_record_bytes,
                block_bytes=block_bytes,
                state=state,
                stop=stop or None,
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
            next_step="Check that its brackets are closed, or raise --max-record-size",
        ) from error


def _wider_rows(files: tuple[RawFile, ...], options: SourceOptions, features: Features) -> Iterator[Rows]:
    decoder, line_filter = readers(features, {}, options)
    for file in files:
        num_rows = 0
        for elements in _read_elements(file, options, HEAD_BYTES):
            found = wider_lines(decoder, line_filter, elements.as_lines())
            parsed = ((num_rows + number, parse_line(text, 0)) for number, text in found if text.strip())
            yield [(place(file, row=number + 1), row) for number, (row, problem) in parsed if problem is None]
            num_rows += len(elements.starts)


def _head_rows(file: RawFile, options: SourceOptions) -> Rows:
    return _first_rows(file, _read_elements(file, options, HEAD_BYTES, is_head=True), options)


def _first_rows(file: RawFile, pieces: Iterable[Elements], options: SourceOptions) -> Rows:
    rows: Rows = []
    for elements in islice(pieces, 1):
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
    return _modes_of(features, file, _read_elements(file, _TOLERANT, HEAD_BYTES, is_head=True))


def _modes_of(features: Features, file: RawFile, pieces: Iterable[Elements]) -> dict[str, Mode]:
    return written_modes(features, [row for _, row in _first_rows(file, pieces, _TOLERANT)])
