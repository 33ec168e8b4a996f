"""Columns made to fit their features exactly, or the first row that does not."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import UsageError
from shardkit.features import Feature
from shardkit.messages import shown
from shardkit.sources.columns.arrow_json import json_texts
from shardkit.sources.columns.halving import first_bad_row

_FLOAT_DIGITS = {"float16": 3, "float32": 6}
_NUMPY_FLOATS: dict[str, type[np.float16] | type[np.float32]] = {"float16": np.float16, "float32": np.float32}
_TINY = {"float16": float(np.finfo(np.float16).tiny), "float32": float(np.finfo(np.float32).tiny)}
_GREATEST = {"float16": float(np.finfo(np.float16).max), "float32": float(np.finfo(np.float32).max)}
_LARGE = 1e15  # Also false of NaN.
_DAY_SECONDS = 86_400
_EXACT_POWER = 22  # The last power of ten that float64 holds.


class BadValueError(Exception):
    """A value that does not fit its feature; the source turns it into an error that names file and row.

    Args:
        row: 0-based position in the batch.
    """

    def __init__(self, column: str, row: int, expected: str, got: str) -> None:
        super().__init__(column, row)
        self.column = column
        self.row = row
        self.expected = expected
        self.got = got


class CastColumn(NamedTuple):
    """A column of the feature's `arrow_type`, and how many of its values a narrower float could not hold."""

    column: pa.Array
    num_rounded: int = 0


def cast_column(column: pa.Array, feature: Feature) -> CastColumn:
    """Returns a column as its feature has it: decoded, cast without loss, of the right shape.

    Floats may be narrowed where the schema asks for it; the rounded values are counted. Text becomes numbers and
    times as in CSV, and indices where the feature has a vocabulary.

    Raises:
        BadValueError: At the first row that does not fit.
        UsageError: If no value of the column's type could fit.
    """
    column = _plain(column)
    if not feature.nullable and column.null_count:
        raise BadValueError(feature.name, _first(column.is_null()), feature.describe_type(), "null")
    if not feature.is_scalar:
        return _cast_lists(column, feature)
    return _cast_values(column, feature)


def _plain(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _cast_values(values: pa.Array, feature: Feature) -> CastColumn:
    if feature.vocabulary is not None:
        return CastColumn(_to_indices(values, feature))
    if feature.is_json:
        return CastColumn(_to_json(values, feature))
    wanted = feature.value_type
    if values.type.equals(wanted):
        if pa.types.is_string(wanted):
            _check_utf8(values, feature)
        return CastColumn(values)
    if feature.dtype in _FLOAT_DIGITS and (pa.types.is_floating(values.type) or _is_text(values.type)):
        if not pa.types.is_float64(values.type):
            values = _cast(values, pa.float64(), feature)
        return _narrow(values, feature)
    _refuse_wrapping(values, feature)
    if pa.types.is_boolean(wanted) and pa.types.is_integer(values.type):
        _refuse(pc.invert(pc.is_in(values, value_set=pa.array([0, 1], values.type))), values, feature)
    if pa.types.is_string(wanted) and not pa.types.is_primitive(values.type):
        texts = values.cast(pa.binary()).view(pa.string()) if _is_bytes(values.type) else _cast(values, wanted, feature)
        _check_utf8(texts, feature)
        return CastColumn(texts)
    return CastColumn(_cast(values, wanted, feature))


def _to_json(values: pa.Array, feature: Feature) -> pa.Array:
    # Compact, keys in their order, characters as they are.
    if not _is_text(values.type) and not _is_bytes(values.type):
        values = json_texts(values)
    texts: list[str | None] = []
    for row, text in enumerate(values.to_pylist()):
        try:
            value = None if text is None else msgspec.json.decode(text)
        except DECODE_ERRORS as error:
            raise BadValueError(feature.name, row, "JSON", f"{shown(text)} ({error})") from error
        if value is None and not feature.nullable:
            raise BadValueError(feature.name, row, "json", "null")
        texts.append(None if value is None else msgspec.json.encode(value).decode())
    return pa.array(texts, pa.string())


def _refuse_wrapping(values: pa.Array, feature: Feature) -> None:
    # Arrow checks all casts without loss but these two.
    type_, wanted = values.type, feature.value_type
    if pa.types.is_date32(wanted) and pa.types.is_timestamp(type_):
        seconds = pc.cast(values, pa.timestamp("s", type_.tz), safe=False).view(pa.int64())
        least, most = -(2**31) * _DAY_SECONDS, 2**31 * _DAY_SECONDS - 1
    elif pa.types.is_time32(wanted) and type_ == pa.time32("s"):
        seconds, least, most = values.view(pa.int32()), 0, _DAY_SECONDS
    else:
        return
    _refuse(pc.or_(pc.less(seconds, least), pc.greater(seconds, most)), values, feature)


def _cast_lists(column: pa.Array, feature: Feature) -> CastColumn:
    type_ = column.type
    if pa.types.is_null(type_):
        return CastColumn(pa.nulls(len(column), feature.arrow_type))
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    if not is_list and not pa.types.is_list_view(type_) and not pa.types.is_large_list_view(type_):
        raise UsageError(
            f"column {feature.name!r} holds single values",
            why=f"the schema asks for {feature.describe_type()}, the source has {type_}",
            next_step='Declare it without a "shape"',
        )
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    size = feature.num_values
    if size is not None:
        wrong = pc.and_(column.is_valid(), pc.not_equal(lengths, size))
        if pc.any(wrong).as_py():
            row = _first(wrong)
            raise BadValueError(feature.name, row, feature.describe_type(), f"{lengths[row].as_py()} values")
    values = _plain(column.flatten())
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int64)
    try:
        if values.null_count:
            raise BadValueError(feature.name, _first(values.is_null()), "no null inside a list", "null")
        cast = _cast_values(values, feature)
    except BadValueError as error:
        row = int(np.searchsorted(offsets, error.row, side="right")) - 1
        raise BadValueError(error.column, row, error.expected, error.got) from error
    if size is not None:
        return CastColumn(_fixed_lists(column, cast.column, size, feature.arrow_type), cast.num_rounded)
    mask = column.is_null() if column.null_count else None
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), cast.column, type=feature.arrow_type, mask=mask)
    return CastColumn(lists, cast.num_rounded)


def _fixed_lists(column: pa.Array, values: pa.Array, size: int, type_: pa.DataType) -> pa.Array:
    if not column.null_count:
        return pa.FixedSizeListArray.from_arrays(values, type=type_)
    # A null takes up room in a fixed-size list: its values are filled in with nulls.
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    positions = np.full((len(column), size), -1, dtype=np.int64)
    positions[valid] = np.arange(len(values), dtype=np.int64).reshape(-1, size)
    flat = positions.reshape(-1)
    spread = values.take(pa.array(flat, pa.int64(), mask=flat < 0))
    return pa.FixedSizeListArray.from_arrays(spread, type=type_, mask=column.is_null())


def _to_indices(values: pa.Array, feature: Feature) -> pa.Array:
    names = feature.vocabulary or ()
    if not _is_text(values.type):
        indices = _cast(values, pa.int64(), feature)
        outside = pc.or_(pc.less(indices, 0), pc.greater_equal(indices, len(names)))
        _refuse(outside, values, feature, f"an index below {len(names)}")
        return indices.cast(feature.value_type)
    values = values.cast(pa.string())
    indices = pc.index_in(values, value_set=pa.array(names, pa.string()))
    unknown = pc.and_(indices.is_null(), values.is_valid())
    if pc.any(unknown).as_py():
        # A column of numbers is text in CSV: its values are the indices, unless the names are numbers themselves.
        if not any(name.strip().lstrip("-").isdigit() for name in names):
            try:
                return _to_indices(_cast(values, pa.int64(), feature), feature)
            except BadValueError:
                pass
        _refuse(unknown, values, feature, f"one of {', '.join(map(repr, names[:10]))}")
    return indices.cast(feature.value_type)


def _cast(values: pa.Array, type_: pa.DataType, feature: Feature) -> pa.Array:
    if _is_text(values.type) and not (_is_text(type_) or _is_bytes(type_)):
        values = pc.utf8_trim_whitespace(values)
    try:
        return values.cast(type_)
    except pa.ArrowNotImplementedError as error:
        raise UsageError(
            f"column {feature.name!r} cannot become {feature.describe_type()}",
            why=f"the source has {values.type}",
            next_step="Declare another type in the --schema file, or change it with --cast COLUMN=TYPE",
        ) from error
    except pa.ArrowInvalid as error:
        row = first_bad_row(lambda start, stop: _can_cast(values.slice(start, stop - start), type_), len(values))
        raise BadValueError(feature.name, row, feature.describe_type(), shown(_as_python(values[row]))) from error


def _can_cast(values: pa.Array, type_: pa.DataType) -> bool:
    try:
        values.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True


def _narrow(wide: pa.Array, feature: Feature) -> CastColumn:
    values = wide.to_numpy(zero_copy_only=False)
    type_ = _NUMPY_FLOATS[feature.dtype]
    if not wide.null_count:
        largest = _largest(values)
        if largest <= _GREATEST[feature.dtype]:
            is_decimal = _have_few_decimals(values, largest, feature.dtype)
            narrow = pa.array(values.astype(type_), feature.value_type)
            return CastColumn(narrow, 0 if is_decimal else count_rounded(values, feature.dtype))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = values.astype(type_)
    overflow = np.isinf(narrow) & np.isfinite(values)
    mask = wide.is_null().to_numpy(zero_copy_only=False) if wide.null_count else None
    if mask is not None:
        overflow &= ~mask
    if overflow.any():
        row = int(np.argmax(overflow))
        raise BadValueError(feature.name, row, feature.describe_type(), repr(float(values[row])))
    num_rounded = count_rounded(values if mask is None else values[~mask], feature.dtype)
    return CastColumn(pa.array(narrow, feature.value_type, mask=mask), num_rounded)


def count_rounded(values: npt.NDArray[np.float64], dtype: str) -> int:
    """Returns how many values a narrower float does not hold: neither exactly, nor as a decimal of few digits.

    Args:
        values: What the source holds; NaN and infinities are held by every float.
        dtype: `float32`, which holds all decimals of 6 significant digits, or `float16`, which holds those of 3.
    """
    type_ = _NUMPY_FLOATS[dtype]
    digits = _FLOAT_DIGITS[dtype]
    if _have_few_decimals(values, _largest(values), dtype):
        return 0
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        narrow = values.astype(type_)
        changed = narrow != values
        # First with a power of ten that is right or one too small, which settles most decimals.
        scaled = np.abs(values)
        scaled *= _quick_scales(digits)[(values.view(np.int64) >> 52) & 0x7FF]
        is_tiny = (np.abs(narrow) < _TINY[dtype]) & changed
        scaled = scaled[changed & ~is_tiny & ~_are_integers(scaled) & np.isfinite(values)]
        is_small = scaled < 10.0 ** (digits - 1)
        num_others = len(scaled) - int(np.count_nonzero(is_small))
        num_small = int(np.count_nonzero(~_are_integers(scaled[is_small] * 10.0)))
    return int(np.count_nonzero(is_tiny)) + num_others + num_small


def _largest(values: npt.NDArray[np.float64]) -> float:
    # The largest size; NaN beside a NaN.
    return max(-float(np.minimum.reduce(values)), float(np.maximum.reduce(values))) if len(values) else 0.0


def _have_few_decimals(values: npt.NDArray[np.float64], largest: float, dtype: str) -> bool:
    # Whether one power of ten makes integers of few digits of all values, which is common and quickly seen: a decimal
    # is the quotient of two integers that float64 holds, rounded once.
    if largest == 0.0:
        return True
    if not _TINY[dtype] <= largest < _LARGE:
        return False
    power = _FLOAT_DIGITS[dtype] - math.ceil(math.log10(largest))
    if power > _EXACT_POWER or 10.0**-power < _TINY[dtype]:
        return False
    scale = 10.0 ** abs(power)
    multiply, undo = (np.multiply, np.divide) if power >= 0 else (np.divide, np.multiply)
    integers = multiply(values, scale)
    np.rint(integers, out=integers)
    undo(integers, scale, out=integers)
    return bool((integers == values).all())


def _are_integers(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    # Scaling decimals leaves an error in the 16th digit.
    nearest = np.rint(values)
    return np.abs(values - nearest) <= 1e-12 * np.abs(nearest)


@functools.cache
def _quick_scales(digits: int) -> npt.NDArray[np.float64]:
    # By the biased exponent: scales the largest number of that binade to no more than that many digits.
    exponents = np.arange(2048) - 1022
    powers = digits - np.ceil(exponents * math.log10(2))
    scales: npt.NDArray[np.float64] = np.power(10.0, np.clip(powers, -300, 300))
    return scales


def _check_utf8(values: pa.Array, feature: Feature) -> None:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(values.cast(pa.binary()).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                got = f"{shown(value)}, which is not UTF-8 at byte {error.start}"
                raise BadValueError(feature.name, row, feature.describe_type(), got) from error
        raise


def _refuse(wrong: pa.Array, values: pa.Array, feature: Feature, expected: str | None = None) -> None:
    wrong = pc.fill_null(wrong, False)
    if pc.any(wrong).as_py():
        row = _first(wrong)
        got = shown(_as_python(values[row]))
        raise BadValueError(feature.name, row, expected or feature.describe_type(), got)


def _first(flags: pa.Array) -> int:
    return int(pc.index(flags, True).as_py())


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(type_) for test in tests)


def _as_python(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        # Times that Python's own do not hold; `str` would ask those, too.
        text = str(scalar.cast(pa.string()))
        return f"{scalar.value} as {scalar.type}" if text.startswith("<") else text
