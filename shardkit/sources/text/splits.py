"""Text files cut into input splits at the ends of records."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator

import msgspec

from shardkit.errors import DamagedFileError
from shardkit.sources.base import InputSplit, RawFile, SourceOptions, choose_split_bytes, place
from shardkit.sources.files.streams import guard_unchanged, is_seekable, open_stream
from shardkit.sources.text.blocks import RecordRule, RecordTooLongError, TextBlock, iter_blocks
from shardkit.sources.text.line_numbers import line_at as line_at
from shardkit.sources.text_heads import BOM as BOM
from shardkit.units import MiB, format_size

_SCAN_BYTES = 2 * MiB


def cut_file(
    file: RawFile,
    file_index: int,
    split_bytes: int | None,
    options: SourceOptions,
    find_cuts: Callable[[int], Iterable[int]],
) -> list[InputSplit]:
    """Returns the splits of one text file, without their final index.

    A compressed or transcoded file is one split, with `stop` 0. Where bad rows are tolerated, a damaged file is one
    split too, and reading it tells of the damage.

    Args:
        split_bytes: Wanted size of a split; None chooses by the size of the file.
        find_cuts: Finds where to cut a larger file, by the size of a split.

    Raises:
        DamagedFileError: If the file cannot be cut, unless bad rows are tolerated.
    """
    whole = InputSplit(index=0, file_start=file_index, file_stop=file_index + 1, num_bytes=file.num_bytes)
    if file.num_bytes == 0:
        return []
    if not is_seekable(file):
        return [whole]
    split_bytes = split_bytes or choose_split_bytes(file.num_bytes)
    bounds = [0, file.num_bytes]
    if file.num_bytes > split_bytes:
        try:
            with guard_unchanged(file):
                bounds[1:1] = find_cuts(split_bytes)
        except DamagedFileError:
            if not options.tolerates_bad_rows:
                raise
    return [
        msgspec.structs.replace(whole, start=start, stop=stop, num_bytes=stop - start)
        for start, stop in itertools.pairwise(bounds)
    ]


def split_file(
    file: RawFile, file_index: int, rule: RecordRule, options: SourceOptions, split_bytes: int | None = None
) -> list[InputSplit]:
    """Returns the splits of a file of records as `cut_file` does; a large one is read once, to find where they end.

    Raises:
        DamagedFileError: If a record is too long or a quote is never closed, unless bad rows are tolerated.
    """
    return cut_file(file, file_index, split_bytes, options, functools.partial(_find_cuts, file, rule, options))


def read_blocks(
    file: RawFile,
    rule: RecordRule,
    options: SourceOptions,
    *,
    start: int,
    stop: int,
    block_bytes: int,
    is_head: bool = False,
) -> Generator[TextBlock, None, None]:
    """Yields the blocks of a part of a file.

    Args:
        start: Byte where a record starts, after decompression.
        stop: Byte to stop at, 0 for the end of the file.
        is_head: Whether only the first block is wanted.

    Raises:
        DamagedFileError: If a record is too long, or a quote is open at the end.
    """
    try:
        with open_stream(file, start, is_read_through=not is_head) as stream:
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
                    before = line_at(file, rule, block.offset)
                    raise _never_closed(file, before + rule.count_lines(block.data[:position]))
                yield block
    except RecordTooLongError as error:
        line = line_at(file, rule, error.offset)
        raise _too_long(file, rule, line, error, options.max_record_bytes) from error


def _find_cuts(file: RawFile, rule: RecordRule, options: SourceOptions, split_bytes: int) -> Iterator[int]:
    # The last split takes the rest if that is less than a quarter of a split. Only the ends of blocks are searched:
    # lines are counted when a message needs their number.
    last_cut, cut = file.num_bytes - split_bytes // 4, 0
    with open_stream(file) as stream:
        start = len(BOM) if stream.read(len(BOM)) == BOM else 0
    scan_bytes = max(1, min(_SCAN_BYTES, split_bytes // 8))
    for block in read_blocks(file, rule, options, start=start, stop=file.num_bytes, block_bytes=scan_bytes):
        end = block.offset + len(block.data)
        if end - cut > split_bytes - scan_bytes and end < last_cut:
            cut = end
            yield cut
        if cut + split_bytes - scan_bytes >= last_cut:
            break


def _never_closed(file: RawFile, line: int) -> DamagedFileError:
    return DamagedFileError(
        f"a quote opened at line {line} is never closed",
        where=place(file),
        why="everything behind it would be one field",
        next_step="Close the quote, double it if it is part of the text, or read quotes as text with --quote none",
    )


def _too_long(file: RawFile, rule: RecordRule, line: int, error: RecordTooLongError, limit: int) -> DamagedFileError:
    why = f"it has more than the {format_size(limit)} that a record may have"
    if rule.open_quote(error.head) is not None:
        why += "; a quote that opens in it is perhaps never closed"
    return DamagedFileError(
        "a record is too long",
        where=place(file, line=line),
        why=why,
        next_step="Check that it is text with line ends, or raise --max-record-size",
    )
