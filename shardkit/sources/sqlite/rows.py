"""Rows of SQLite as Arrow columns. A value may be of another kind than its column, so each row is looked at."""

from __future__ import annotations

import base64
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError, DamagedFileError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.messages import shown
from shardkit.sources.base import (
    MAX_RAW_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    place,
    rejected_row,
    row_identities,
)
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.folder_columns import folder_column
from shardkit.sources.columns.partitions import partition_values
from shardkit.sources.columns.row_casting import CastRows, cast_rows
from shardkit.sources.files.expansion_limit import largest_expansion
from shardkit.sources.sqlite.database import is_too_big
from shardkit.sources.sqlite.tables import Kind, Rows, execute
from shardkit.units import format_size

Row = tuple[Any, ...]

# More at once are slower: they no longer lie in the processor's cache.
_MAX_BATCH_ROWS = 16_384
_MAX_EXACT = 2**53
_NULL = type(None)
_SHOWN_BYTES = 400
_CLASSES: dict[Kind, tuple[type, ...]] = {"integer": (int,), "real": (int, float), "text": (bytes,), "blob": (bytes,)}
_CORRECT = "Correct the row, change its type with --query and CAST, or leave such rows out with --on-bad-record"


class Chunk(NamedTuple):
    """Some rows, each behind its rowid if it has one.

    Attributes:
        rows: Values in the order of the columns; texts and blobs are bytes.
        num_bytes: Of all their values, about.
        is_too_large: Whether this is one row that is too large to be read, of which only the rowid is known.
    """

    rows: list[Row]
    num_bytes: int
    is_too_large: bool = False


def read_chunks(
    connection: sqlite3.Connection, rows: Rows, names: Sequence[str], split: InputSplit, file: RawFile, batch_bytes: int
) -> Iterator[Chunk]:
    """Yields rows of a split in chunks of about `batch_bytes`, whatever size its rows have.

    Args:
        names: SQL for the wanted columns.
        split: Its range of rowids counts where rows have some.

    Raises:
        DamagedFileError: If a query gives too much.
        sqlite3.Error: If the database is damaged, or a value without a rowid is too large.
    """
    if rows.key is not None:
        yield from _keyed_chunks(connection, rows, names, split, batch_bytes)
        return
    sql = rows.query or f"SELECT {', '.join(names)} FROM {rows.from_} {rows.order}"
    limit, num_bytes = largest_expansion(file.num_bytes, file.max_expansion), 0
    for chunk in _chunks(execute(connection, rows, sql, file), batch_bytes):
        num_bytes += chunk.num_bytes
        if rows.query is not None and num_bytes > limit:
            raise _endless(rows, file, limit)
        yield chunk


def _keyed_chunks(
    connection: sqlite3.Connection, rows: Rows, names: Sequence[str], split: InputSplit, batch_bytes: int
) -> Iterator[Chunk]:
    select = f"SELECT {', '.join((rows.key or '', *names))} FROM {rows.from_} WHERE {rows.key}"
    ordered = f"{select} BETWEEN ? AND ? ORDER BY {rows.key}"
    start, stop = split.start, split.stop
    while start < stop:
        last = None
        try:
            for chunk in _chunks(connection.execute(ordered, (start, stop - 1)), batch_bytes):
                last = chunk.rows[-1][0]
                yield chunk
            return
        except sqlite3.DataError as error:
            if not is_too_big(error):
                raise
        # SQLite does not name the row, and the rows of the open chunk are lost. So rows up to it are read one by one.
        start = start if last is None else last + 1
        while start < stop:
            found = connection.execute(
                f"SELECT {rows.key} FROM {rows.from_} WHERE {rows.key} BETWEEN ? AND ? ORDER BY {rows.key} LIMIT 1",
                (start, stop - 1),
            ).fetchone()
            if found is None:
                return
            start = found[0] + 1
            try:
                yield from _chunks(connection.execute(f"{select} = ?", found), batch_bytes)
            except sqlite3.DataError as error:
                if not is_too_big(error):
                    raise
                yield Chunk([found], 0, is_too_large=True)
                break


def _chunks(rows: Iterator[Row] | sqlite3.Cursor, batch_bytes: int) -> Iterator[Chunk]:
    held: list[Row] = []
    num_bytes = 0
    for row in rows:
        held.append(row)
        num_bytes += 8 * len(row)
        for value in row:
            if type(value) is bytes:
                num_bytes += len(value)
        if num_bytes >= batch_bytes or len(held) == _MAX_BATCH_ROWS:
            yield Chunk(held, num_bytes)
            held, num_bytes = [], 0
    if held:
        yield Chunk(held, num_bytes)


class ChunkFitter:
    """Makes rows of one split fit the features, and sets aside those that cannot fit.

    Args:
        options: Limits, and whether bad rows are set aside or end the reading.
    """

    def __init__(
        self, rows: Rows, split: InputSplit, files: Sequence[RawFile], features: Features, options: SourceOptions
    ) -> None:
        self._rows = rows
        self._split = split
        self._file = files[split.file_start]
        self._features = features
        self._options = options
        kinds = {c.name: c.kind for c in rows.columns}
        self._partitions = {n: v for n, v in partition_values(self._file).items() if n not in kinds}
        self.stored = tuple(f for f in features if f.name not in self._partitions)
        self._kinds = tuple(kinds[f.name] for f in self.stored)
        self._num_rows = 0
        self._last_key: int | None = None

    def fit(self, chunk: Chunk) -> RowBatch:
        """Returns the rows of a chunk.

        Raises:
            BadInputError: At a row that does not fit, unless bad rows are tolerated.
            DamagedFileError: If rowids do not rise.
        """
        columns = list(zip(*chunk.rows, strict=True))
        num_rows = len(chunk.rows)
        keys = None
        if self._rows.key is not None:
            keys = columns.pop(0)
            self._check_keys(keys)
        bad = {0: self._too_large(0, keys)} if chunk.is_too_large else self._odd_values(chunk, columns, keys)
        is_sound = np.ones(num_rows, dtype=np.bool_)
        is_sound[list(bad)] = False
        rows = np.flatnonzero(is_sound)
        cast = self._cast(columns or [()] * len(self.stored), is_sound)
        for position, error in cast.bad_values:
            row = int(rows[position])
            bad[row] = self._bad_value(row, keys, error.column, error.expected, error.got)
        if bad and not self._options.tolerates_bad_rows:
            raise bad[min(bad)]
        stored = dict(zip(cast.batch.schema.names, cast.batch.columns, strict=True))
        arrays = [
            stored[f.name]
            if f.name in stored
            else folder_column(self._partitions[f.name], f, self._file, len(cast.kept))
            for f in self._features
        ]
        rejected = tuple(
            rejected_row(
                bad[row],
                file_index=self._split.file_start,
                position=self._position(row, keys),
                first_byte=None,
                raw=self._as_json([c[row] for c in columns]),
            )
            for row in sorted(bad)
        )
        batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._features))
        identities = row_identities(self._file, self._split.start, self._num_rows, num_rows)[rows[cast.kept]]
        self._num_rows += num_rows
        return RowBatch(batch, identities, self._split.file_start, cast.num_rounded, rejected)

    def _odd_values(self, chunk: Chunk, columns: Sequence[Row], keys: Row | None) -> dict[int, BadInputError]:
        bad: dict[int, BadInputError] = {}
        limit = self._options.max_record_bytes
        if chunk.num_bytes > limit:
            for index, row in enumerate(chunk.rows):
                if sum(len(v) if type(v) is bytes else 8 for v in row) > limit:
                    bad[index] = self._too_large(index, keys)
        for feature, kind, values in zip(self.stored, self._kinds, columns, strict=True):
            allowed = _classes(feature, kind)
            found = set(map(type, values)) - {_NULL, *allowed}
            # Integers among reals must be ones that a real holds.
            is_checked = float in allowed and bytes not in allowed and int in set(map(type, values))
            if not found and not is_checked:
                continue
            for index, value in enumerate(values):
                is_wide = is_checked and type(value) is int and abs(value) > _MAX_EXACT
                if type(value) in found or is_wide:
                    expected = feature.describe_type()
                    bad.setdefault(index, self._bad_value(index, keys, feature.name, expected, _shown(value)))
        return bad

    def _cast(self, columns: Sequence[Row], is_sound: npt.NDArray[np.bool_]) -> CastRows:
        sound = columns if is_sound.all() else [tuple(itertools.compress(values, is_sound)) for values in columns]

        def take(start: int, stop: int) -> dict[str, pa.Array]:
            triples = zip(self.stored, self._kinds, sound, strict=True)
            return {feature.name: _array(values[start:stop], feature, kind) for feature, kind, values in triples}

        return cast_rows(take, int(is_sound.sum()), self.stored, tolerates_bad_rows=True)

    def _check_keys(self, keys: Row) -> None:
        values = np.array(keys, dtype=np.int64)
        is_risen = self._last_key is None or values[0] > self._last_key
        if not is_risen or (values[1:] <= values[:-1]).any():
            raise DamagedFileError(
                "the SQLite database is cut off or damaged",
                where=f"{place(self._file)}, {self._rows.title}",
                why="its rowids do not rise",
            )
        self._last_key = int(values[-1])

    def _position(self, row: int, keys: Row | None) -> str:
        return f"row {self._num_rows + row + 1}" if keys is None else f"rowid {keys[row]}"

    def _where(self, row: int, keys: Row | None) -> str:
        return f"{place(self._file)}, {self._rows.title}, {self._position(row, keys)}"

    def _too_large(self, row: int, keys: Row | None) -> BadInputError:
        return BadInputError(
            "a row is too large",
            where=self._where(row, keys),
            why=f"it has more than the {format_size(self._options.max_record_bytes)} allowed",
            next_step="Allow more with --max-record-size, or leave such rows out with --on-bad-record",
        )

    def _bad_value(self, row: int, keys: Row | None, column: str, expected: str, got: str) -> BadInputError:
        return BadInputError(
            f"column {shown(column)} does not fit",
            where=self._where(row, keys),
            why=f"expected {expected}, got {got}",
            next_step=_CORRECT,
        )

    def _as_json(self, values: Sequence[Any]) -> bytes:
        return msgspec.json.encode({f.name: _plain(v) for f, v in zip(self.stored, values, strict=False)})


def _classes(feature: Feature, kind: Kind) -> tuple[type, ...]:
    if kind != "open":
        return _CLASSES[kind]
    if feature.dtype.startswith("float"):
        return (int, float)
    if feature.dtype in ("string", "bytes"):
        return (bytes,)
    return (int,) if _is_plain_integer(feature) else (int, float, bytes)


def _is_plain_integer(feature: Feature) -> bool:
    return feature.vocabulary is None and (feature.dtype == "bool" or feature.dtype.startswith(("int", "uint")))


def _array(values: Row, feature: Feature, kind: Kind) -> pa.Array:
    """Returns values of one kind as a column.

    Raises:
        BadValueError: At the first one that should be text and is not UTF-8.
    """
    allowed = _classes(feature, kind)
    if allowed == (int,):
        return pa.array(values, pa.int64())
    if allowed == (int, float):
        return pa.array(values, pa.float64())
    if allowed != (bytes,):
        # Declared as something that SQLite has not, such as a date: read from text, as in CSV.
        values = tuple(v if v is None or type(v) is bytes else str(v).encode() for v in values)
    raw = pa.array(values, pa.binary())
    if feature.dtype == "bytes":
        return raw
    texts = raw.view(pa.string())
    if feature.dtype == "string" and feature.vocabulary is None:
        return texts
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(values):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                raise BadValueError(feature.name, row, feature.describe_type(), _shown(value)) from error
    return texts


def _shown(value: Any) -> str:
    if type(value) is not bytes:
        return shown(value)
    try:
        return f"the text {shown(value[:_SHOWN_BYTES].decode())}"
    except UnicodeDecodeError:
        return f"the blob {shown(value[:_SHOWN_BYTES])}"


def _plain(value: Any) -> Any:
    if type(value) is float and not np.isfinite(value):
        return str(value)
    if type(value) is not bytes:
        return value
    try:
        return value[:MAX_RAW_BYTES].decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value[:MAX_RAW_BYTES]).decode()}


def _endless(rows: Rows, file: RawFile, limit: int) -> DamagedFileError:
    return DamagedFileError(
        f"{rows.title} gives too much",
        where=place(file),
        why=f"more than {format_size(limit)}, {file.max_expansion} times the size of the database",
        next_step="If that is right, allow more with --max-expansion",
    )
