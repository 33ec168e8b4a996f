"""Sizes and null counts from a Parquet footer, read without Arrow.

Arrow's accessors for column chunks end the process, by an exception that no caller can catch, where a footer is
damaged or a column encrypted. So the few numbers that planning needs are taken from the footer itself: a Thrift struct
in the compact protocol (https://github.com/apache/parquet-format, file src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

from shardkit.encoding.varints import read_varint

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_BOOLEANS, _INTEGERS = (_TRUE, _FALSE), (_I16, _I32, _I64)
_WIDTHS = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}
_MAX_DEPTH = 32


class Field(NamedTuple):
    """A field of a struct that is read.

    Attributes:
        name: Key of its value.
        kind: Number of its type; a value of another type is passed over, as Arrow does.
        inner: What is read of a struct, or of each struct of a list. None for integers, and for a list of them.
    """

    name: str
    kind: int
    inner: Fields | None = None


Fields = Mapping[int, Field]
"""The fields of a struct by their numbers in parquet.thrift; all others are passed over."""

_CHUNK_FIELDS = {
    2: Field("encodings", _LIST),
    4: Field("codec", _I32),
    5: Field("num_values", _I64),
    6: Field("num_uncompressed_bytes", _I64),
    7: Field("num_bytes", _I64),
    9: Field("data_page", _I64),
    11: Field("dictionary_page", _I64),
    12: Field("statistics", _STRUCT, {3: Field("num_nulls", _I64)}),
    16: Field("sizes", _STRUCT, {1: Field("num_text_bytes", _I64)}),
}
_GROUP_FIELDS = {
    1: Field("columns", _LIST, {3: Field("meta_data", _STRUCT, _CHUNK_FIELDS)}),
    2: Field("num_uncompressed_bytes", _I64),
    3: Field("num_rows", _I64),
}
_FOOTER_FIELDS = {4: Field("row_groups", _LIST, _GROUP_FIELDS)}
_DATA_PAGE = Field("data", _STRUCT, {1: Field("num_values", _I32)})
_PAGE_FIELDS = {2: Field("num_uncompressed_bytes", _I32), 3: Field("num_bytes", _I32), 5: _DATA_PAGE, 8: _DATA_PAGE}
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
        start: Byte at which its first page is.
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


class Page(NamedTuple):
    """What the header of a page says.

    Attributes:
        num_bytes: As stored.
        num_uncompressed_bytes: Its values encoded.
        num_values: 0 for a dictionary.
    """

    num_bytes: int
    num_uncompressed_bytes: int
    num_values: int


class RowGroup(NamedTuple):
    """What a footer says of one row group.

    Attributes:
        columns: In the order of the schema's leaves.
    """

    num_rows: int
    num_uncompressed_bytes: int
    columns: tuple[ColumnChunk, ...]


def parse_row_groups(footer: bytes) -> tuple[RowGroup, ...]:
    """Returns the row groups of a footer. Raises ValueError if the footer is damaged."""
    try:
        found, _ = _read_struct(footer, 0, _FOOTER_FIELDS)
    except IndexError as error:
        raise ValueError("the footer ends too early") from error
    return tuple(_row_group(group) for group in found.get("row_groups", ()))


def parse_page_header(data: bytes) -> tuple[Page, int]:
    """Returns what the header of a page says, and its length.

    Args:
        data: From the start of the page.

    Raises:
        IndexError: If the header is longer.
        ValueError: If it is damaged.
    """
    found, stop = _read_struct(data, 0, _PAGE_FIELDS)
    num_values = found.get("data", {}).get("num_values", 0)
    return Page(found.get("num_bytes", 0), found.get("num_uncompressed_bytes", 0), num_values), stop


def codec_name(codec: int) -> str:
    """Returns the name of a compression."""
    return _CODECS[codec] if 0 <= codec < len(_CODECS) else f"number {codec} of an unknown compression"


def _row_group(group: Mapping[str, Any]) -> RowGroup:
    columns = tuple(_column_chunk(column.get("meta_data", {})) for column in group.get("columns", ()))
    return RowGroup(group.get("num_rows", 0), max(0, group.get("num_uncompressed_bytes", 0)), columns)


def _column_chunk(found: Mapping[str, Any]) -> ColumnChunk:
    # A dictionary comes first; a place in front of all pages is how some writers say that there is none.
    starts = [found[name] for name in ("dictionary_page", "data_page") if found.get(name, 0) > 0]
    return ColumnChunk(
        max(0, found.get("num_bytes", 0)),
        found.get("statistics", {}).get("num_nulls"),
        found.get("codec", 0),
        max(0, found.get("num_uncompressed_bytes", 0)),
        max(0, found.get("num_values", 0)),
        min(starts, default=0),
        not set(found.get("encodings", ())).isdisjoint(_DICTIONARY_ENCODINGS),
        found.get("sizes", {}).get("num_text_bytes"),
    )


def _read_struct(data: bytes, position: int, fields: Fields, depth: int = 0) -> tuple[dict[str, Any], int]:
    # Returns the values by name, and where the struct ends. Reading past the end of the data raises IndexError.
    found: dict[str, Any] = {}
    number = 0
    while header := data[position]:
        kind = header & 15
        number, position = (number + (header >> 4), position + 1) if header >> 4 else _integer(data, position + 1)
        field = fields.get(number)
        if field is not None and field.kind == kind:
            found[field.name], position = _read_value(data, position, kind, field, depth)
        elif kind not in _BOOLEANS:  # The type of such a field is its value.
            _, position = _read_value(data, position, kind, None, depth)
    return found, position + 1


def _read_value(data: bytes, position: int, kind: int, field: Field | None, depth: int) -> tuple[Any, int]:
    # Returns the value, and where it ends. Nothing is kept without a field.
    if depth > _MAX_DEPTH:
        raise ValueError("the footer is nested too deeply")
    if kind in _INTEGERS:
        return _integer(data, position)
    if kind == _STRUCT:
        return _read_struct(data, position, (field and field.inner) or {}, depth + 1)
    if kind in (_LIST, _SET):
        return _read_list(data, position, field, depth + 1)
    if kind == _MAP:
        return None, _end_of_map(data, position, depth + 1)
    if kind != _BINARY and kind not in _WIDTHS:
        raise ValueError(f"the footer holds a value of unknown type {kind}")
    size, position = _varint(data, position) if kind == _BINARY else (_WIDTHS[kind], position)
    if position + size > len(data):
        raise IndexError
    return None, position + size


def _read_list(data: bytes, position: int, field: Field | None, depth: int) -> tuple[list[Any], int]:
    kind, size, position = data[position] & 15, data[position] >> 4, position + 1
    if size == 15:
        size, position = _varint(data, position)
    if field is not None and kind not in (_INTEGERS if field.inner is None else (_STRUCT,)):
        raise ValueError("a list in the footer holds values of another type")
    found = []
    for _ in range(size):
        value, position = _read_value(data, position, kind, field, depth)
        if field is not None:
            found.append(value)
    return found, position


def _end_of_map(data: bytes, position: int, depth: int) -> int:
    size, position = _varint(data, position)
    if size:
        kinds, position = (data[position] >> 4, data[position] & 15), position + 1
        for _ in range(size):
            for kind in kinds:
                _, position = _read_value(data, position, kind, None, depth)
    return position


def _integer(data: bytes, position: int) -> tuple[int, int]:
    value, position = _varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    # Most numbers are of one byte.
    if data[position] < 128:
        return data[position], position + 1
    value, size = read_varint(map(data.__getitem__, count(position)))
    return value, position + size
