"""Lines of JSON objects to Arrow columns of exactly the features' types.

msgspec decodes into structs that have a field for each feature, so that a value of another type, or a key that is no
feature, is an error and not silently dropped. Every column takes values of one JSON type: that of its feature, or,
where a schema asks for another dtype, strings to be parsed and numbers to be kept as they are written.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.features import Feature, Features, arrow_schema
from shardkit.sources.fitting import UnfitValueError, fit_column
from shardkit.sources.json_types import flatten
from shardkit.sources.streams import shown
from shardkit.sources.text_blocks import NEWLINE, RETURN, as_array
from shardkit.units import KiB

Mode = Literal["native", "string", "written"]
Parsed = tuple[pa.RecordBatch, dict[str, int]]

# What decoding or conversion raises at a line that does not fit.
LINE_ERRORS = (
    msgspec.DecodeError,
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    OverflowError,
    RecursionError,
    UnicodeError,
    UnfitValueError,
)

_OBJECTS = msgspec.json.Decoder(dict[str, Any])
_ABSENT = msgspec.Raw(b"null")
_KEY, _ESCAPED_KEY = re.compile(rb'"\s*:'), re.compile(rb'\\"\s*:')
_TREE = dict[str, Any]
# Of lines that become Python objects at a time: they stay in the cache until they are columns.
_PIECE_BYTES = 256 * KiB


class _Node(NamedTuple):
    # One object: its type, and for each field the position of its feature, or the object that it holds.
    type_: type[msgspec.Struct]
    fields: list[int | _Node]


class RowDecoder:
    """Decodes blocks of lines.

    Args:
        features: The columns; a `/` in a name stands for nesting.
        modes: What is known of how columns are written; completed by what the first values show.
        is_strict: Whether a key that is no feature is an error.
    """

    def __init__(self, features: Features, modes: dict[str, Mode] | None = None, *, is_strict: bool = True) -> None:
        self._features = features
        self._modes = modes or {}
        self._is_strict = is_strict
        self._settled: set[str] = set(self._modes)
        self._num_keys = len({p for f in features for p in _prefixes(f.name)})
        self._build()

    @property
    def modes(self) -> dict[str, Mode]:
        """How the columns are written, as far as values have shown."""
        return {f.name: self._mode(f) for f in self._features if f.name in self._settled}

    def decode(self, data: bytes) -> Parsed:
        """Returns the rows of some lines, and per column how many values were rounded.

        Raises:
            LINE_ERRORS: If a line does not fit.
        """
        try:
            parsed = self._decode_rows(data)
        except LINE_ERRORS:
            if not self._settle(data):
                raise
            parsed = self._decode_rows(data)
        batch = parsed[0]
        self._settled |= {
            name
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if column.null_count < len(batch)
        }
        return parsed

    def may_repeat_keys(self, data: bytes, batch: pa.RecordBatch) -> bool:
        """Whether some object that was decoded may have held a key twice, of which the last value was kept.

        Every key ends in a quote and a colon, and in a string that pair is escaped. So keys are counted in the text,
        and compared with what an object with all keys must have, or else with what plain decoding keeps.
        """
        num_written = _count_colons(data)
        has_nulls = any(column.null_count for column in batch.columns)
        if not has_nulls and num_written == self._num_keys * len(batch):
            return False
        is_nested = any("/" in feature.name for feature in self._features)
        num_kept = sum(map(_count_keys if is_nested else len, _OBJECTS.decode_lines(data)))
        if num_written == num_kept:
            return False
        return len(_KEY.findall(data)) - len(_ESCAPED_KEY.findall(data)) != num_kept

    def _build(self) -> None:
        tree: _TREE = {}
        for position, feature in enumerate(self._features):
            *parents, leaf = feature.name.split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = (position, feature)
        self._root = self._node(tree)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._root.type_)

    def _node(self, tree: _TREE) -> _Node:
        fields: list[tuple[str, Any, Any]] = []
        children: list[int | _Node] = []
        names: dict[str, str] = {}
        for number, (key, below) in enumerate(tree.items()):
            field = f"f{number}"
            names[field] = key
            if isinstance(below, dict):
                node = self._node(below)
                fields.append((field, node.type_ | None, None))
                children.append(node)
                continue
            position, feature = below
            fields.append((field, *_python_type(feature, self._mode(feature))))
            children.append(position)
        # JSON has no cycles for the garbage collector to look for.
        type_ = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=self._is_strict, gc=False)
        return _Node(type_, children)

    def _mode(self, feature: Feature) -> Mode:
        return self._modes.get(feature.name, _usual_mode(feature))

    def _decode_rows(self, data: bytes) -> Parsed:
        pieces: list[list[pa.Array]] = [[] for _ in self._features]
        for piece in _pieces(data):
            rows = self._decoder.decode_lines(piece)
            if len(rows) != _count_object_lines(piece):
                # Objects share or span lines, or have spaces around them.
                rows = [self._decoder.decode(line) for line in piece.split(b"\n") if line.strip()]
            for position, values in _columns(rows, self._root):
                feature = self._features[position]
                pieces[position].append(_to_arrow(values, feature, self._mode(feature)))
        columns, rounded = [], {}
        for feature, arrays in zip(self._features, pieces, strict=True):
            fitted = fit_column(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), feature)
            columns.append(fitted.column)
            if fitted.num_rounded:
                rounded[feature.name] = fitted.num_rounded
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self._features)), rounded

    def _settle(self, data: bytes) -> bool:
        # Looks at how the columns that have held nothing so far are written; whether that changed anything.
        unknown = {f.name: f for f in self._features if f.name not in self._settled}
        found: dict[str, Mode] = {}
        for line in data.split(b"\n"):
            if len(found) == len(unknown):
                break
            try:
                row = msgspec.json.decode(line) if line.strip() else {}
                values = list(flatten(row)) if isinstance(row, dict) else []
            except (msgspec.DecodeError, RecursionError, UnicodeError):
                continue
            for path, value in values:
                sample = value[0] if isinstance(value, list) and value else value
                if path in unknown and path not in found and sample is not None and not isinstance(sample, list):
                    found[path] = _shown_mode(unknown[path], sample)
        changed = {name: mode for name, mode in found.items() if mode != self._mode(unknown[name])}
        self._modes.update(changed)
        if changed:
            self._build()
        return bool(changed)


def _pieces(data: bytes) -> Iterator[bytes]:
    # Some whole lines each; at least one piece.
    start = 0
    while len(data) - start > _PIECE_BYTES:
        stop = data.rfind(b"\n", start, start + _PIECE_BYTES) + 1 or data.find(b"\n", start + _PIECE_BYTES) + 1
        if not stop:
            break
        yield data[start:stop]
        start = stop
    if start < len(data) or not start:
        yield data[start:]


def _columns(rows: Sequence[msgspec.Struct], node: _Node) -> Iterator[tuple[int, Sequence[Any]]]:
    # The values of each feature, by its position; all of them absent where the object around them is.
    by_field = zip(*map(msgspec.structs.astuple, rows), strict=True) if rows else itertools.repeat(())
    for values, below in zip(by_field, node.fields, strict=False):
        if isinstance(below, int):
            yield below, values
        else:
            blank = below.type_()
            yield from _columns([blank if v is None else v for v in values], below)


def _count_colons(data: bytes) -> int:
    # Of those right behind a quote that no backslash stands before.
    values, count = as_array(data), 0
    for start in range(0, len(data), _PIECE_BYTES):
        piece = values[start : start + _PIECE_BYTES + 1]
        count += int(np.count_nonzero((piece[:-1] == ord('"')) & (piece[1:] == ord(":"))))
    return count - data.count(b'\\":') if b"\\" in data else count


def _count_object_lines(data: bytes) -> int | None:
    # The lines that are not empty; None if one does not begin and end with a brace, as an object of its own does.
    if not data:
        return 0
    values = as_array(data)
    ends = np.flatnonzero(values == NEWLINE)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends + 1])
    stops = np.append(ends, len(data))
    stops = stops - ((stops > starts) & (values[stops - 1] == RETURN))
    starts, stops = starts[stops > starts], stops[stops > starts]
    if (values[starts] != ord("{")).any() or (values[stops - 1] != ord("}")).any():
        return None
    return len(starts)


def _prefixes(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[: i + 1]) for i in range(len(parts)))


def _count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_count_keys(v) for v in value.values() if isinstance(v, dict | list))
    return sum(map(_count_keys, value)) if isinstance(value, list) else 0


def _usual_mode(feature: Feature) -> Mode:
    if feature.vocabulary is not None or feature.dtype.startswith(("date", "time", "decimal")):
        return "string"
    return "native"


def _shown_mode(feature: Feature, sample: Any) -> Mode:
    takes_text = feature.dtype in ("string", "bytes") or feature.dtype.startswith("decimal")
    if isinstance(sample, str):
        return "native" if feature.dtype in ("string", "bytes") else "string"
    return "written" if takes_text else "native"


def _python_type(feature: Feature, mode: Mode) -> tuple[Any, Any]:
    if mode == "written":
        return (msgspec.Raw, _ABSENT) if feature.is_scalar else (list[msgspec.Raw] | None, None)
    if mode == "string" or feature.dtype in ("string", "bytes"):
        value: Any = str
    elif feature.dtype == "bool":
        value = bool
    else:
        value = int | float if feature.dtype.startswith("float") else int
    return (value | None, None) if feature.is_scalar else (list[value | None] | None, None)


def _to_arrow(values: Sequence[Any], feature: Feature, mode: Mode) -> pa.Array:
    if mode == "written":
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
    return pa.array(values, type_ if feature.is_scalar else pa.list_(type_))


def _written(value: Any, feature: Feature, row: int) -> Any:
    if value is None or isinstance(value, list):
        return None if value is None else [_written(v, feature, row) for v in value]
    text = bytes(value)
    if text[:1] in (b'"', b"{", b"["):
        raise UnfitValueError(feature.name, row, "a number, as before", shown(text.decode("utf-8", "replace")))
    return None if text == b"null" else text.decode()
