"""Values of a Python program as a column of Arrow that loses nothing of them."""

from __future__ import annotations

import datetime
import io
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.messages import shown

_FAULTS = (pa.ArrowException, OverflowError, TypeError, ValueError)
_PNG_MODES = frozenset({"1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"})


def plain(value: Any) -> Any:
    """Returns a value as Arrow takes it: tensors are arrays, images of Pillow are PNG.

    Raises:
        UsageError: If an image has pixels that PNG does not hold.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
        try:
            value = value.numpy()
        except TypeError as error:
            raise UsageError(
                "NumPy does not hold the values of a tensor",
                why=str(error),
                next_step="Convert it, as by tensor.float()",
            ) from error
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value[()]
    if hasattr(value, "save") and hasattr(value, "getbands"):
        if value.mode not in _PNG_MODES:
            raise UsageError(
                f"PNG does not hold images of mode {value.mode}",
                next_step="Convert them, as by image.convert('RGB'), or give their encoded bytes",
            )
        encoded = io.BytesIO()
        value.save(encoded, "PNG")
        return encoded.getvalue()
    return value


def size_of(value: Any) -> int:
    """Returns about how many bytes a value has."""
    if isinstance(value, bytes | str | bytearray):
        return len(value)
    return 8 * len(value) if isinstance(value, list) else int(getattr(value, "nbytes", 8))


def column_of(name: str, values: Any, type_: pa.DataType | None = None) -> pa.Array:
    """Returns the values of a column, a list or an array, as one of Arrow.

    Args:
        type_: Which it gets; None takes that of the values. Arrays of one shape keep it.

    Raises:
        UsageError: If the values go together in no type, or not in this one.
    """
    try:
        if isinstance(values, list | tuple | range):
            found = [plain(value) for value in values]
            arrays = [value for value in found if isinstance(value, np.ndarray)]
            others = any(value is not None and not isinstance(value, np.ndarray) for value in found)
            if arrays and not others and type_ is None and len({(a.shape, a.dtype) for a in arrays}) == 1:
                return _stacked(found, arrays[0])
            return _typed(_of_one_kind(found), type_)
        if not isinstance(values, np.ndarray) or values.ndim < 2:
            return pa.array(values, type_)
        return pa.array(list(values), type_) if type_ is not None else _nested(values, None)
    except _FAULTS as error:
        raise UsageError(
            f"the values of column {shown(name)} have no common type" + ("" if type_ is None else f", as {type_}"),
            why=str(error).partition("\n")[0],
            next_step="Give values of one kind, or leave the column out",
        ) from error


def _typed(values: Any, type_: pa.DataType | None) -> pa.Array:
    """Returns values as an array of a type, which holds them without a loss."""
    if type_ is not None and pa.types.is_fixed_size_list(type_) and type_.list_size:
        # A type has no further levels: the shape is that of the feature.
        values = [_flat(value) for value in values]
    if type_ is None or not pa.types.is_integer(_innermost(type_)):
        return pa.array(values, type_)
    found = pa.array(values)
    # pyarrow itself makes 3 of 3.7.
    return found.cast(type_) if pa.types.is_floating(_innermost(found.type)) else pa.array(values, type_)


def _flat(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.reshape(-1)
    lists = (list, tuple, np.ndarray)
    while isinstance(value, lists) and len(value) and isinstance(value[0], lists):
        value = [item for part in value for item in part]
    return value


def _innermost(type_: pa.DataType) -> pa.DataType:
    while pa.types.is_fixed_size_list(type_) or pa.types.is_list(type_):
        type_ = type_.value_type
    return type_


def _stacked(values: list[Any], like: Any) -> pa.Array:
    missing = np.array([value is None for value in values])
    blank = np.zeros_like(like)
    return _nested(np.stack([blank if value is None else value for value in values]), missing)


def _nested(values: Any, missing: Any) -> pa.Array:
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for level in range(values.ndim - 1, 0, -1):
        mask = pa.array(missing) if level == 1 and missing is not None and missing.any() else None
        array = pa.FixedSizeListArray.from_arrays(array, values.shape[level], mask=mask)
    return array


def _of_one_kind(values: list[Any]) -> Any:
    """Returns values as `pyarrow.array` takes them without losing a part of one.

    Raises:
        TypeError: If times with a zone are among others without.
    """
    kinds = set(map(type, values)) - {type(None)}
    if all(issubclass(kind, np.generic) for kind in kinds) and len(kinds) == 1 and None not in values:
        return np.array(values)
    if any(issubclass(kind, np.datetime64 | np.timedelta64) for kind in kinds):
        raise TypeError("dates of NumPy are beside other values")
    times = [value for value in values if isinstance(value, datetime.datetime)]
    if times and len({time.tzinfo is None for time in times}) > 1:
        raise TypeError("some times have a time zone, and others none")
    if times and len(times) < len(values) and any(kind is datetime.date for kind in kinds):
        zone = times[0].tzinfo
        return [datetime.datetime.combine(v, datetime.time(), zone) if type(v) is datetime.date else v for v in values]
    if kinds == {int} and max(v for v in values if v is not None) >= 2**63:
        return pa.array(values, pa.uint64())
    return [value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value for value in values]
