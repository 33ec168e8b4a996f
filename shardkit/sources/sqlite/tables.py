"""What an SQLite database holds: tables and views, their columns, and the types that their values have."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.messages import shown
from shardkit.runtime.bounded import bounded
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.columnar.arrow_columns import Column
from shardkit.sources.files.expansion_limit import largest_expansion
from shardkit.sources.sqlite.database import is_damage, only_queries, quoted

Kind = Literal["integer", "real", "text", "blob", "open"]

_INTEGER = re.compile(
    r"((un)?signed )?(tiny|small|medium|big ?)?int(eger)?[248]?( ?\([0-9, ]*\))?( (un)?signed)?", re.IGNORECASE
)
_ROWID_NAMES = ("_rowid_", "rowid", "oid")
_NAMED_TABLES = 20
_FETCHED_ROWS = 64
_TYPES = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}


class StoredColumn(NamedTuple):
    """A column of a table or of a query.

    Attributes:
        name: As declared.
        kind: What its values are by its declaration; `open` where only the values tell.
        nullable: Whether a row may lack it, by its declaration.
    """

    name: str
    kind: Kind
    nullable: bool


class Rows(NamedTuple):
    """Rows that can be asked for: those of a table, or of a query.

    Attributes:
        columns: In order.
        from_: SQL for them, to stand behind FROM as `q`, with columns `c0`, `c1` and so on; or a table as `q`.
        names: SQL for the columns.
        order: SQL behind FROM that makes the order sure; empty where the rows have one by themselves.
        key: SQL for the rowid; None where rows have none.
        query: The query; None for a table.
        table: Its name; None for a query.
    """

    columns: tuple[StoredColumn, ...]
    from_: str
    names: tuple[str, ...]
    order: str = ""
    key: str | None = None
    query: str | None = None
    table: str | None = None

    @property
    def title(self) -> str:
        """What a message calls them."""
        return "the query" if self.table is None else f"table {shown(self.table)}"


def find_rows(connection: sqlite3.Connection, file: RawFile, options: SourceOptions) -> Rows:
    """Returns the rows that the options ask for: a query's, a table's or view's, or those of the only table.

    Raises:
        UsageError: If there is no such table, or several to choose from, or the query is none.
    """
    if options.query is not None:
        return _query_rows(connection, file, options.query)
    tables, views = _list(connection)
    if options.table in views:
        found = _query_rows(connection, file, f"SELECT * FROM main.{quoted(options.table)}")
        return found._replace(table=options.table)
    if options.table is not None:
        chosen = next((t for t in tables if t.lower() == options.table.lower()), None)
    else:
        chosen = tables[0] if len(tables) == 1 else None
    if chosen is None:
        raise _no_table(file, options.table, tables, views)
    return _table_rows(connection, chosen)


def value_columns(connection: sqlite3.Connection, rows: Rows, file: RawFile) -> tuple[Column, ...]:
    """Returns the columns with their types; where no declaration fixes a type, all values decide.

    Integers and reals together are reals; of other kinds the one that most rows have counts.
    """
    is_query = rows.query is not None
    open_names = [n for c, n in zip(rows.columns, rows.names, strict=True) if c.kind == "open"]
    kinds = _kinds(connection, rows, open_names, file) if open_names else {}
    found = []
    for column, name in zip(rows.columns, rows.names, strict=True):
        seen = kinds.get(name, frozenset())
        kind = column.kind if column.kind != "open" else _choose(connection, rows, name, seen - {"null"}, file)
        nullable = "null" in seen if is_query else column.nullable
        found.append(Column(name=column.name, type_=_TYPES.get(kind, pa.null()), nullable=nullable))
    return tuple(found)


def kind_of(declared: str) -> Kind:
    """Returns the kind of values that a declared type stands for, `open` if that is not sure.

    SQLite takes any type with "int" in it, such as INTERVAL, for an integer, and keeps what is none.
    Source: https://www.sqlite.org/datatype3.html, section 3.1
    """
    name = declared.strip().upper()
    if "INT" in name:
        return "integer" if _INTEGER.fullmatch(name) else "open"
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in name:
        return "blob"
    return "real" if any(word in name for word in ("REAL", "FLOA", "DOUB")) else "open"


@contextmanager
def query_errors(rows: Rows, file: RawFile) -> Iterator[None]:
    """Tells a query that does not work from a database that is damaged.

    Raises:
        UsageError: If the query is at fault.
    """
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        if rows.query is None or is_damage(error):
            raise
        raise _bad_query(file, rows.title, str(error)) from error


def execute(connection: sqlite3.Connection, rows: Rows, sql: str, file: RawFile) -> Iterator[tuple[object, ...]]:
    """Yields the rows that a statement gives."""
    if rows.query is None:
        yield from connection.execute(sql)
        return
    with query_errors(rows, file), only_queries(connection):
        what = f"{rows.title} of {place(file)}"
        with bounded(what):
            cursor = connection.execute(sql)
            found = cursor.fetchmany(_FETCHED_ROWS)
        while found:
            yield from found
            with bounded(what):
                found = cursor.fetchmany(_FETCHED_ROWS)


def _list(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
    found = connection.execute("SELECT type, name, sql FROM main.sqlite_master WHERE type IN ('table', 'view')")
    tables, views = [], []
    for kind, name, sql in found:
        text = name.decode()
        if kind == b"view":
            views.append(text)
        elif not text.lower().startswith("sqlite_") and not re.match(rb"\s*create\s+virtual", sql or b"", re.I):
            tables.append(text)
    return sorted(tables), sorted(views)


def _table_rows(connection: sqlite3.Connection, name: str) -> Rows:
    from_ = f"main.{quoted(name)} AS q NOT INDEXED"
    described = connection.execute(
        'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?, ?) ORDER BY cid', (name, "main")
    ).fetchall()
    indexes = connection.execute("SELECT origin FROM pragma_index_list(?, ?)", (name, "main")).fetchall()
    # A column that is the rowid under another name: the only kind of primary key without an index.
    primary = sorted((pk, column.decode()) for column, _, _, pk, _ in described if pk)
    alias = primary[0][1] if len(primary) == 1 and (b"pk",) not in indexes else None
    columns = tuple(
        StoredColumn(column.decode(), kind_of((type_ or b"").decode()), not notnull and column.decode() != alias)
        for column, type_, notnull, _, hidden in described
        if hidden != 1
    )
    names = tuple(f"q.{quoted(c.name)}" for c in columns)
    key = None if alias is None else f"q.{quoted(alias)}"
    key = key or _rowid_name(connection, from_, {c.name.lower() for c in columns})
    order = "" if key is not None else ", ".join(f"q.{quoted(column)}" for _, column in primary)
    return Rows(columns, from_, names, order and f"ORDER BY {order}", key, None, name)


def _rowid_name(connection: sqlite3.Connection, from_: str, names: set[str]) -> str | None:
    free = next((n for n in _ROWID_NAMES if n not in names), None)
    if free is None:
        return None
    try:
        connection.execute(f"SELECT q.{free} FROM {from_} LIMIT 0")
    except sqlite3.OperationalError as error:
        if is_damage(error):
            raise
        return None
    return f"q.{free}"


def _query_rows(connection: sqlite3.Connection, file: RawFile, query: str) -> Rows:
    text = query.strip().rstrip(";").rstrip()
    rows = Rows((), "", (), query=text)
    with query_errors(rows, file), only_queries(connection):
        # In brackets only a SELECT is right.
        described = connection.execute(f"SELECT * FROM (\n{text}\n) LIMIT 0").description or ()
    names = [d[0] for d in described]
    for name in names:
        first, _, number = name.rpartition(":")
        if number.isdecimal() and first in names:
            raise _bad_query(file, rows.title, f"it gives several columns {shown(first)}; tell them apart with AS")
    labels = tuple(f"c{i}" for i in range(len(names)))
    from_ = f"(WITH w({', '.join(labels)}) AS (\n{text}\n) SELECT * FROM w) AS q"
    return rows._replace(
        columns=tuple(StoredColumn(n, "open", True) for n in names), from_=from_, names=tuple(f"q.{n}" for n in labels)
    )


def _kinds(
    connection: sqlite3.Connection, rows: Rows, names: Sequence[str], file: RawFile
) -> dict[str, frozenset[str]]:
    # A query that never ends must not keep the planning.
    most = largest_expansion(file.num_bytes, file.max_expansion)
    from_ = rows.from_ if rows.query is None else f"(SELECT * FROM {rows.from_} LIMIT {most}) AS q"
    wanted = ", ".join(f"typeof({n})" for n in names)
    seen: list[set[str]] = [set() for _ in names]
    for combination in execute(connection, rows, f"SELECT DISTINCT {wanted} FROM {from_}", file):
        for kinds, kind in zip(seen, combination, strict=True):
            kinds.add(str(kind, "ascii") if isinstance(kind, bytes) else str(kind))
    return {name: frozenset(kinds) for name, kinds in zip(names, seen, strict=True)}


def _choose(connection: sqlite3.Connection, rows: Rows, name: str, kinds: frozenset[str], file: RawFile) -> str:
    if len(kinds) < 2:
        return next(iter(kinds), "null")
    if kinds == {"integer", "real"}:
        return "real"
    counts: dict[str, int] = {}
    for kind, count in execute(connection, rows, f"SELECT typeof({name}), count(*) FROM {rows.from_} GROUP BY 1", file):
        text = str(kind, "ascii") if isinstance(kind, bytes) else str(kind)
        if text != "null" and isinstance(count, int):
            counts[text] = count
    numbers = counts.pop("integer", 0) + counts.get("real", 0)
    if numbers:
        counts["real" if "real" in kinds else "integer"] = numbers
    return max(sorted(counts), key=lambda k: counts[k])


def _no_table(file: RawFile, asked: str | None, tables: list[str], views: list[str]) -> UsageError:
    known = [shown(t) for t in (*tables, *views)]
    more = f" and {len(known) - _NAMED_TABLES} more" if len(known) > _NAMED_TABLES else ""
    names = ", ".join(known[:_NAMED_TABLES]) + more
    if not known:
        return UsageError(
            "the database has no tables",
            where=place(file),
            next_step="Name a database with tables, or leave it out with --exclude GLOB",
        )
    if asked is not None:
        return UsageError(f"there is no table {shown(asked)}", where=place(file), next_step=f"It has {names}")
    what = "several tables" if tables else "views only"
    return UsageError(
        f"the database has {what}", where=place(file), why=names, next_step="Name one with --table, or use --query"
    )


def _bad_query(file: RawFile, title: str, why: str) -> UsageError:
    return UsageError(
        f"{title} does not work",
        where=place(file),
        why=why,
        next_step="It must be one SELECT that gives the same rows each time, in SQLite's own SQL",
    )
