"""Sizes and null counts from a Parquet footer, read without Arrow.

Arrow's accessors for column chunks end the process, by an exception that no caller can catch, where a footer is
damaged or a column encrypted. So the few numbers that planning needs are taken from the footer itself: a Thrift struct
in the compact protocol (https://github.com/apache/parquet-format, file src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardkit.encoding.varints import VarintError, read_varint

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_INTEGERS = (_I16, _I32, _I64)
_MAX_DEPTH = 32
# Numbers of fields in parquet.thrift.
_FILE_ROW_GROUPS = 4
_GROUP_COLUMNS, _GROUP_TOTAL_BYTE_SIZE, _GROUP_NUM_ROWS = 1, 2, 3
_COLUMN_META_DATA = 3
_META_ENCODINGS, _META_CODEC, _META_NUM_VALUES = 2, 4, 5
_META_TOTAL_UNCOMPRESSED_SIZE, _META_TOTAL_COMPRESSED_SIZE = 6, 7
_META_DATA_PAGE, _META_DICTIONARY_PAGE, _META_STATISTICS, _META_SIZES = 9, 11, 12, 16
_META_NUMBERS = frozenset(
    {
        _META_CODEC,
        _META_NUM_VALUES,
        _META_TOTAL_UNCOMPRESSED_SIZE,
        _META_TOTAL_COMPRESSED_SIZE,
        _META_DATA_PAGE,
        _META_DICTIONARY_PAGE,
    }
)
_STATISTICS_NULL_COUNT, _SIZES_TEXT_BYTES = 3, 1
_DICTIONARY_ENCODINGS = (2, 8)
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")

READABLE_CODECS = frozenset({0, 1, 2, 4, 5, 6, 7})


class ColumnChunk(NamedTuple):
    """What a footer says of one column in one row group.

    Attributes:
        num_bytes: As stored.
        num_nulls: None where the writer did not say.
        codec: Number of the compression; those that can be read are READABLE_CODECS.
        num_uncompressed_bytes: Of its pages, their values encoded.
        num_values: Nulls and empty lists among them.
        start: Byte at which its first page stands.
        has_dictionary: Whether values are written as their places in a list of those there are.
        num_text_bytes: Of its texts, each written out; None where the writer did not say.
    """

    num_bytes: int
    num_nulls: int | None
    codec: int = 0
    num_uncompressed_bytes: int = 0
    num_values: int = 0
    start: int = 0
    has_dictionary: bool = False
    num_text_bytes: int | None = None


class RowGroup(NamedTuple):
    """What a footer says of one row group.

    Attributes:
        num_rows: Rows.
        num_uncompressed_bytes: Of all columns.
        columns: In the order of the schema's leaves.
    """

    num_rows: int
    num_uncompressed_bytes: int
    columns: tuple[ColumnChunk, ...]


def parse_row_groups(footer: bytes) -> tuple[RowGroup, ...]:
    """Returns the row groups of a footer.

    Raises:
        ValueError: If the footer is damaged.
    """
    reader = CompactReader(footer)
    groups: tuple[RowGroup, ...] = ()
    try:
        for field, kind in reader.fields():
            if field == _FILE_ROW_GROUPS and kind == _LIST:
                groups = tuple(_row_group(reader) for _ in reader.structs())
            else:
                reader.skip(kind)
    except IndexError as error:
        raise ValueError("the footer ends too early") from error
    return groups


def codec_name(codec: int) -> str:
    """Returns the name of a compression."""
    return _CODECS[codec] if 0 <= codec < len(_CODECS) else f"number {codec} of an unknown compression"


def _row_group(reader: CompactReader) -> RowGroup:
    num_rows = num_bytes = 0
    columns: tuple[ColumnChunk, ...] = ()
    for field, kind in reader.fields():
        if field == _GROUP_COLUMNS and kind == _LIST:
            columns = tuple(_column_chunk(reader) for _ in reader.structs())
        elif field == _GROUP_TOTAL_BYTE_SIZE and kind == _I64:
            num_bytes = reader.integer()
        elif field == _GROUP_NUM_ROWS and kind == _I64:
            num_rows = reader.integer()
        else:
            reader.skip(kind)
    return RowGroup(num_rows, max(0, num_bytes), columns)


def _column_chunk(reader: CompactReader) -> ColumnChunk:
    chunk = ColumnChunk(0, None)
    for field, kind in reader.fields():
        if field == _COLUMN_META_DATA and kind == _STRUCT:
            chunk = _meta_data(reader)
        else:
            reader.skip(kind)
    return chunk


def _meta_data(reader: CompactReader) -> ColumnChunk:
    found: dict[int, int] = {}
    num_nulls, num_text_bytes, has_dictionary = None, None, False
    for field, kind in reader.fields():
        if field in _META_NUMBERS and kind in _INTEGERS:
            found[field] = reader.integer()
        elif field == _META_ENCODINGS and kind == _LIST:
            has_dictionary = not set(reader.integers()).isdisjoint(_DICTIONARY_ENCODINGS)
        elif field == _META_STATISTICS and kind == _STRUCT:
            num_nulls = _number_in(reader, _STATISTICS_NULL_COUNT)
        elif field == _META_SIZES and kind == _STRUCT:
            num_text_bytes = _number_in(reader, _SIZES_TEXT_BYTES)
        else:
            reader.skip(kind)
    # A dictionary comes first; a place in front of all pages is how some writers say that there is none.
    starts = [found[field] for field in (_META_DICTIONARY_PAGE, _META_DATA_PAGE) if found.get(field, 0) > 0]
    return ColumnChunk(
        max(0, found.get(_META_TOTAL_COMPRESSED_SIZE, 0)),
        num_nulls,
        found.get(_META_CODEC, 0),
        max(0, found.get(_META_TOTAL_UNCOMPRESSED_SIZE, 0)),
        max(0, found.get(_META_NUM_VALUES, 0)),
        min(starts, default=0),
        has_dictionary,
        num_text_bytes,
    )


def _number_in(reader: CompactReader, number: int) -> int | None:
    found = None
    for field, kind in reader.fields():
        if field == number and kind == _I64:
            found = reader.integer()
        else:
            reader.skip(kind)
    return found


class CompactReader:
    """Walks a Thrift struct, byte by byte. Reading past the end raises IndexError, anything unknown ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def position(self) -> int:
        """How many bytes were read."""
        return self._position

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yields number and type of each field of a struct; the caller takes or skips its value."""
        number = 0
        while True:
            header = self._byte()
            if header == 0:
                return
            delta, kind = header >> 4, header & 15
            number = number + delta if delta else self.integer()
            yield number, kind

    def structs(self) -> Iterator[None]:
        """Yields once for each struct of a list; the caller takes it."""
        kind, size = self._list_header()
        if kind != _STRUCT:
            raise ValueError("a list in the footer does not hold structs")
        for _ in range(size):
            yield

    def integers(self) -> Iterator[int]:
        """Yields the integers of a list."""
        kind, size = self._list_header()
        if kind not in _INTEGERS:
            raise ValueError("a list in the footer does not hold integers")
        for _ in range(size):
            yield self.integer()

    def integer(self) -> int:
        """Returns a signed integer."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        """Passes over a value."""
        if depth > _MAX_DEPTH:
            raise ValueError("the footer is nested too deeply")
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            self._move(self._varint())
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            inner, size = self._list_header()
            for _ in range(size):
                self._skip_element(inner, depth)
        elif kind == _MAP:
            size = self._varint()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip_element(kinds >> 4, depth)
                self._skip_element(kinds & 15, depth)
        elif kind not in (_TRUE, _FALSE):
            self._move({_BYTE: 1, _DOUBLE: 8}.get(kind) or self._unknown(kind))

    def _skip_element(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            self._move(1)
        else:
            self.skip(kind, depth + 1)

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        size = header >> 4
        return header & 15, self._varint() if size == 15 else size

    def _varint(self) -> int:
        try:
            return read_varint(iter(self._byte, -1))[0]
        except VarintError as error:
            raise ValueError("a number in the footer is too long") from error

    def _byte(self) -> int:
        byte = self._data[self._position]
        self._position += 1
        return byte

    def _move(self, num_bytes: int) -> None:
        self._position += num_bytes
        if self._position > len(self._data):
            raise IndexError

    def _unknown(self, kind: int) -> int:
        raise ValueError(f"the footer holds a value of unknown type {kind}")
