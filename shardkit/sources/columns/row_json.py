"""A row of a batch as JSON, for a person who wants to see why it was rejected, or to repair it."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from shardkit.sources.base import MAX_RAW_BYTES

_MAX_ITEMS = MAX_RAW_BYTES // 2  # A digit and a comma each.


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
