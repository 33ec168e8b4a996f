"""Which columns an Avro schema has: nested records joined by `/`, unions with null nullable, logical types kept."""

from __future__ import annotations

from typing import Any, Literal

import fastavro
import msgspec
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from shardkit.errors import UsageError
from shardkit.features import JSON_MEDIA_TYPE
from shardkit.messages import shown
from shardkit.sources.columnar.arrow_columns import Column
from shardkit.sources.columns.dropped_columns import drop_option

Kind = Literal["plain", "int", "text", "decimal", "json"]

_MAX_DEPTH = 64
_MAX_DECIMAL_BYTES = 32
_KINDS: dict[str, tuple[pa.DataType, Kind]] = {
    "boolean": (pa.bool_(), "plain"),
    "int": (pa.int32(), "int"),
    "long": (pa.int64(), "int"),
    "float": (pa.float32(), "plain"),
    "double": (pa.float64(), "plain"),
    "bytes": (pa.binary(), "plain"),
    "fixed": (pa.binary(), "plain"),
    "string": (pa.string(), "text"),
    "enum": (pa.string(), "text"),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_MIXED = "values of several types"
# fastavro, which would convert the values, does not know this one.
_LOGICAL_KEY = "shardkit.logicalType"
_SCHEMA_ERRORS = (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError, RecursionError)
# Types that hold all values of several.
_WIDER: dict[frozenset[str], str] = {
    frozenset({"int", "long"}): "long",
    frozenset({"float", "double"}): "double",
    frozenset({"int", "double"}): "double",
    frozenset({"int", "float"}): "double",
    frozenset({"int", "float", "double"}): "double",
    frozenset({"string", "enum"}): "string",
    frozenset({"bytes", "fixed"}): "bytes",
}


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a record, at some depth.

    Attributes:
        path: Names of the fields that lead to it.
        column: Of the flattened table.
        item_type: Arrow type of one value; of what is in a list, if it is one.
        kind: How its values are made: `text` may hold bytes that are no UTF-8, `json` is whatever is nested.
    """

    path: tuple[str, ...]
    column: Column
    item_type: Any
    kind: Kind
    is_list: bool


class AvroSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a file.

    Attributes:
        record: As fastavro has it, but for logical types: values stay as they are stored.
        leaves: In order.
    """

    record: Any
    leaves: tuple[Leaf, ...]


def read_schema(schema: Any, where: str, dropped: tuple[str, ...] = ()) -> AvroSchema:
    """Returns the columns of a schema.

    Args:
        dropped: Columns that are not looked at; each has one leaf of type null.

    Raises:
        UsageError: If a column has no place in an example; names it.
        ValueError: If it is no Avro schema.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise UsageError(
            "the rows of the file are no records",
            where=where,
            why=f"its schema is {shown(schema)}",
            next_step="Write it with a record as its schema, one field a column",
        )
    named: dict[str, Any] = {}
    try:
        record = fastavro.parse_schema(_plain(schema, 0), named)
    except _SCHEMA_ERRORS as error:
        raise ValueError(f"its schema is damaged, {error}") from error
    leaves = tuple(_SchemaReader(where, dropped, named).leaves(record, (), nullable=False))
    return AvroSchema(record=record, leaves=leaves)


class _SchemaReader:
    # Names of types are full ones by now, and each is known.

    def __init__(self, where: str, dropped: tuple[str, ...], named: dict[str, Any]) -> None:
        self._where = where
        self._dropped = dropped
        self._named = named
        self._open: list[str] = []

    def leaves(self, type_: Any, path: tuple[str, ...], *, nullable: bool) -> list[Leaf]:
        if len(path) > _MAX_DEPTH:
            raise self._refused(path, "it is nested too deeply")
        if path and "/".join(path) in self._dropped:
            return [_nothing(path)]
        found, has_null = self._chosen(type_)
        nullable = nullable or has_null
        if found["type"] in ("record", "error"):
            return self._record(found, path, nullable)
        if found["type"] == "array":
            item, _ = self._chosen(found["items"])
            if item["type"] not in _KINDS:
                return [_json(path, nullable)]
            return [self._leaf(item, path, nullable=nullable, is_list=True)]
        if found["type"] == "null":
            return [_nothing(path)]
        if found["type"] in ("map", _MIXED):
            return [_json(path, nullable)]
        if found["type"] not in _KINDS:
            raise self._refused(path, f"it is a {found['type']}")
        return [self._leaf(found, path, nullable=nullable, is_list=False)]

    def _record(self, record: dict[str, Any], path: tuple[str, ...], nullable: bool) -> list[Leaf]:
        if not path and not record["fields"]:
            raise ValueError("its schema has no fields")
        if record["name"] in self._open or not record["fields"]:
            return [_json(path, nullable)]
        self._open.append(record["name"])
        leaves: list[Leaf] = []
        for field in record["fields"]:
            leaves += self.leaves(field["type"], (*path, field["name"]), nullable=nullable)
        self._open.pop()
        return leaves

    def _leaf(self, found: dict[str, Any], path: tuple[str, ...], *, nullable: bool, is_list: bool) -> Leaf:
        item_type, kind = _KINDS[found["type"]]
        logical = found.get(_LOGICAL_KEY)
        if logical == "decimal" and found["type"] in ("bytes", "fixed"):
            precision, scale = found.get("precision"), found.get("scale", 0)
            if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 76 and precision:
                item_type = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
                kind = "decimal"
        elif isinstance(logical, str):
            item_type = _LOGICAL.get((found["type"], logical), item_type)
        column_type = pa.list_(item_type) if is_list else item_type
        column = Column(name="/".join(path), type_=column_type, nullable=nullable)
        return Leaf(path=path, column=column, item_type=item_type, kind=kind, is_list=is_list)

    def _chosen(self, type_: Any) -> tuple[dict[str, Any], bool]:
        # The one type that a value has besides null, and whether it may be null.
        if not isinstance(type_, list):
            found = self._resolved(type_)
            return found, found["type"] == "null"
        branches = [self._resolved(t) for t in type_]
        others = [b for b in branches if b["type"] != "null"]
        has_null = len(others) < len(branches)
        if len(others) > 1:
            wider = None
            if not any(_LOGICAL_KEY in b for b in others):
                wider = _WIDER.get(frozenset(b["type"] for b in others))
            return {"type": wider or _MIXED}, has_null
        return (others or branches or [{"type": "union of nothing"}])[0], has_null

    def _resolved(self, type_: Any) -> dict[str, Any]:
        found: dict[str, Any] = type_ if isinstance(type_, dict) else self._named.get(type_, {"type": type_})
        return found

    def _refused(self, path: tuple[str, ...], why: str) -> UsageError:
        name = f"column {shown('/'.join(path))}" if path else "the file"
        leave = f"Leave it out with {drop_option(['/'.join(path)])}, or c" if path else "C"
        return UsageError(
            f"{name} has a type that a tf.train.Example cannot hold",
            where=self._where,
            why=why,
            next_step=f"{leave}hange it in the source",
        )


def decimal_text(value: bytes, scale: int) -> str:
    """Returns a decimal as digits, or words that are no number if it has more bytes than any type holds.

    Args:
        value: Unscaled, two's complement, big-endian.
        scale: Digits behind the point.
    """
    if len(value) > _MAX_DECIMAL_BYTES:
        return f"a number of {len(value)} bytes"
    number = int.from_bytes(value, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else f"{sign}{digits}"


def _nothing(path: tuple[str, ...]) -> Leaf:
    column = Column(name="/".join(path), type_=pa.null(), nullable=True)
    return Leaf(path=path, column=column, item_type=pa.null(), kind="plain", is_list=False)


def _json(path: tuple[str, ...], nullable: bool) -> Leaf:
    column = Column(name="/".join(path), type_=pa.string(), nullable=nullable, media_type=JSON_MEDIA_TYPE)
    return Leaf(path=path, column=column, item_type=pa.string(), kind="json", is_list=False)


def _plain(type_: Any, depth: int) -> Any:
    # Values stay as they are stored; defaults and aliases matter only to readers that have another schema.
    if depth > 4 * _MAX_DEPTH:
        raise ValueError("its schema is nested too deeply")
    if isinstance(type_, list):
        return [_plain(t, depth + 1) for t in type_]
    if not isinstance(type_, dict):
        return type_
    kept = {k: v for k, v in type_.items() if k not in ("default", "aliases", "doc", "order")}
    if "logicalType" in kept:
        kept[_LOGICAL_KEY] = kept.pop("logicalType")
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_plain(f, depth + 1) for f in kept["fields"]]
    return {k: _plain(v, depth + 1) if k in ("type", "items", "values") else v for k, v in kept.items()}
