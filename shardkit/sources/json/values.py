"""Values of JSON on their way to Arrow: the Python types that they are decoded to, and the columns made of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from shardkit.features import Feature
from shardkit.messages import shown
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.json.keys import NotFinite, as_words
from shardkit.sources.json.value_modes import Mode

ABSENT = msgspec.Raw(b"null")


def python_type(feature: Feature, mode: Mode, takes_not_finite: bool) -> tuple[Any, Any]:
    """Returns the type that a feature's values are decoded to, and the value of an absent key.

    Args:
        takes_not_finite: Whether the text is `spelled_out`.
    """
    if feature.is_json or len(feature.shape) > 1:
        return msgspec.Raw, ABSENT
    if mode == "written":
        return (msgspec.Raw, ABSENT) if feature.is_scalar else (list[msgspec.Raw] | None, None)
    if mode == "string" or feature.dtype in ("string", "bytes"):
        value: Any = str
    elif feature.dtype == "bool":
        value = bool
    elif feature.dtype.startswith("float"):
        value = int | float | NotFinite if takes_not_finite else int | float
    else:
        value = int
    return (value | None, None) if feature.is_scalar else (list[value | None] | None, None)


def to_arrow(values: Sequence[Any], feature: Feature, mode: Mode) -> pa.Array:
    """Returns decoded values as a column that can be cast to the feature.

    Raises:
        BadValueError: If a value is of another kind than the others.
        pa.ArrowInvalid, pa.ArrowTypeError, OverflowError: If a value has no place in the column.
    """
    if feature.is_json:
        return pa.array((as_words(bytes(value)) for value in values), pa.binary())
    if len(feature.shape) > 1:
        values = [_flattened(bytes(value), feature, row) for row, value in enumerate(values)]
    elif mode == "written":
        values = [_written(v, feature, row) for row, v in enumerate(values)]
    type_: pa.DataType = pa.string()
    if mode == "native" and feature.dtype not in ("string", "bytes"):
        type_ = pa.int64()
        if feature.dtype == "bool":
            type_ = pa.bool_()
        elif feature.dtype.startswith("float"):
            type_ = pa.float64()
        elif feature.dtype == "uint64":
            type_ = pa.uint64()
    type_ = type_ if feature.is_scalar else pa.list_(type_)
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if not feature.dtype.startswith("float"):
            raise
        return pa.array(list(map(_as_floats, values)), type_)


def _flattened(text: bytes, feature: Feature, row: int) -> list[Any] | None:
    # The values of nested lists of the feature's shape, in row-major order.
    value = msgspec.json.decode(text)
    if value is None:
        return None
    if not isinstance(value, list) or feature.shape[0] not in (None, len(value)):
        raise BadValueError(feature.name, row, feature.describe_type(), "lists of other lengths")
    for size in feature.shape[1:]:
        if any(not isinstance(item, list) or size not in (None, len(item)) for item in value):
            raise BadValueError(feature.name, row, feature.describe_type(), "lists of other lengths")
        value = [inner for item in value for inner in item]
    return [_number(item, feature, row) for item in value]


def _number(item: Any, feature: Feature, row: int) -> Any:
    # Arrow would cut decimals in lists to integers.
    is_float = feature.dtype.startswith("float")
    if is_float and isinstance(item, dict):
        return msgspec.convert(item, NotFinite).as_float()
    kinds = (bool,) if feature.dtype == "bool" else (int, float) if is_float else (int,)
    if feature.dtype not in ("string", "bytes") and type(item) not in kinds:
        raise BadValueError(feature.name, row, feature.describe_type(), shown(str(item)))
    return item


def _as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_as_floats, value))
    return value.as_float() if isinstance(value, NotFinite) else value


def _written(value: Any, feature: Feature, row: int) -> Any:
    if value is None or isinstance(value, list):
        return None if value is None else [_written(v, feature, row) for v in value]
    text = as_words(bytes(value))
    if text[:1] in (b'"', b"{", b"["):
        raise BadValueError(feature.name, row, "a number, as before", shown(text.decode("utf-8", "replace")))
    return None if text == b"null" else text.decode()
