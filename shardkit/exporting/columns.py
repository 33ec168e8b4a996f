"""Columns of Arrow as texts and as values of JSON, which stand for exactly the stored values."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import UsageError
from shardkit.features import Feature

JSON_NOTES = (
    "bytes are base64; decimals, dates, times, NaN and infinity are text, durations counts of their unit; the names of "
    "classes are in export.json"
)
_NOT_A_DAY = "<value out of range"


def nested_type(type_: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Returns lists, of any length, as deep as those of a type, but of other values."""
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(nested_type(type_.value_type, value))
    return value


def as_text(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns dates, times and decimals as text, durations as counts of their unit, and others as they are.

    A timestamp with a time zone becomes its UTC time.

    Raises:
        UsageError: If a date or a time is in a year that has no text.
    """
    type_ = feature.value_type
    if pa.types.is_duration(type_):
        return column.cast(nested_type(column.type, pa.int64()))
    if pa.types.is_float16(type_):
        return column.cast(nested_type(column.type, pa.float32()))
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        column = column.cast(nested_type(column.type, pa.timestamp(type_.unit, "UTC")))
    if not (pa.types.is_temporal(type_) or pa.types.is_decimal(type_)):
        return column
    found = column.cast(nested_type(column.type, pa.string()))
    if pc.any(pc.starts_with(flat_values(found), _NOT_A_DAY)).as_py():
        raise UsageError(
            f"the column {feature.name!r} holds a time that has no text",
            why="its year has more digits than dates are written with",
            next_step="Leave it out with --columns, or export to parquet or arrow",
        )
    return found


def json_values(column: pa.Array, feature: Feature) -> list[Any]:
    """Returns the values of a column as JSON can hold them; `json` becomes what its text says.

    Raises:
        UsageError: If a value is no JSON, or a time that has no text.
    """
    values: list[Any] = as_text(column, feature).to_pylist()
    if feature.is_json:
        return [_map(value, lambda text: _raw(text, feature)) for value in values]
    if feature.dtype == "bytes":
        return [_map(value, lambda data: base64.b64encode(data).decode()) for value in values]
    if pa.types.is_floating(feature.value_type):
        numbers = flat_values(column)
        if not pc.all(pc.is_finite(numbers)).as_py() and len(numbers) > numbers.null_count:
            return [_map(value, lambda number: number if math.isfinite(number) else str(number)) for value in values]
    return values


def is_numeric(feature: Feature) -> bool:
    """Whether values are numbers or truth values, which NumPy has types for."""
    type_ = feature.value_type
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))


def flat_values(column: pa.Array) -> pa.Array:
    """Returns the values of all lists, without nulls in place of lists."""
    return pc.list_flatten(column, recursive=True) if pa.types.is_nested(column.type) else column


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_map(v, function) for v in value]
    return None if value is None else function(value)


def _raw(text: str, feature: Feature) -> msgspec.Raw:
    try:
        msgspec.json.decode(text)
    except DECODE_ERRORS as error:
        raise UsageError(
            f"a value of the column {feature.name!r} is no JSON",
            why=str(error),
            next_step="Leave it out with --columns, or export to parquet or arrow",
        ) from error
    # Outside of strings these are blanks, and within strings they are escaped.
    return msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())
