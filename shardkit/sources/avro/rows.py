"""Records of Avro blocks as Arrow columns, read by fastavro."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from shardkit.sources.avro.schema import AvroSchema, Leaf, decimal_text
from shardkit.sources.columns.arrow_json import json_texts_of

_INT32 = np.iinfo(np.int32)
_RECORD_ERRORS = (EOFError, LookupError, TypeError, ValueError, OverflowError, MemoryError, struct.error)


class BatchReader:
    """Reads columns of the records of one file.

    Args:
        leaves: Columns that are wanted, in the order of the schema.

    """

    def __init__(self, schema: AvroSchema, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._record = schema.record

    def batches(self, blocks: Iterable[tuple[bytes, int]], batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yields so many rows at a time as take up about `batch_bytes` in their blocks.

        Args:
            blocks: Content of each, and how many rows it says it has.

        Raises:
            ValueError: If a record is damaged, a block does not hold just as many, or a number is larger than its type.
        """
        rows: list[Any] = []
        num_bytes = 0
        for data, num_rows in blocks:
            if num_rows > len(data):
                raise ValueError(f"a block of {len(data)} bytes says that it has {num_rows} rows")
            stream = io.BytesIO(data)
            done = 0
            for number in range(1, num_rows + 1):
                rows.append(self._read_one(stream, number))
                if num_bytes + stream.tell() - done >= batch_bytes:
                    yield columns_of(rows, self._leaves)
                    rows, num_bytes, done = [], 0, stream.tell()
            if stream.tell() != len(data):
                raise ValueError(f"a block has {len(data) - stream.tell()} bytes behind its last row")
            num_bytes += len(data) - done
        if rows:
            yield columns_of(rows, self._leaves)

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
        # The bytes as they are in the file; a later check rejects the rows.
        raw = [None if v is None else v.encode("utf-8", "surrogateescape") for v in values]
        return pa.array(raw, pa.binary()).view(pa.string())


def _describe(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it is cut off"
    if isinstance(error, ValueError) and str(error):
        return str(error)
    return "its bytes do not fit the schema"
