"""Flat Avro records as Arrow columns, decoded by the kernel where it was built.

Only what every record of a schema has at the same place is decoded so: primitives, enums and fixed bytes, each of them
alone or in a union with null, and records that hold such. All else is for `rows`, and so are rows
that are damaged or written in an unusual way.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa

from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.sources.avro.schema import Kind, Leaf, decimal_text

if HAS_KERNEL:
    from shardkit.encoding.kernel import _kernel

NO_STOP = 2**63 - 1

_MAX_SYMBOLS = 65_536
_MAX_FIXED_BYTES = 2**31 - 1
_NO_UNION = -1
_CODES = {
    "null": 0,
    "boolean": 1,
    "int": 2,
    "long": 3,
    "float": 4,
    "double": 5,
    "bytes": 6,
    "string": 6,
    "fixed": 7,
    "enum": 8,
}
# The Arrow type of a column of each kind, before its logical type.
_STORED: dict[tuple[str, Kind], pa.DataType] = {
    ("boolean", "plain"): pa.bool_(),
    ("int", "int"): pa.int32(),
    ("long", "int"): pa.int64(),
    ("float", "plain"): pa.float32(),
    ("double", "plain"): pa.float64(),
    ("bytes", "plain"): pa.binary(),
    ("fixed", "plain"): pa.binary(),
    ("bytes", "decimal"): pa.binary(),
    ("fixed", "decimal"): pa.binary(),
    ("string", "text"): pa.string(),
    ("enum", "text"): pa.string(),
}

# A field for the kernel: its type, which branch of a union of two is null, whether it is wanted, its size or symbols.
_Field = tuple[int, int, bool, Any]


class Piece(NamedTuple):
    """Some rows of a block.

    Attributes:
        data: Content of the block.
        start: Where they start in it; they go on to its end.
        num_rows: How many it says they are.
        first_row: How many stand in front of them.
    """

    data: bytes
    start: int
    num_rows: int
    first_row: int

    def after(self, num_rows: int, stop: int) -> Piece | None:
        """Returns the rest behind some of them, None if there is none.

        Args:
            num_rows: Done.
            stop: Where they end in the block.
        """
        if num_rows == self.num_rows and stop == len(self.data):
            return None
        return Piece(self.data, stop, self.num_rows - num_rows, self.first_row + num_rows)


class ColumnDecoder:
    """Decodes columns of the records of one file.

    Args:
        fields: All of them.
        leaves: Those that are wanted, in their order, with what the file stores of each.
    """

    def __init__(self, fields: list[_Field], leaves: Sequence[tuple[Leaf, pa.DataType]]) -> None:
        self._fields = fields
        self._leaves = leaves

    @classmethod
    def of(cls, record: Any, leaves: Sequence[Leaf]) -> Self | None:
        """Returns the decoder for some columns, None if the kernel cannot decode them.

        Args:
            record: Schema, as fastavro has parsed it.
            leaves: Wanted, in the order of the schema.
        """
        wanted = {leaf.path: leaf for leaf in leaves}
        records = {path[:depth] for path in wanted for depth in range(1, len(path))}
        try:
            found = list(_values_of(record, record["__named_schemas"], (), records))
            stored = [(wanted[v.path], _STORED[v.name, wanted[v.path].kind]) for v in found if v.path in wanted]
            fields = _fields_of(found, wanted)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            return None
        is_usual = len({value.path for value in found}) == len(found) and [leaf for leaf, _ in stored] == list(leaves)
        if not leaves or not is_usual or not all(_holds(leaf, type_) for leaf, type_ in stored):
            return None
        return cls(fields, stored)

    def decode(self, pieces: Sequence[Piece], stop_bytes: int = NO_STOP) -> tuple[pa.RecordBatch, Piece | None] | None:
        """Returns rows as columns, and the rest of the piece in which it stopped; None if a row is unusual.

        Decimals are text, and text may hold bytes that are no UTF-8.

        Args:
            pieces: One after the other.
            stop_bytes: Ends with the row with which so many bytes are reached.
        """
        taken = [(piece.data, piece.start, piece.num_rows) for piece in pieces]
        columns, num_rows, index, done, num_bytes = _kernel.decode_avro(taken, self._fields, stop_bytes)
        if columns is None:
            return None
        arrays = [
            _array(buffers, num_rows, leaf, type_) for buffers, (leaf, type_) in zip(columns, self._leaves, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=[leaf.column.name for leaf, _ in self._leaves])
        if index == len(pieces):
            return batch, None
        return batch, pieces[index].after(done, pieces[index].start + num_bytes)


class _Value(NamedTuple):
    path: tuple[str, ...]
    name: str
    null_branch: int
    type_: dict[str, Any]


def _values_of(
    record: Any, named: dict[str, Any], path: tuple[str, ...], records: set[tuple[str, ...]]
) -> Iterator[_Value]:
    # Raises LookupError, TypeError or ValueError at what is not decoded here. Only records that lead to what is wanted
    # are looked into: how large those are is known.
    for field in record["fields"]:
        inner, type_ = (*path, field["name"]), field["type"]
        null_branch = _NO_UNION
        if isinstance(type_, list):
            null_branch = type_.index("null")
            if len(type_) != 2:
                raise ValueError("a union of several types")
            type_ = type_[1 - null_branch]
        name, found = _resolved(type_, named)
        if name == "record" and null_branch == _NO_UNION and inner in records:
            yield from _values_of(found, named, inner, records)
        else:
            yield _Value(inner, name, null_branch, found)


def _fields_of(values: Sequence[_Value], wanted: Container[tuple[str, ...]]) -> list[_Field]:
    if sum(len(value.type_["symbols"]) if value.name == "enum" else 1 for value in values) > _MAX_SYMBOLS:
        raise ValueError("more symbols than the kernel should hold")
    fields: list[_Field] = []
    for value in values:
        extra: Any = None
        if value.name == "fixed":
            extra = value.type_["size"]
            if type(extra) is not int or not 0 <= extra <= _MAX_FIXED_BYTES:
                raise ValueError("a size that is none")
        elif value.name == "enum":
            extra = [symbol.encode() for symbol in value.type_["symbols"]]
        fields.append((_CODES[value.name], value.null_branch, value.path in wanted, extra))
    return fields


def _resolved(type_: Any, named: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(type_, str):
        if type_ in _CODES:
            return type_, {}
        type_ = named[type_]
    name = type_["type"]
    if not isinstance(name, str):
        raise TypeError("a type within a type")
    return name, type_


def _holds(leaf: Leaf, stored: pa.DataType) -> bool:
    if leaf.is_list:
        return False
    if leaf.kind == "int":
        return bool(leaf.item_type.bit_width == stored.bit_width)
    return leaf.kind == "decimal" or bool(leaf.item_type.equals(stored))


def _array(buffers: tuple[Any, ...], num_rows: int, leaf: Leaf, stored: pa.DataType) -> pa.Array:
    type_ = stored if leaf.kind == "decimal" else leaf.item_type
    found = pa.Array.from_buffers(type_, num_rows, [None if b is None else pa.py_buffer(b) for b in buffers])
    if leaf.kind != "decimal":
        return found
    return pa.array(
        [None if v is None else decimal_text(v, leaf.item_type.scale) for v in found.to_pylist()], pa.string()
    )
