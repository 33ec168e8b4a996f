"""Nested Arrow values as JSON: lists of objects or of lists, and maps, which are columns of type `json`.

What JSON has no form for is written as the JSON mapping of Protocol Buffers writes it: bytes in base64, NaN and the
infinities as the strings `NaN`, `Infinity` and `-Infinity`; times, dates and decimals are strings as Arrow prints them.
`row_as_json` writes a row for a person who wants to see why it was rejected, or to repair it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.sources.base import MAX_RAW_BYTES

_MAX_ITEMS = MAX_RAW_BYTES // 2  # A digit and a comma each.


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def json_texts(column: pa.Array) -> pa.Array:
    """Returns each value of a column as the bytes of compact JSON, null as null.

    Where a text is not UTF-8, these bytes are not either, so that a later check rejects the row.
    """
    return pa.array(map(_encoded, _values(column)), pa.binary())


def json_texts_of(values: Sequence[Any]) -> pa.Array:
    """Returns the same for values of dicts, lists, bytes, numbers, and texts with surrogate escapes."""
    return pa.array(map(_encoded, map(_plain, values)), pa.binary())


def _encoded(value: Any) -> bytes | None:
    try:
        return None if value is None else msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False, default=str).encode(errors="surrogateescape")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return _number(value) if isinstance(value, float) else value


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else _NOT_FINITE.get(value, "NaN")


def _values(column: pa.Array) -> Sequence[Any]:
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        return _values(column.storage)
    if pa.types.is_dictionary(type_):
        return _values(column.dictionary_decode())
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        parts = [_values(part) for part in column.flatten()]
        rows = zip(*parts, strict=True) if parts else ((),) * len(column)
        found: list[Any] = [dict(zip(names, row, strict=True)) for row in rows]
    elif pa.types.is_map(type_):
        keys, items = _values(_inside(column, column.keys)), _values(_inside(column, column.items))
        found = [_object(keys[a:b], items[a:b]) for a, b in pairwise(_bounds(column))]
    elif pa.types.is_nested(type_) and type_.num_fields == 1:
        items = _values(column.flatten())
        found = [list(items[a:b]) for a, b in pairwise(_bounds(column))]
    else:
        return _scalars(column)
    if not column.null_count:
        return found
    return [value if is_there else None for value, is_there in zip(found, column.is_valid().to_pylist(), strict=True)]


def _bounds(column: pa.Array) -> list[int]:
    # Where the items of each row are among those of rows that are no nulls.
    if pa.types.is_map(column.type):
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.where(is_there, np.diff(column.offsets.to_numpy()), 0)
    else:
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return [0, *np.cumsum(sizes).tolist()]


def _inside(column: pa.Array, part: pa.Array) -> pa.Array:
    # Keys or items of all rows that are no nulls.
    return pa.ListArray.from_arrays(column.offsets, part, mask=column.is_null()).flatten()


def _object(keys: Sequence[Any], items: Sequence[Any]) -> Any:
    # A map may hold a key twice, or keys that are no text.
    if all(isinstance(key, str) for key in keys) and len(set(keys)) == len(keys):
        return dict(zip(keys, items, strict=True))
    return [list(pair) for pair in zip(keys, items, strict=True)]


def _scalars(column: pa.Array) -> Sequence[Any]:
    type_ = column.type
    if pa.types.is_floating(type_):
        return list(map(_number, column.cast(pa.float64()).to_pylist()))
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_null(type_):
        numbers: Sequence[Any] = column.to_pylist()
        return numbers
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    texts = column.cast(pa.string()) if not pa.types.is_string(type_) else column
    return [None if t is None else t.decode(errors="surrogateescape") for t in texts.view(pa.binary()).to_pylist()]


def row_as_json(batch: pa.RecordBatch, row: int) -> bytes:
    """Returns a row as a JSON object, long values cut.

    Bytes, and text that is not UTF-8, stand as `{"base64": ...}`; what JSON has no form for stands as text.
    """
    names = batch.schema.names
    return msgspec.json.encode({name: _value(column[row]) for name, column in zip(names, batch.columns, strict=True)})


def _value(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    type_ = scalar.type
    if isinstance(type_, pa.BaseExtensionType) or pa.types.is_dictionary(type_):
        return _value(scalar.value)
    if hasattr(scalar, "as_buffer"):
        return _bytes_value(scalar)
    if pa.types.is_struct(type_):
        return {field.name: _value(scalar[i]) for i, field in enumerate(type_)}
    if pa.types.is_nested(type_) and isinstance(getattr(scalar, "values", None), pa.Array):
        return list(_first_values(scalar.values.slice(0, _MAX_ITEMS)))
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return scalar.as_py()
    if pa.types.is_floating(type_):
        value = float(scalar.as_py())
        return value if math.isfinite(value) else str(value)
    return _text(scalar)


def _first_values(items: pa.Array) -> Iterator[Any]:
    # Few texts of a dictionary may be many that are long.
    num_bytes = 0
    for item in items:
        value = _value(item)
        num_bytes += len(value) if isinstance(value, str) else 0
        if num_bytes > MAX_RAW_BYTES:
            return
        yield value


def _bytes_value(scalar: Any) -> Any:
    data = memoryview(scalar.as_buffer())[:MAX_RAW_BYTES].tobytes()
    type_ = scalar.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            # Cut in the middle of a character.
            if len(data) == MAX_RAW_BYTES and error.start > len(data) - 4:
                return data[: error.start].decode()
    return {"base64": base64.b64encode(data).decode()}


def _text(scalar: Any) -> str:
    try:
        return str(scalar.cast(pa.string()).as_py())
    except (pa.ArrowException, ValueError, OverflowError):
        return str(scalar)
