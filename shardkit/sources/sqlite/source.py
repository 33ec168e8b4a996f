"""SQLite databases: a table, or the rows of a query. Splits are ranges of rowids."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import msgspec

from shardkit.features import Features
from shardkit.messages import printable
from shardkit.sources.base import (
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    SourceSettings,
    choose_split_bytes,
    numbered,
)
from shardkit.sources.columnar.arrow_columns import Column
from shardkit.sources.columnar.schemas import check_columns, infer_features
from shardkit.sources.files.streams import guard_unchanged
from shardkit.sources.sqlite.database import MAGIC, check_at_rest, check_structure, is_direct, open_database
from shardkit.sources.sqlite.rows import ChunkFitter, read_chunks
from shardkit.sources.sqlite.tables import Rows, find_rows, value_columns

_COMPANIONS = ("-wal", "-shm", "-journal")
# First bytes of a log, a journal, a finished journal, and the index of a log.
_COMPANION_HEADS = (b"\x37\x7f\x06", b"\xd9\xd5\x05\xf9", bytes(8), b"\x18\xe2\x2d\0", b"\0\x2d\xe2\x18")


@dataclass(frozen=True)
class SqliteSource(SourceSettings):
    """SQLite databases."""

    format: str = "sqlite"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file starts like a database, or like a file that SQLite puts beside one."""
        return head.startswith(MAGIC) or (_companion_of(name) is not None and head.startswith(_COMPANION_HEADS))

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns of the table, or of the query.

        Integers are int64, reals float64, texts string, blobs bytes. What no declaration fixes, as with DATE, NUMERIC
        and all of a query, is what the values are.

        Raises:
            UsageError: If tables differ, there are several and none is named, the query does not work, or what was
                written lies in a log beside the database.
        """
        databases = tuple(file for _, file in _databases(files))
        if not databases:
            return infer_features((), lambda _: (), options)
        return infer_features(databases, lambda file: _inspect(file, options)[1], options)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on the table where none was named, and on the order of a query."""
        if options.query is not None:
            return ("the query is read as one part, in the order that it gives; ORDER BY makes that order sure",)
        databases = _databases(files)
        notes = tuple(f"{printable(file.name)} lies beside a database and holds no rows" for file in _companions(files))
        if options.table is None and databases:
            rows, _ = _inspect(databases[0][1], options)
            notes = (f"{rows.title} is read, the only one there is", *notes)
        return notes

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts tables into ranges of rowids with equally many rows; a table without rowids is one split."""
        return numbered(chain.from_iterable(self._cut(i, f, options) for i, f in _databases(files)))

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split, by their rowids; those of a table without them by its primary key.

        Raises:
            DamagedFileError: If the database is damaged, or a query gives too much.
        """
        file = files[split.file_start]
        with guard_unchanged(file), open_database(file, options) as connection:
            rows = find_rows(connection, file, options)
            columns = [Column(name=c.name, type_=None, nullable=True) for c in rows.columns]
            check_columns(columns, features, file, options)
            fitter = ChunkFitter(rows, split, files, features, options)
            sql_names = dict(zip((c.name for c in rows.columns), rows.names, strict=True))
            names = [sql_names[f.name] for f in fitter.stored]
            for chunk in read_chunks(connection, rows, names, split, file, self.batch_bytes):
                yield fitter.fit(chunk)

    def _cut(self, index: int, file: RawFile, options: SourceOptions) -> Iterator[InputSplit]:
        rows, _ = _inspect(file, options)
        whole = InputSplit(index=0, file_start=index, file_stop=index + 1, num_bytes=file.num_bytes)
        if rows.key is None:
            yield whole
            return
        wanted = self.split_bytes or choose_split_bytes(file.num_bytes)
        num_parts = -(-file.num_bytes // wanted) if is_direct(file) else 1
        with open_database(file, options) as connection:
            starts = _starts(connection, rows, num_parts)
        sizes = [file.num_bytes * n // max(1, len(starts) - 1) for n in range(len(starts))]
        for (start, stop), (before, after) in zip(pairwise(starts), pairwise(sizes), strict=True):
            yield msgspec.structs.replace(whole, start=start, stop=stop, num_bytes=after - before)


@functools.lru_cache(maxsize=256)
def _inspect(file: RawFile, options: SourceOptions) -> tuple[Rows, tuple[Column, ...]]:
    # Twice or three times asked for while planning, and it reads all of the table. The version is part of the file.
    check_at_rest(file)
    with guard_unchanged(file), open_database(file, options) as connection:
        rows = find_rows(connection, file, options)
        check_structure(connection, file, rows.table if rows.query is None else None)
        return rows, value_columns(connection, rows, file)


def _starts(connection: sqlite3.Connection, rows: Rows, num_parts: int) -> list[int]:
    """Returns the rowids at which parts with equally many rows start, and behind them the end of the last."""
    from_ = f"FROM {rows.from_}"
    (num_rows,) = connection.execute(f"SELECT count(*) {from_}").fetchone()
    if not num_rows:
        return []
    step = -(-num_rows // max(1, min(num_parts, num_rows)))
    next_ = f"SELECT {rows.key} {from_} WHERE {rows.key} >= ? ORDER BY {rows.key} LIMIT 1 OFFSET ?"
    starts: list[int] = []
    found = connection.execute(next_, (-(2**63), 0)).fetchone()
    while found is not None:
        starts.append(found[0])
        found = connection.execute(next_, (found[0], step)).fetchone()
    (last,) = connection.execute(f"SELECT max({rows.key}) {from_}").fetchone()
    return [*starts, last + 1]


def _databases(files: tuple[RawFile, ...]) -> list[tuple[int, RawFile]]:
    beside = {f.name for f in _companions(files)}
    return [(i, f) for i, f in enumerate(files) if f.num_bytes and f.name not in beside]


def _companions(files: tuple[RawFile, ...]) -> list[RawFile]:
    names = {f.name for f in files}
    return [f for f in files if f.num_bytes and _companion_of(f.name) in names]


def _companion_of(name: str) -> str | None:
    # The name of the database that a file lies beside.
    return next((name.removesuffix(s) for s in _COMPANIONS if name.endswith(s)), None)
