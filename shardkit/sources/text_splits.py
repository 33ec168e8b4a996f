"""Text files cut into input splits at the ends of records."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import msgspec

from shardkit.errors import BadInputError
from shardkit.sources.base import SPLIT_BYTES, InputSplit, RawFile, SourceOptions
from shardkit.sources.streams import guard_unchanged, open_stream, place
from shardkit.sources.text_blocks import RecordRule, RecordTooLongError, TextBlock, iter_blocks
from shardkit.units import MiB, format_size

BOM = b"\xef\xbb\xbf"

_SCAN_BYTES = 8 * MiB


def split_file(
    file: RawFile, file_index: int, rule: RecordRule, options: SourceOptions, split_bytes: int = SPLIT_BYTES
) -> list[InputSplit]:
    """Returns the splits of one text file, without their final index.

    A compressed file is one split, with `stop` 0. A large one is read once, to find where records end.

    Raises:
        BadInputError: If a record is too long or a quote is never closed.
    """
    whole = InputSplit(index=0, file_start=file_index, file_stop=file_index + 1, num_bytes=file.num_bytes)
    if file.num_bytes == 0:
        return []
    if file.compression is not None:
        return [whole]
    if file.num_bytes <= split_bytes:
        return [_part(whole, 0, file.num_bytes, 1)]
    cuts = [(0, 1), *_find_cuts(file, rule, options, split_bytes)]
    stops = [start for start, _ in cuts[1:]] + [file.num_bytes]
    return [_part(whole, start, stop, line) for (start, line), stop in zip(cuts, stops, strict=True)]


def numbered(splits: Iterator[InputSplit]) -> list[InputSplit]:
    """Returns splits with their positions filled in."""
    return [msgspec.structs.replace(s, index=index) for index, s in enumerate(splits)]


def read_blocks(
    file: RawFile, rule: RecordRule, options: SourceOptions, *, start: int, stop: int, first_line: int, block_bytes: int
) -> Generator[TextBlock, None, None]:
    """Yields the blocks of a part of a file.

    Args:
        file: The file.
        rule: Where records end.
        options: Holds the longest record.
        start: Byte where a record starts, after decompression.
        stop: Byte to stop at, 0 for the end of the file.
        first_line: 1-based line number at `start`.
        block_bytes: Wanted size of a block.

    Raises:
        BadInputError: If a record is too long, or a quote is open at the end.
    """
    try:
        with open_stream(file, start) as stream:
            blocks = iter_blocks(
                stream,
                rule,
                offset=start,
                stop=stop or None,
                max_record_bytes=options.max_record_bytes,
                block_bytes=block_bytes,
            )
            for block in blocks:
                if block.is_last and (position := rule.open_quote(block.data)) is not None:
                    before = line_at(file, rule, start=start, first_line=first_line, offset=block.offset)
                    raise _never_closed(file, before + rule.count_lines(block.data[:position]))
                yield block
    except RecordTooLongError as error:
        line = line_at(file, rule, start=start, first_line=first_line, offset=error.offset)
        raise _too_long(file, rule, line, error, options.max_record_bytes) from error


def line_at(file: RawFile, rule: RecordRule, *, start: int, first_line: int, offset: int) -> int:
    """Returns the 1-based number of the line that begins at `offset`; reads the file from `start` on again."""
    line = first_line
    with open_stream(file, start) as stream:
        for block in iter_blocks(stream, rule, offset=start, stop=offset, max_record_bytes=offset):
            line += rule.count_lines(block.data)
    return line


def _part(whole: InputSplit, start: int, stop: int, first_line: int) -> InputSplit:
    return msgspec.structs.replace(whole, start=start, stop=stop, first_line=first_line, num_bytes=stop - start)


def _find_cuts(file: RawFile, rule: RecordRule, options: SourceOptions, split_bytes: int) -> Iterator[tuple[int, int]]:
    # The last split takes what would be less than a quarter of one.
    last_cut, line, cut = file.num_bytes - split_bytes // 4, 1, 0
    with guard_unchanged(file):
        with open_stream(file) as stream:
            start = len(BOM) if stream.read(len(BOM)) == BOM else 0
        scan_bytes = max(1, min(_SCAN_BYTES, split_bytes // 8))
        blocks = read_blocks(
            file, rule, options, start=start, stop=file.num_bytes, first_line=1, block_bytes=scan_bytes
        )
        for block in blocks:
            line += rule.count_lines(block.data)
            end = block.offset + len(block.data)
            if end - cut > split_bytes - scan_bytes and end < last_cut:
                cut = end
                yield cut, line


def _never_closed(file: RawFile, line: int) -> BadInputError:
    return BadInputError(
        f"a quote opened at line {line} is never closed",
        where=place(file),
        why="everything behind it would be one field",
        next_step="Close the quote, or double it if it is part of the text",
    )


def _too_long(file: RawFile, rule: RecordRule, line: int, error: RecordTooLongError, limit: int) -> BadInputError:
    why = f"it has more than the {format_size(limit)} that a record may have"
    if rule.open_quote(error.head) is not None:
        why += "; a quote that opens in it is perhaps never closed"
    return BadInputError(
        "a record is too long",
        where=place(file, line=line),
        why=why,
        next_step="Check that it is text with line ends",
    )
