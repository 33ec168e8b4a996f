"""What one named column of a dataset is, and how `tf.train.Example` stores it.

`tf.train.Example` has three kinds of value: int64, float32 and bytes. A feature keeps its logical dtype beside the
kind it is stored as, so that readers give back what the source held: float64 is stored as little-endian bytes, a
timestamp as an int64 count of its unit since the epoch, a decimal as its exact text. Arrays of int8 and uint8 are
bytes: in a list of int64, a negative number takes ten.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import pyarrow as pa

from shardkit.errors import UsageError

StoredAs = Literal["int64_list", "float_list", "bytes_list", "little_endian_bytes"]

_INTEGERS = {
    "bool": pa.bool_(),
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "date": pa.date32(),
}  # fmt: skip
_FLOATS = {"float16": pa.float16(), "float32": pa.float32()}
_BYTES = {"string": pa.string(), "bytes": pa.binary()}
_TEMPORAL = re.compile(r"(timestamp|duration|time)\[(s|ms|us|ns)\]")
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),(-?[0-9]{1,3})\)")
_KNOWN_DTYPES = (
    "Known are bool, int8 to int64, uint8 to uint64, float16, float32, float64, string, bytes, json, date, "
    "timestamp[s|ms|us|ns], duration[..], time[..] and decimal(PRECISION,SCALE)"
)

JSON_MEDIA_TYPE = "application/json"

# Arrow counts the values of a fixed-size list in 32 bits.
_MAX_VALUES = 2**31 - 1
# NumPy has 64 at most, of which a batch and its steps take some.
MAX_DIMENSIONS = 32
_COUNTS_CLASSES = re.compile(r"u?int(8|16|32|64)")

Shape = tuple[int | None, ...]


def stored_as(dtype: str, shape: Shape = ()) -> StoredAs:
    """Returns how values of a logical dtype and shape are stored.

    Raises:
        UsageError: If the dtype is none that shardkit knows.
    """
    if shape and dtype in ("int8", "uint8"):
        return "little_endian_bytes"
    if dtype in _INTEGERS or _TEMPORAL.fullmatch(dtype):
        return "int64_list"
    if dtype in _FLOATS:
        return "float_list"
    decimal = _DECIMAL.fullmatch(dtype)
    if dtype in _BYTES or (decimal and 1 <= int(decimal.group(1)) <= 76):
        return "bytes_list"
    if dtype == "float64":
        return "little_endian_bytes"
    raise UsageError(
        f"{dtype!r} is not a dtype",
        next_step=_KNOWN_DTYPES,
    )


class Feature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One named column.

    Attributes:
        name: Key in the `tf.train.Example`.
        dtype: Logical dtype, such as `int64`, `float64`, `string`, `timestamp[us]`.
        shape: `()` for one value, `(n, ...)` for a fixed array, `(None,)` for a list of any length.
        stored_as: Kind of the stored feature. Follows from dtype and shape; written out for readers that know no
            dtypes. Older datasets have arrays of int8 and uint8 as `int64_list`.
        nullable: Whether a row may lack it. A null is stored as an absent key.
        media_type: What bytes or strings hold: `image/*`, `image/jpeg`, `text/plain`.
        vocabulary: Names of the classes that an integer feature counts, by index.
        timezone: Of a timestamp, as in the source. Stored values are UTC if set, wall-clock time if not.
    """

    name: str
    dtype: str
    stored_as: StoredAs
    shape: Shape = ()
    nullable: bool = False
    media_type: str | None = None
    vocabulary: tuple[str, ...] | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        if not self.name or "\0" in self.name:
            raise UsageError(
                f"{self.name!r} cannot name a feature",
                why="it is empty or holds a NUL",
                next_step="Give the column another name with --rename OLD=NEW",
            )
        expected = stored_as(self.dtype, self.shape)
        if self.stored_as not in (expected, stored_as(self.dtype)):
            raise UsageError(
                f"feature {self.name!r} cannot be stored as {self.stored_as}",
                why=f"{self.dtype} is stored as {expected}",
                next_step=f"Declare it as stored as {expected}, or leave that out",
            )
        if None in self.shape and len(self.shape) != 1:
            raise UsageError(
                f"feature {self.name!r} has shape {list(self.shape)}",
                why="a shape is [], fixed, or one variable dimension",
                next_step="Declare a shape such as [], [3], [28, 28] or [null]",
            )
        if any(size is not None and size < 1 for size in self.shape) or (self.num_values or 0) > _MAX_VALUES:
            raise UsageError(
                f"feature {self.name!r} has shape {list(self.shape)}",
                why="every dimension must be at least 1, and all together at most 2147483647",
                next_step="Correct the shape; null stands for a dimension of any length",
            )
        if len(self.shape) > MAX_DIMENSIONS:
            raise UsageError(
                f"feature {self.name!r} has a shape of {len(self.shape)} dimensions",
                why=f"{MAX_DIMENSIONS} are the most",
                next_step="Declare a shape of fewer dimensions, such as all values in one",
            )
        if self.vocabulary is not None and not _COUNTS_CLASSES.fullmatch(self.dtype):
            raise UsageError(
                f"feature {self.name!r} has a vocabulary",
                why=f"the classes of a vocabulary are counted by integers, not by {self.dtype}",
                next_step="Leave the vocabulary out, or declare an integer such as int64",
            )
        if self.timezone is not None and not self.dtype.startswith("timestamp"):
            raise UsageError(
                f"feature {self.name!r} has a time zone",
                why=f"{self.dtype} has none",
                next_step="Leave the time zone out, or declare a timestamp such as timestamp[us]",
            )

    def with_shape(self, shape: Shape) -> Feature:
        """Returns the feature with another shape, stored as values of that shape are."""
        return msgspec.structs.replace(self, shape=shape, stored_as=stored_as(self.dtype, shape))

    @property
    def is_scalar(self) -> bool:
        """Whether each example holds exactly one value (or none, if nullable)."""
        return self.shape == ()

    @property
    def is_json(self) -> bool:
        """Whether values are JSON texts, which readers give back as Python objects."""
        return self.media_type == JSON_MEDIA_TYPE

    @property
    def is_image(self) -> bool:
        """Whether each example holds one encoded image."""
        return self.is_scalar and self.dtype == "bytes" and (self.media_type or "").startswith("image/")

    @property
    def num_values(self) -> int | None:
        """Values per example, None if it varies."""
        total = 1
        for size in self.shape:
            if size is None:
                return None
            total *= size
        return total

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of one value."""
        return _value_type(self.dtype, self.timezone)

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the column: the value, a list, or a fixed-size list flattened in row-major order."""
        if self.is_scalar:
            return self.value_type
        if self.num_values is None:
            return pa.list_(self.value_type)
        return pa.list_(self.value_type, self.num_values)

    def describe_type(self) -> str:
        """Returns the type as a person reads it, such as `float32[3]`, `string[*]` or `int64 (10 classes)`."""
        dims = "".join(f"[{'*' if size is None else size}]" for size in self.shape)
        zone = f" {self.timezone}" if self.timezone else ""
        if self.is_json:
            return f"json{dims}"
        classes = f" ({len(self.vocabulary)} classes)" if self.vocabulary is not None else ""
        media = f" {self.media_type}" if self.media_type else ""
        return f"{self.dtype}{zone}{dims}{classes}{media}"


Features = tuple[Feature, ...]


def make_feature(name: str, dtype: str, shape: Shape = (), **settings: Any) -> Feature:
    """Returns a feature with its storage filled in. Settings are the other fields of `Feature`.

    The dtype `json` stands for a string whose media type says so: stock readers find UTF-8 text.
    """
    if dtype == "json":
        dtype, settings = "string", {**settings, "media_type": JSON_MEDIA_TYPE}
    return Feature(name=name, dtype=dtype, shape=shape, stored_as=stored_as(dtype, shape), **settings)


def stored_like(features: Features, held: Features) -> Features:
    """Returns features stored as those of a dataset are: older ones have arrays of int8 and uint8 as `int64_list`."""
    known = {(f.name, f.dtype, f.shape): f.stored_as for f in held}
    kinds = [known.get((f.name, f.dtype, f.shape), f.stored_as) for f in features]
    return tuple(msgspec.structs.replace(f, stored_as=kind) for f, kind in zip(features, kinds, strict=True))


def arrow_schema(features: Features) -> pa.Schema:
    """Returns the Arrow schema that batches must have before they are encoded."""
    return pa.schema([pa.field(f.name, f.arrow_type, nullable=True) for f in features])


def feature_from_arrow(name: str, type_: pa.DataType, *, nullable: bool, where: str) -> Feature:
    """Returns the feature for an Arrow column.

    Raises:
        UsageError: If the type has no place in a `tf.train.Example`; names the column and `where` it was found.
    """
    if pa.types.is_dictionary(type_):
        return feature_from_arrow(name, type_.value_type, nullable=nullable, where=where)
    shape: Shape = ()
    value = type_
    if pa.types.is_fixed_size_list(type_):
        shape, value = (type_.list_size,), type_.value_type
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_list_view(type_):
        shape, value = (None,), type_.value_type
    if pa.types.is_dictionary(value):
        value = value.value_type
    dtype = _dtype_of(value)
    if dtype is None:
        raise UsageError(
            f"column {name!r} has the type {type_}",
            where=where,
            why="which a tf.train.Example cannot hold",
            next_step="Drop or cast the column",
        )
    zone = value.tz if pa.types.is_timestamp(value) else None
    return make_feature(name, dtype, shape, nullable=nullable, timezone=zone)


def _value_type(dtype: str, timezone: str | None) -> pa.DataType:
    known = {**_INTEGERS, **_FLOATS, **_BYTES, "float64": pa.float64()}.get(dtype)
    if known is not None:
        return known
    if match := _TEMPORAL.fullmatch(dtype):
        kind, unit = match.groups()
        if kind == "timestamp":
            return pa.timestamp(unit, tz=timezone)
        if kind == "duration":
            return pa.duration(unit)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    match = _DECIMAL.fullmatch(dtype)
    if match is None:
        raise UsageError(f"{dtype!r} is not a dtype", next_step=_KNOWN_DTYPES)
    precision, scale = int(match.group(1)), int(match.group(2))
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _dtype_of(type_: pa.DataType) -> str | None:
    for dtype, known in (
        *_INTEGERS.items(),
        *_FLOATS.items(),
        *_BYTES.items(),
        ("float64", pa.float64()),
    ):
        if type_.equals(known):
            return dtype
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) or pa.types.is_fixed_size_binary(type_):
        return "bytes"
    if pa.types.is_date64(type_):
        return "timestamp[ms]"
    for kind, test in (
        ("timestamp", pa.types.is_timestamp),
        ("duration", pa.types.is_duration),
        ("time", pa.types.is_time),
    ):
        if test(type_):
            return f"{kind}[{type_.unit}]"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_null(type_):
        return "string"
    return None
