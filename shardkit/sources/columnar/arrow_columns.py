"""The columns of files that know them: structs flattened to `a/b`, and the types that hold what several files have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import DifferentSchemasError, UsageError
from shardkit.features import JSON_MEDIA_TYPE, make_feature
from shardkit.messages import printable, shown
from shardkit.sources.columns.arrow_json import json_texts

_UNITS = ("s", "ms", "us", "ns")
_NAMED_DIFFERENCES = 10


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a file.

    Attributes:
        name: With `/` between the names of structs.
        type_: Plain: no dictionary, no extension, no large variant. Text where the file has nested values.
        media_type: Of files that it holds; None where nothing says so.
        classes: Names of the classes that its numbers are; None where nothing says so.
        shape: Of an array of several dimensions, whose type is a list of fixed size of all its values.
        num_leaves: How many columns Parquet stores it in.
        is_described: Whether the metadata of Hugging Face `datasets` describe it.
    """

    name: str
    type_: Any
    nullable: bool
    media_type: str | None = None
    classes: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None
    num_leaves: int = 1
    is_described: bool = False


def flatten_schema(schema: pa.Schema, where: str) -> tuple[Column, ...]:
    """Returns the columns of a schema, in order.

    A struct of the bytes and the path of a file, as Hugging Face `datasets` writes it, is one column, named like the
    struct. The schema's metadata of `datasets` name images, sounds and classes.

    Raises:
        UsageError: If two columns have the same name.
    """
    columns = tuple(c for field in schema for c in _flatten_field(field, "", False))
    if (described := (schema.metadata or {}).get(b"huggingface")) is not None:
        columns = tuple(_described(column, _features_of(described)) for column in columns)
    name, count = Counter(c.name for c in columns).most_common(1)[0] if columns else ("", 0)
    if count > 1:
        raise UsageError(
            f"column {shown(name)} appears {count} times",
            where=where,
            next_step="Rename one of them when the file is written, or leave them out with --drop-columns",
        )
    return columns


def null_without_class(column: pa.Array) -> pa.Array:
    """Returns numbers of classes with null for -1, by which Hugging Face `datasets` marks rows without a label."""
    if not pa.types.is_signed_integer(column.type):
        return column
    return pc.if_else(pc.equal(column, pa.scalar(-1, column.type)), pa.scalar(None, column.type), column)


def flatten_batch(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Returns the columns of a batch by their flattened name."""
    flat: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        _flatten_array(column, name, flat)
    return flat


def unite_columns(
    first: tuple[Column, ...],
    first_name: str,
    other: tuple[Column, ...],
    other_name: str,
    declared: Mapping[str, str],
) -> tuple[Column, ...]:
    """Returns columns that hold what both files have, in the order of the first.

    Integers and floats widen, both together become float64, as pandas writes integers with nulls. Timestamps take the
    finer unit. A column is nullable if it is in one of them.

    Args:
        first, first_name: Columns of a file, and its name.
        other, other_name: Those of another one.
        declared: The types of columns that a user declared. They count where those of the files do not go together.

    Raises:
        DifferentSchemasError: If a column is missing in one, or their types do not go together; names each difference.
    """
    names = printable(first_name), printable(other_name)
    others = {c.name: c for c in other}
    differences: list[str] = []
    clashing: list[str] = []
    united: list[Column] = []
    for column in first:
        match = others.pop(column.name, None)
        if match is None:
            differences.append(f"{shown(column.name)} is only in {names[0]}")
            continue
        found = _unite(column, match, declared.get(column.name), names)
        if isinstance(found, Column):
            united.append(found)
        else:
            clashing.append(column.name)
            differences.append(found)
    are_missing = bool(others) or len(united) + len(clashing) < len(first)
    differences += [f"{shown(name)} is only in {names[1]}" for name in others]
    if differences:
        raise _different_schemas(names, differences, clashing, are_missing=are_missing)
    return tuple(united)


def _unite(one: Column, other: Column, declared: str | None, names: tuple[str, str]) -> Column | str:
    """Returns the column of two files, or how they differ."""
    type_ = promote(one.type_, other.type_)
    classes = one.classes
    if declared is not None and (type_ is None or classes != other.classes):
        type_, classes = _declared_type(one, other, declared), None
    if type_ is None:
        return f"{shown(one.name)} is {one.type_} in {names[0]} and {other.type_} in {names[1]}"
    if one.classes != other.classes and declared is None:
        return f"the classes of {shown(one.name)} differ in {names[0]} and {names[1]}"
    return msgspec.structs.replace(one, type_=type_, nullable=one.nullable or other.nullable, classes=classes)


def _different_schemas(
    names: tuple[str, str], differences: list[str], clashing: list[str], *, are_missing: bool
) -> DifferentSchemasError:
    more = len(differences) - _NAMED_DIFFERENCES
    tail = f"; and {more} more" if more > 0 else ""
    error = DifferentSchemasError(
        f"{names[0]} and {names[1]} have different schemas",
        why="; ".join(differences[:_NAMED_DIFFERENCES]) + tail,
        next_step=("Make a column one type with --cast COLUMN=TYPE, or leave" if clashing else "Leave")
        + " columns out with --drop-columns"
        + ("; --union-by-name makes values of missing columns null" if are_missing else ""),
    )
    error.columns = tuple(clashing)
    return error


def _declared_type(one: Column, other: Column, dtype: str) -> pa.DataType | None:
    value = make_feature(one.name, dtype).value_type
    are_lists = [_is_list(column.type_) for column in (one, other)]
    return None if any(are_lists) != all(are_lists) else pa.list_(value) if all(are_lists) else value


def promote(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns the plain type that holds the values of both, None if there is none."""
    if one.equals(other):
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if _is_list(one) and _is_list(other):
        value = promote(one.value_type, other.value_type)
        fixed = pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other)
        same_size = fixed and one.list_size == other.list_size
        return None if value is None else pa.list_(value, one.list_size) if same_size else pa.list_(value)
    for family in (_promote_integers, _promote_floats, _promote_timestamps, _promote_decimals):
        found = family(one, other)
        if found is not None:
            return found
    return None


def count_leaves(type_: pa.DataType) -> int:
    """Returns how many columns Parquet stores a type in."""
    if isinstance(type_, pa.BaseExtensionType):
        return count_leaves(type_.storage_type)
    if pa.types.is_dictionary(type_) or not type_.num_fields:
        return 1
    return sum(count_leaves(type_.field(i).type) for i in range(type_.num_fields))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Returns a type without dictionary, extension, view or large variant."""
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(plain_type(type_.value_type), type_.list_size)
    if _is_list(type_):
        return pa.list_(plain_type(type_.value_type))
    return type_


def _is_list(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
        or pa.types.is_list_view(type_)
        or pa.types.is_large_list_view(type_)
    )


def _flatten_field(field: pa.Field, prefix: str, nullable: bool) -> list[Column]:
    name, nullable = f"{prefix}{field.name}", nullable or field.nullable
    type_ = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if (array := _array_of(field.type)) is not None:
        shape, value = array
        return [Column(name=name, type_=pa.list_(value, math.prod(shape)), nullable=nullable, shape=shape)]
    if _is_nested(type_):
        leaves = count_leaves(type_)
        return [Column(name=name, type_=pa.string(), nullable=nullable, media_type=JSON_MEDIA_TYPE, num_leaves=leaves)]
    if pa.types.is_struct(type_):
        children = [c for child in type_ for c in _flatten_field(child, f"{name}/", nullable)]
        if _is_file(type_):
            return [msgspec.structs.replace(c, name=name) if c.name == f"{name}/bytes" else c for c in children]
        return children
    return [Column(name=name, type_=plain_type(type_), nullable=nullable)]


def _flatten_array(column: pa.Array, name: str, flat: dict[str, pa.Array]) -> None:
    array = _array_of(column.type)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if array is not None:
        flat[name] = _flat_array(column, math.prod(array[0]))
        return
    if _is_nested(column.type):
        flat[name] = json_texts(column)
        return
    if not pa.types.is_struct(column.type):
        flat[name] = column
        return
    is_file = _is_file(column.type)
    for field, child in zip(column.type, column.flatten(), strict=True):
        _flatten_array(child, name if is_file and field.name == "bytes" else f"{name}/{field.name}", flat)


def _is_nested(type_: pa.DataType) -> bool:
    """Whether values are lists of objects or lists, maps, or objects without keys."""
    if pa.types.is_struct(type_):
        return not type_.num_fields
    return bool(pa.types.is_map(type_)) or (_is_list(type_) and bool(pa.types.is_nested(plain_type(type_.value_type))))


def _array_of(type_: pa.DataType) -> tuple[tuple[int, ...], pa.DataType] | None:
    """Returns shape and type of the values of arrays of two dimensions or more; None if these are none."""
    if (
        isinstance(type_, pa.FixedShapeTensorType)
        and len(type_.shape) > 1
        # NumPy arrays come with their own order written out.
        and type_.permutation in (None, list(range(len(type_.shape))))
    ):
        return tuple(type_.shape), plain_type(type_.value_type)
    shape: list[int] = []
    while pa.types.is_fixed_size_list(type_):
        shape.append(type_.list_size)
        type_ = type_.value_type
    return (tuple(shape), plain_type(type_)) if len(shape) > 1 and not pa.types.is_nested(type_) else None


def _flat_array(column: pa.Array, size: int) -> pa.Array:
    is_null = column.is_null()
    values = column
    is_there = np.ones(len(column), np.bool_)
    while pa.types.is_fixed_size_list(values.type):
        width = values.type.list_size
        is_there = np.repeat(is_there & values.is_valid().to_numpy(zero_copy_only=False), width)
        values = values.values.slice(values.offset * width, len(values) * width)
    # A row of an array that is null has no values.
    values = pc.if_else(pa.array(is_there), values, pa.scalar(None, values.type))
    return pa.FixedSizeListArray.from_arrays(values, size, mask=is_null)


def _is_file(type_: pa.DataType) -> bool:
    types = {field.name: plain_type(field.type) for field in type_}
    # Without its path where that is left out, or null in all rows.
    path = types.pop("path", pa.string())
    return types == {"bytes": pa.binary()} and path in (pa.string(), pa.null())


def _features_of(described: bytes) -> dict[str, Any]:
    try:
        features = msgspec.json.decode(described)["info"]["features"]
    except (*DECODE_ERRORS, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _described(column: Column, features: dict[str, Any]) -> Column:
    if column.name in features:
        column = msgspec.structs.replace(column, is_described=True)
    feature = features.get(column.name)
    if not isinstance(feature, dict):
        return column
    kind = feature.get("_type")
    if kind in ("Image", "Audio", "Video") and pa.types.is_binary(column.type_):
        return msgspec.structs.replace(column, media_type=f"{kind.lower()}/*")
    names: Any = feature.get("names")
    is_named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if kind == "ClassLabel" and is_named and pa.types.is_int64(column.type_) and len(set(names)) == len(names):
        return msgspec.structs.replace(column, classes=tuple(names))
    return column


def _promote_integers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_integer(one) and pa.types.is_integer(other)):
        return None
    if pa.types.is_signed_integer(one) == pa.types.is_signed_integer(other):
        return max(one, other, key=lambda t: t.bit_width)
    unsigned = other if pa.types.is_signed_integer(one) else one
    return pa.int64() if unsigned.bit_width < 64 else None


def _promote_floats(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return max(one, other, key=lambda t: t.bit_width)
    # pandas writes a column of integers as float64 where it has a null. An integer that would lose digits is a bad row.
    for number, other_number in ((one, other), (other, one)):
        if pa.types.is_integer(number) and pa.types.is_floating(other_number):
            return pa.float64()
    return None


def _promote_timestamps(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and one.tz == other.tz:
        return max(one, other, key=lambda t: _UNITS.index(t.unit))
    return None


def _promote_decimals(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
        precision = max(one.precision, other.precision)
        return pa.decimal128(precision, one.scale) if precision <= 38 else pa.decimal256(precision, one.scale)
    return None
