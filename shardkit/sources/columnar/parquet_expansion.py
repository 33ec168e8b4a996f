"""Finds the size of a Parquet file in memory before the file is read.

Pages are compressed, runs of equal values are written once, and texts as places in a dictionary: a few bytes of a file
may stand for gigabytes. Reading in small batches keeps all of that small but a single page, a single row of a list, and
texts that are written out; the first two are looked at in the headers of suspicious pages, and such texts are left in
their dictionary until a batch is cut by its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardkit.encoding.parquet_footer import Page, RowGroup, parse_page_header
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.expansion_limit import expansion_error, largest_expansion
from shardkit.units import KiB, MiB

_HEADER_BYTES = 4 * KiB
# Longer headers, which hold the least and the greatest value, are refused by Arrow itself.
_MAX_HEADER_BYTES = 16 * MiB
# Bytes of a value in memory; a text counts as its place in a dictionary.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "INT96": 8, "DOUBLE": 8, "BYTE_ARRAY": 4}
_MAX_TEXT_BYTES = 256 * MiB
_PROBED_ROWS = 64


def check_pages(
    raw: BinaryIO, file: RawFile, schema: Any, groups: Sequence[RowGroup], leaves: Sequence[int], max_record_bytes: int
) -> None:
    """Checks that no page, and no row of lists, becomes larger than it may.

    Args:
        schema: Of the file, as its metadata have it.
        leaves: Positions of the columns that are to be read.
        max_record_bytes: A row of lists may always become so large.

    Raises:
        DamagedFileError: If one does.
    """
    for group in groups:
        for leaf in leaves:
            chunk, column = group.columns[leaf], schema.column(leaf)
            width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[column.physical_type]
            list_width = width if column.max_repetition_level else 0
            allowed = largest_expansion(chunk.num_bytes, file.max_expansion)
            if max(chunk.num_uncompressed_bytes, list_width * chunk.num_values) <= allowed:
                continue
            for page in pages(raw, chunk.start, chunk.num_bytes):
                allowed = largest_expansion(page.num_bytes, file.max_expansion)
                row_bytes = list_width * page.num_values
                if page.num_uncompressed_bytes > allowed or row_bytes > max(allowed, max_record_bytes):
                    where = f"{place(file)}, column {printable(column.path)}"
                    raise expansion_error(where, page.num_bytes, file.max_expansion)


def pages(raw: BinaryIO, start: int, num_bytes: int) -> Iterator[Page]:
    """Yields the pages of a column chunk, up to the first whose header makes no sense: reading tells of that."""
    position, stop = start, start + num_bytes
    while position < stop:
        found = _page_at(raw, position, stop)
        if found is None:
            return
        page, num_header_bytes = found
        yield page
        position += num_header_bytes + page.num_bytes


def expanding_texts(
    open_with: Callable[[list[str]], pq.ParquetFile],
    groups: dict[int, RowGroup],
    paths: dict[int, str],
    num_rows: int,
) -> list[str]:
    """Returns which columns of texts might make a batch too large, were they written out.

    Args:
        open_with: Opens the file so that some columns stay in their dictionaries.
        groups: Those that are to be read, by number.
        paths: The columns of texts that are to be read, by position.
    """
    suspects = {n: path for n, path in paths.items() if any(_may_expand(g, n, num_rows) for g in groups.values())}
    if not suspects:
        return []
    longest: dict[str, int] = {}
    parquet = open_with(list(suspects.values()))
    for number, group in groups.items():
        for leaf, path in suspects.items():
            if _may_expand(group, leaf, num_rows):
                num_values = _num_batch_values(group, leaf, num_rows)
                longest[path] = max(longest.get(path, 0), num_values * _longest_text(parquet, number, path))
    return [path for path, num_bytes in longest.items() if num_bytes > _MAX_TEXT_BYTES]


def _page_at(raw: BinaryIO, position: int, stop: int) -> tuple[Page, int] | None:
    # Returns the page with the length of its header.
    num_bytes = _HEADER_BYTES
    while True:
        raw.seek(position)
        try:
            page, num_header_bytes = parse_page_header(raw.read(min(num_bytes, stop - position)))
        except ValueError:
            return None
        except IndexError:
            if num_bytes >= min(stop - position, _MAX_HEADER_BYTES):
                return None
            num_bytes *= 16
            continue
        return None if page.num_bytes < 0 else (page, num_header_bytes)


def _may_expand(group: RowGroup, leaf: int, num_rows: int) -> bool:
    # No text is longer than all pages together, should the writer not say how long all of them are.
    chunk = group.columns[leaf]
    if chunk.num_text_bytes is not None:
        return chunk.has_dictionary and chunk.num_text_bytes > _MAX_TEXT_BYTES
    num_values = _num_batch_values(group, leaf, num_rows)
    return chunk.has_dictionary and num_values * chunk.num_uncompressed_bytes > _MAX_TEXT_BYTES


def _num_batch_values(group: RowGroup, leaf: int, num_rows: int) -> int:
    # All values may be those of one list.
    num_values = group.columns[leaf].num_values
    return min(num_values, num_rows) if num_values == group.num_rows else num_values


def _longest_text(parquet: pq.ParquetFile, group: int, path: str) -> int:
    rows = parquet.iter_batches(batch_size=_PROBED_ROWS, row_groups=[group], columns=[path], use_threads=False)
    first = next(rows, None)
    dictionary = None if first is None else _dictionary(first.column(0))
    if dictionary is None or not len(dictionary):
        # Rows without a text do not show it.
        return _MAX_TEXT_BYTES
    return int(pc.max(pc.binary_length(dictionary)).as_py() or 0)


def _dictionary(column: pa.Array) -> pa.Array | None:
    if isinstance(column.type, pa.BaseExtensionType):
        return _dictionary(column.storage)
    if pa.types.is_dictionary(column.type):
        return column.dictionary
    if pa.types.is_struct(column.type):
        return _dictionary(column.field(0))
    values = getattr(column, "values", None)
    return None if values is None or isinstance(column, pa.MapArray) else _dictionary(values)
