"""Lines of JSON objects to Arrow columns of exactly the features' types.

msgspec decodes into structs that have a field for each feature, so that a value of another type, or a key that is no
feature, is an error and not silently dropped. Every column takes values of one JSON type: that of its feature, or,
where a schema asks for another dtype, strings to be parsed and numbers to be kept as they are written.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.messages import shown
from shardkit.sources.columns.casting import BadValueError, CastColumn, cast_column
from shardkit.sources.columns.halving import parse_parts
from shardkit.sources.json.keys import (
    OBJECTS,
    count_keys,
    find_keys,
    repeated_key,
    spelled_out,
    with_last_values,
    with_nulls,
)
from shardkit.sources.json.type_inference import why_no_name
from shardkit.sources.json.values import ABSENT, Mode, python_type, to_arrow, usual_mode
from shardkit.sources.text.blocks import NEWLINE, RETURN, as_array
from shardkit.units import KiB

Parsed = tuple[pa.RecordBatch, dict[str, int]]

# Errors of decoding or conversion at a line that does not fit.
LINE_ERRORS = (
    msgspec.DecodeError,
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    OverflowError,
    RecursionError,
    UnicodeError,
    BadValueError,
)

_TREE = dict[str, Any]
# Lines that become Python objects at a time. The objects stay in the processor's cache until they are columns.
_PIECE_BYTES = 256 * KiB


class _Node(NamedTuple):
    # One object: its type, and for each field the position of its feature, the object that it holds, or None if it is
    # dropped.
    type_: type[msgspec.Struct]
    fields: list[int | _Node | None]


class RowDecoder:
    """Decodes blocks of lines.

    Args:
        features: The columns; a `/` in a name stands for nesting.
        modes: How columns are written, as `written_modes` has it; the usual ones may be left out.
        is_strict: Whether a key that is no feature is an error.
        allows_duplicate_keys: Whether an object may hold a key twice; the last value counts.
        dropped: Keys that are no features and may hold anything.
    """

    def __init__(
        self,
        features: Features,
        modes: Mapping[str, Mode] | None = None,
        *,
        is_strict: bool = True,
        allows_duplicate_keys: bool = False,
        dropped: tuple[str, ...] = (),
    ) -> None:
        self._features = features
        self._modes = modes or {}
        self._is_strict = is_strict
        self._allows_duplicate_keys = allows_duplicate_keys
        self._dropped = dropped
        self._num_keys = len({p for f in features for p in _prefixes(f.name)})
        self._build()

    def decode(self, data: bytes) -> Parsed:
        """Returns the rows of some lines, and per column how many values were rounded.

        Raises:
            LINE_ERRORS: If a line does not fit.
        """
        pieces: list[list[pa.Array]] = [[] for _ in self._features]
        for start, stop in whole_lines(data):
            piece = data[start:stop]
            try:
                rows = _decode_lines(self._decoder, piece)
            except msgspec.DecodeError:
                spelled = spelled_out(piece)
                if spelled is None:
                    raise
                rows = _decode_lines(self._decoder_of_spelled, spelled)
            self._add_columns(rows, pieces)
        return self._cast_pieces(pieces)

    def decode_line(self, line: bytes) -> msgspec.Struct:
        """Returns the object of one line, for `fit`.

        Raises:
            LINE_ERRORS: If it is none, or holds a key or a kind of value that it may not.
        """
        row: msgspec.Struct
        try:
            row = self._decoder.decode(line)
        except msgspec.ValidationError:
            # Where a key stands twice, the value that does not count may not fit.
            if not self._allows_duplicate_keys or repeated_key(line) is None:
                raise
            row = self._decoder.decode(with_last_values(line))
        except msgspec.DecodeError:
            spelled = spelled_out(line)
            if spelled is None:
                raise
            row = self._decoder_of_spelled.decode(spelled)
        return row

    @functools.cached_property
    def _decoder_of_spelled(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._node(self._tree, takes_not_finite=True).type_)

    def fit(self, rows: Sequence[msgspec.Struct]) -> Parsed:
        """Returns objects of single lines as `decode` does. Raises LINE_ERRORS if a value does not fit."""
        pieces: list[list[pa.Array]] = [[] for _ in self._features]
        self._add_columns(rows, pieces)
        return self._cast_pieces(pieces)

    def cast_most(self, rows: Sequence[msgspec.Struct]) -> tuple[Parsed, set[int]]:
        """Returns those objects of single lines that fit, as `decode` does, and the positions of the others."""
        columns = list(_columns(rows, self._root))
        cast: dict[int, CastColumn] = {}
        bad_values: set[int] = set()
        for position, values in columns:
            cast_some = functools.partial(self._cast_values, position, values)
            for start, stop, found in parse_parts(cast_some, len(values), LINE_ERRORS):
                if not isinstance(found, CastColumn):
                    bad_values.add(start)
                elif stop - start == len(values):
                    cast[position] = found
        if bad_values:
            is_good = np.ones(len(rows), dtype=np.bool_)
            is_good[list(bad_values)] = False
            mask = pa.array(is_good)
            for position, values in columns:
                column = cast.get(position)
                if column is not None and not column.num_rounded:
                    cast[position] = CastColumn(column.column.filter(mask))
                else:
                    cast[position] = self._cast_values(position, list(itertools.compress(values, is_good)))
        return self._batch([cast[position] for position in range(len(self._features))]), bad_values

    def may_repeat_keys(self, data: bytes, batch: pa.RecordBatch) -> bool:
        """Whether some object that was decoded may have held a key twice, though it may not, and the last value counts.

        Keys are counted in the text, and compared with what an object with all keys must have, or else with what plain
        decoding keeps.
        """
        if self._allows_duplicate_keys:
            return False
        num_written = len(find_keys(data))
        has_nulls = any(column.null_count for column in batch.columns)
        if not has_nulls and not self._dropped and num_written == self._num_keys * len(batch):
            return False
        return num_written != sum(map(count_keys, OBJECTS.decode_lines(with_nulls(data))))

    def repeated_keys(self, lines: Sequence[bytes], batch: pa.RecordBatch) -> dict[int, str]:
        """Returns a key that is held twice but may not be, by the position of the line, for all lines with such a key.

        Args:
            lines: One object each, all of which fit.
            batch: What they were decoded to.
        """
        if self._allows_duplicate_keys:
            return {}
        data = b"\n".join(lines)
        line_of_key = np.searchsorted(np.flatnonzero(as_array(data) == NEWLINE), find_keys(data))
        num_written = np.bincount(line_of_key, minlength=len(lines))
        is_full = np.full(len(lines), not self._dropped)
        for column in batch.columns:
            if column.null_count:
                is_full &= column.is_valid().to_numpy(zero_copy_only=False)
        suspects = np.flatnonzero(~is_full | (num_written != self._num_keys)).tolist()
        found = {position: repeated_key(lines[position], int(num_written[position])) for position in suspects}
        return {position: key for position, key in found.items() if key is not None}

    def _build(self) -> None:
        tree: _TREE = {}
        for position, feature in enumerate(self._features):
            *parents, leaf = feature.name.split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = (position, feature)
        for name in self._dropped:
            _add_dropped(tree, name)
        self._tree = tree
        self._root = self._node(tree)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._root.type_)

    def _node(self, tree: _TREE, *, takes_not_finite: bool = False) -> _Node:
        fields: list[tuple[str, Any, Any]] = []
        children: list[int | _Node | None] = []
        names: dict[str, str] = {}
        for number, (key, below) in enumerate(tree.items()):
            is_dropped = below is None
            if why := why_no_name(key.replace("/", "") if is_dropped else key):
                raise UsageError(
                    f"no JSON key can be called {shown(key)}",
                    why=why,
                    next_step="Take the column out of the --schema file, or leave it out with --drop-columns",
                )
            field = f"f{number}"
            names[field] = key
            if is_dropped:
                fields.append((field, msgspec.Raw, ABSENT))
                children.append(None)
                continue
            if isinstance(below, dict):
                node = self._node(below, takes_not_finite=takes_not_finite)
                fields.append((field, node.type_ | None, None))
                children.append(node)
                continue
            position, feature = below
            fields.append((field, *python_type(feature, self._mode(feature), takes_not_finite)))
            children.append(position)
        # JSON has no cycles for the garbage collector to look for.
        type_ = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=self._is_strict, gc=False)
        return _Node(type_, children)

    def _mode(self, feature: Feature) -> Mode:
        return self._modes.get(feature.name, usual_mode(feature))

    def _add_columns(self, rows: Sequence[msgspec.Struct], pieces: list[list[pa.Array]]) -> None:
        for position, values in _columns(rows, self._root):
            feature = self._features[position]
            pieces[position].append(to_arrow(values, feature, self._mode(feature)))

    def _cast_pieces(self, pieces: list[list[pa.Array]]) -> Parsed:
        columns = []
        for feature, arrays in zip(self._features, pieces, strict=True):
            columns.append(cast_column(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), feature))
        return self._batch(columns)

    def _batch(self, columns: Sequence[CastColumn]) -> Parsed:
        arrays = [cast.column for cast in columns]
        rounded = {f.name: c.num_rounded for f, c in zip(self._features, columns, strict=True) if c.num_rounded}
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._features)), rounded

    def _cast_values(self, position: int, values: Sequence[Any], start: int = 0, stop: int | None = None) -> CastColumn:
        feature = self._features[position]
        return cast_column(to_arrow(values[start:stop], feature, self._mode(feature)), feature)


def try_decode(decoder: RowDecoder, data: bytes) -> Parsed | None:
    """Returns the rows of some lines; None if something may be wrong with one of them."""
    try:
        parsed = decoder.decode(data)
        return None if decoder.may_repeat_keys(data, parsed[0]) else parsed
    except LINE_ERRORS:
        return None


def _decode_lines(decoder: msgspec.json.Decoder[Any], data: bytes) -> list[Any]:
    rows = decoder.decode_lines(data)
    if len(rows) != _count_object_lines(data):
        # Objects share or span lines, or have spaces around them.
        return [decoder.decode(line) for line in data.split(b"\n") if line.strip()]
    return rows


def whole_lines(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the bounds of pieces of some whole lines each, of the size in which they are decoded; at least one."""
    start = 0
    while len(data) - start > _PIECE_BYTES:
        stop = data.rfind(b"\n", start, start + _PIECE_BYTES) + 1 or data.find(b"\n", start + _PIECE_BYTES) + 1
        if not stop:
            break
        yield start, stop
        start = stop
    if start < len(data) or not start:
        yield start, len(data)


def _columns(rows: Sequence[msgspec.Struct], node: _Node) -> Iterator[tuple[int, Sequence[Any]]]:
    # The values of each feature, by its position; all of them absent where the object around them is.
    by_field = zip(*map(msgspec.structs.astuple, rows), strict=True) if rows else itertools.repeat(())
    for values, below in zip(by_field, node.fields, strict=False):
        if isinstance(below, int):
            yield below, values
        elif below is not None:
            blank = below.type_()
            yield from _columns([blank if v is None else v for v in values], below)


def _add_dropped(tree: _TREE, name: str) -> None:
    # The key itself, and where a "/" may stand for nesting, the key in its object.
    tree.setdefault(name, None)
    *parents, leaf = name.split("/")
    node: Any = tree
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.setdefault(leaf, None)


def _count_object_lines(data: bytes) -> int | None:
    # The lines that are not empty; None if one does not begin and end with a brace, as a single object does.
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
