"""NumPy arrays as columns: the feature of an array, and its rows as Arrow has them, bit for bit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, make_feature
from shardkit.messages import printable, shown
from shardkit.sources.columns.casting import BadValueError

Array = npt.NDArray[Any]

_NUMBERS = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
)
# Units of time that Arrow has, and how many seconds the others take.
_UNITS = frozenset({"s", "ms", "us", "ns"})
_SECONDS = {"m": 60, "h": 3600, "D": 86_400, "W": 604_800}
_NOT_A_TIME = np.iinfo(np.int64).min
_NAMED_DIFFERENCES = 10
_MAX_CODE_POINT, _SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)


class ArrayColumn(NamedTuple):
    """A column that an array holds.

    Attributes:
        dtype: Of its values, in the byte order of the file.
        shape: Of one row.
        path: Names of the fields that lead to it in a structured array.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    path: tuple[str, ...] = ()

    def describe(self) -> str:
        """Returns the type of a row as a person reads it, whatever the byte order."""
        return f"{self.dtype.newbyteorder('=')}{list(self.shape) if self.shape else ''}"


def columns_of(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], where: str, *, names_fields: bool = False
) -> tuple[ArrayColumn, ...]:
    """Returns the columns of an array: one, or one a field of a structured dtype.

    Args:
        shape: Of one row.
        names_fields: Whether the names of fields begin with that of the column, as those of inner fields do.

    Raises:
        UsageError: If values have no place in an example.
    """
    prefix = f"{name}/" if names_fields and dtype.fields is not None else ""
    found = tuple(_columns(prefix, name, dtype, shape, ()))
    names = [c.name for c in found]
    for column in found:
        _check(column, where)
        if names.count(column.name) > 1:
            raise UsageError(
                f"column {shown(column.name)} appears {names.count(column.name)} times",
                where=where,
                next_step="Give each field another name when it is saved",
            )
    return found


def check_same_columns(
    first: tuple[ArrayColumn, ...], first_name: str, other: tuple[ArrayColumn, ...], other_name: str
) -> None:
    """Checks that two files have the same columns, in whatever order and byte order.

    Raises:
        UsageError: If not; names each difference.
    """
    types, others = {c.name: c.describe() for c in first}, {c.name: c.describe() for c in other}
    here, there = printable(first_name), printable(other_name)
    differences = [
        f"{shown(name)} is {type_} in {here} and {others[name]} in {there}"
        for name, type_ in types.items()
        if name in others and others[name] != type_
    ]
    differences += [f"{shown(name)} is only in {here}" for name in types if name not in others]
    differences += [f"{shown(name)} is only in {there}" for name in others if name not in types]
    if differences:
        more = len(differences) - _NAMED_DIFFERENCES
        raise UsageError(
            f"{here} and {there} have different columns",
            why="; ".join(differences[:_NAMED_DIFFERENCES]) + (f"; and {more} more" if more > 0 else ""),
            next_step="Save arrays that belong together in one file for each split, as numpy.savez('train.npz', x=..., "
            "y=...) does; or convert the files one by one, which takes such arrays apart",
        )


def field_of(values: Array, column: ArrayColumn) -> Array:
    """Returns the values of a column in some rows of its array."""
    for name in column.path:
        values = values[name]
    return values


def feature_of(column: ArrayColumn) -> Feature:
    """Returns the feature that holds a column exactly. Dates and times may be null, as NumPy's are."""
    dtype = column.dtype
    if dtype.kind in "mM":
        unit, _ = np.datetime_data(dtype)
        arrow_unit = unit if unit in _UNITS else "s"
        name = "date" if dtype.kind == "M" and unit == "D" else "timestamp" if dtype.kind == "M" else "duration"
        full = name if name == "date" else f"{name}[{arrow_unit}]"
        return make_feature(column.name, full, column.shape, nullable=not column.shape)
    if dtype.kind in "US":
        return make_feature(column.name, "string" if dtype.kind == "U" else "bytes", column.shape)
    return make_feature(column.name, dtype.newbyteorder("=").name, column.shape)


def to_arrow(values: Array, column: ArrayColumn) -> pa.Array:
    """Returns some rows of a column.

    Args:
        values: Of the shape `(rows, *column.shape)`, of the column's dtype.

    Raises:
        BadValueError: If a value is none of Unicode or of Arrow's times.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if not flat.dtype.isnative:
        flat = flat.astype(flat.dtype.newbyteorder("="))
    num_values = int(np.prod(column.shape, dtype=np.int64))
    if flat.dtype.kind == "U":
        found = _texts(flat, column, num_values)
    elif flat.dtype.kind == "S":
        found = _bytes(flat)
    elif flat.dtype.kind in "mM":
        found = _times(flat, column, num_values)
    else:
        found = pa.array(flat.view(np.uint8) != 0 if flat.dtype.kind == "b" else flat)
    return pa.FixedSizeListArray.from_arrays(found, num_values) if column.shape else found


def _columns(
    prefix: str, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], path: tuple[str, ...]
) -> list[ArrayColumn]:
    if dtype.subdtype is not None:
        base, inner = dtype.subdtype
        return _columns(prefix, name, base, (*shape, *inner), path)
    if dtype.fields is None or dtype.names is None:
        return [ArrayColumn(f"{prefix}{name}", dtype, shape, path)]
    prefix = f"{prefix}{name}/" if path else prefix
    found: list[ArrayColumn] = []
    for field in dtype.names:
        found += _columns(prefix, field, dtype.fields[field][0], shape, (*path, field))
    return found


def _check(column: ArrayColumn, where: str) -> None:
    dtype, name = column.dtype, shown(column.name)
    if dtype.hasobject:
        raise UsageError(
            f"column {name} holds Python objects",
            where=where,
            why="they are pickled, and reading a pickle runs whatever code it holds",
            next_step="Save it with a plain dtype, such as astype(str) or astype('float32')",
        )
    known = dtype.kind in "US" or dtype.newbyteorder("=").name in _NUMBERS
    if dtype.kind in "mM":
        unit, count = np.datetime_data(dtype)
        known = count == 1 and (unit in _UNITS or unit in _SECONDS)
    if not known:
        raise UsageError(
            f"column {name} has the dtype {dtype}",
            where=where,
            why="which a tf.train.Example cannot hold exactly",
            next_step="Save it as numbers of up to 64 bits, texts, or times in days, hours, min, s, ms, us or ns",
        )
    if not dtype.itemsize or any(size < 1 for size in column.shape):
        raise UsageError(
            f"column {name} has no values",
            where=where,
            why=f"a row of it is {dtype}{list(column.shape)}",
            next_step="Save the array without dimensions of no length, or leave it out with --exclude GLOB",
        )
    if column.name == "" or "\0" in column.name:
        raise UsageError(
            f"{column.name!r} cannot name a column", where=where, next_step="Give the field a name when it is saved"
        )
    feature_of(column)


def _bytes(flat: Array) -> pa.Array:
    # As in NumPy, zeros at the end fill the field, and zeros inside are values.
    table = flat.view(np.uint8).reshape(len(flat), flat.dtype.itemsize)
    inside, offsets = _without_padding(table)
    return _binary(table[inside], offsets)


def _texts(flat: Array, column: ArrayColumn, num_values: int) -> pa.Array:
    table = flat.view(np.uint32).reshape(len(flat), flat.dtype.itemsize // 4)
    wrong = (table > _MAX_CODE_POINT) | ((table >= _SURROGATES[0]) & (table <= _SURROGATES[1]))
    if wrong.any():
        row = int(np.argmax(wrong.any(axis=1)))
        code = int(table[row][wrong[row]][0])
        raise BadValueError(column.name, row // num_values, "text", f"the code {code:#x}, which is no character")
    inside, offsets = _without_padding(table)
    codes = table[inside]
    if not len(codes) or codes.max() < 0x80:
        return _binary(codes.astype(np.uint8), offsets).view(pa.string())
    widths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(widths)])
    encoded = np.frombuffer(codes.astype("<u4").tobytes().decode("utf-32-le").encode(), dtype=np.uint8)
    return _binary(encoded, ends[offsets]).view(pa.string())


def _without_padding(table: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    width = table.shape[1]
    filled = table != 0
    lengths = np.where(filled.any(axis=1), width - np.argmax(filled[:, ::-1], axis=1), 0)
    inside: npt.NDArray[np.bool_] = np.arange(width) < lengths[:, None]
    return inside, np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def _binary(values: Array, offsets: npt.NDArray[np.int64]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _times(flat: Array, column: ArrayColumn, num_values: int) -> pa.Array:
    type_ = feature_of(column).value_type
    counts = flat.view(np.int64)
    missing = counts == _NOT_A_TIME
    unit, _ = np.datetime_data(flat.dtype)
    if pa.types.is_date(type_):
        limit, factor = np.iinfo(np.int32).max, 1
    else:
        factor = _SECONDS.get(unit, 1)
        limit = np.iinfo(np.int64).max // factor
    outside = ~missing & ((counts > limit) | (counts < -limit))
    if outside.any():
        row = int(np.argmax(outside))
        raise BadValueError(column.name, row // num_values, str(type_), f"{counts[row]} {unit}, which is out of range")
    values = np.where(missing, 0, counts) * factor
    if pa.types.is_date(type_):
        return pa.array(values.astype(np.int32), pa.int32(), mask=missing).view(type_)
    return pa.array(values, pa.int64(), mask=missing).view(type_)
