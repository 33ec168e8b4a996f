"""Records of Avro blocks as Arrow columns."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from shardkit.sources.avro.columns import NO_STOP, Piece
from shardkit.sources.avro.schema import AvroSchema, Leaf, decimal_text
from shardkit.sources.columns.arrow_json import json_texts_of

_INT32 = np.iinfo(np.int32)
_SCHEMA_ERRORS = (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError, RecursionError)
_RECORD_ERRORS = (EOFError, LookupError, TypeError, ValueError, OverflowError, MemoryError, struct.error)


class RecordReader:
    """Reads the records of one file.

    Args:
        schema: Of the file.

    Raises:
        ValueError: If the schema is none.
    """

    def __init__(self, schema: AvroSchema) -> None:
        try:
            self._record = fastavro.parse_schema(schema.record)
        except _SCHEMA_ERRORS as error:
            raise ValueError(f"its schema is damaged, {error}") from error

    @property
    def record(self) -> Any:
        """The schema, as fastavro has parsed it."""
        return self._record

    def read(self, pieces: Iterable[Piece], stop_bytes: int = NO_STOP) -> tuple[list[Any], Piece | None]:
        """Returns records, and the rest of the piece in which it stopped.

        Args:
            pieces: One after the other.
            stop_bytes: Ends with the row with which so many bytes are reached.

        Raises:
            ValueError: If a record is damaged, or a block does not hold just as many.
        """
        rows: list[Any] = []
        num_bytes = 0
        for piece in pieces:
            stream = io.BytesIO(piece.data)
            stream.seek(piece.start)
            for number in range(1, piece.num_rows + 1):
                rows.append(self._read_one(stream, piece.first_row + number))
                if num_bytes + stream.tell() - piece.start >= stop_bytes:
                    return rows, piece.after(number, stream.tell())
            if stream.tell() != len(piece.data):
                raise ValueError(f"a block has {len(piece.data) - stream.tell()} bytes behind its last row")
            num_bytes += len(piece.data) - piece.start
        return rows, None

    def _read_one(self, stream: io.BytesIO, number: int) -> Any:
        start = stream.tell()
        try:
            try:
                return fastavro.schemaless_reader(stream, self._record, None)
            except UnicodeDecodeError:
                stream.seek(start)
                return fastavro.schemaless_reader(stream, self._record, None, handle_unicode_errors="surrogateescape")
        except _RECORD_ERRORS as error:
            raise ValueError(f"row {number} of a block cannot be decoded, {_describe(error)}") from error


def columns_of(rows: Sequence[Any], leaves: Sequence[Leaf]) -> pa.RecordBatch:
    """Returns some columns of records. Decimals are text, and text may hold bytes that are no UTF-8.

    Raises:
        ValueError: If a number is larger than its type.
    """
    columns = [_column(_values(rows, leaf.path), leaf) for leaf in leaves]
    return pa.RecordBatch.from_arrays(columns, names=[leaf.column.name for leaf in leaves])


def _values(rows: Sequence[Any], path: tuple[str, ...]) -> list[Any]:
    name, *inner = path
    values = [row[name] for row in rows]
    for name in inner:
        values = [None if value is None else value[name] for value in values]
    return values


def _column(values: list[Any], leaf: Leaf) -> pa.Array:
    if not leaf.is_list:
        return _array(values, leaf)
    lengths = [0 if value is None else len(value) for value in values]
    items = _array(list(chain.from_iterable(value for value in values if value is not None)), leaf)
    offsets = pa.array(accumulate(lengths, initial=0), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, mask=pa.array([value is None for value in values], pa.bool_()))


def _array(values: list[Any], leaf: Leaf) -> pa.Array:
    if leaf.kind == "text":
        return _texts(values)
    if leaf.kind == "json":
        return json_texts_of(values)
    if leaf.kind == "decimal":
        return pa.array([None if v is None else decimal_text(v, leaf.item_type.scale) for v in values], pa.string())
    if leaf.kind == "plain":
        return pa.array(values, leaf.item_type)
    numbers = pa.array(values, pa.int64())
    if leaf.item_type.bit_width == 64:
        return numbers.view(leaf.item_type)
    known = numbers.drop_null().to_numpy()
    if len(known) and not _INT32.min <= known.min() <= known.max() <= _INT32.max:
        raise ValueError("an int has more than 32 bits")
    return numbers.cast(pa.int32()).view(leaf.item_type)


def _texts(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        # The bytes as they stand in the file; a later check rejects the rows.
        raw = [None if v is None else v.encode("utf-8", "surrogateescape") for v in values]
        return pa.array(raw, pa.binary()).view(pa.string())


def _describe(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it is cut off"
    if isinstance(error, ValueError) and str(error):
        return str(error)
    return "its bytes do not fit the schema"
