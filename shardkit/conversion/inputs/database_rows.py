"""Rows of a database server, read once into a file beside the spool.

A server gives rows in any order and changes while it is read; a conversion that was cut off could never go on. So
one statement, which sees one state of the database, is streamed to an Arrow file, and that file is converted.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import xxhash

from shardkit.conversion.plan import Plan
from shardkit.conversion.request import ConvertRequest
from shardkit.errors import StorageError, UsageError, missing_extra
from shardkit.runtime.bounded import bounded
from shardkit.runtime.interruptible import interruptible
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link

ROWS_FOLDER = "queries"
_STATEMENT = "the statement on the database server"
_SERVER = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_FOREIGN = re.compile(
    r"(mysql|mariadb|mssql|sqlserver|oracle|snowflake|redshift|clickhouse|mongodb|bigquery|duckdb|trino)"
    r"(\+\w+)?://",
    re.IGNORECASE,
)
_READ_ONLY = "SET TRANSACTION READ ONLY"
# Ends a query whose cancellation came too early, once this process has ended.
_END_WITH_CLIENT = "SET client_connection_check_interval = '1s'"
_EXPORT = (
    "Export the rows to Parquet or CSV first, such as with the COPY of the server, or with DuckDB: "
    "COPY (SELECT ...) TO 'rows.parquet'"
)


class ServerRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a server in a file.

    Attributes:
        options: What the user asks for, with the file in place of the server.
    """

    options: ConvertRequest
    notes: tuple[str, ...]


def names_server(text: str) -> bool:
    """Whether an input names a database server."""
    return _SERVER.match(text) is not None or _FOREIGN.match(text) is not None


@contextlib.contextmanager
def server_rows(options: ConvertRequest, work_root: str) -> Iterator[ServerRows | None]:
    """Reads the rows of a server, if the inputs name one; None if not.

    What an attempt that began has read already is taken again. What is read newly is removed if an error is raised.

    Raises:
        UsageError: If the request is wrong, or the query does not work.
        StorageError: If the server fails.
        OutOfSpaceError: If the rows do not fit on the disk.
        UnsafeError: If their folder is a link, as they are removed in the end.
    """
    urls = [i for i in options.inputs if _SERVER.match(i)]
    _refuse_foreign(options.inputs)
    if not urls:
        yield None
        return
    if len(options.inputs) > 1:
        raise UsageError("a database server is an input by itself", next_step="Convert its rows alone")
    if options.source.include or options.source.exclude:
        raise UsageError("--include and --exclude have no meaning for a database server", next_step="Drop them")
    refuse_link(work_root, ROWS_FOLDER)
    statement = _statement(options)
    path = storage.local_path(work_root) / ROWS_FOLDER / _name(urls[0], statement)
    is_new = not path.exists()
    source = msgspec.structs.replace(options.source, table=None, query=None, format="arrow")
    readable = msgspec.structs.replace(options, inputs=(str(path),), source=source)
    try:
        if is_new:
            _read(urls[0], statement, path)
        yield ServerRows(options=readable, notes=(_note(path, is_new),))
    except BaseException:
        if is_new:
            _remove(path)
            if storage.is_local(options.destination):
                with contextlib.suppress(OSError):
                    storage.local_path(options.destination).rmdir()
        raise


def holds_server_rows(path: str, work_root: str) -> bool:
    """Whether `server_rows` made a file."""
    return storage.local_path(work_root) / ROWS_FOLDER in Path(path).parents


def forget_server_rows(plan: Plan) -> None:
    """Removes the rows of a server that a plan was made of."""
    # There may be a million files of another kind.
    prefix = f"{plan.work_path().parent / ROWS_FOLDER}/"
    for file in plan.files:
        if file.path.startswith(prefix):
            _remove(Path(file.path))


def _note(path: Path, is_new: bool) -> str:
    if is_new:
        return "the server's rows were read once, in the order in which it gave them; ORDER BY makes that order sure"
    read_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(path.stat().st_mtime))
    return f"going on with the rows that were read at {read_at}; remove {path} to read them anew"


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
        path.parent.parent.rmdir()


def _refuse_foreign(inputs: tuple[str, ...]) -> None:
    foreign = next((i for i in inputs if _FOREIGN.match(i)), None)
    if foreign is not None:
        raise UsageError(
            f"{foreign.partition(':')[0]} databases are not read", where=storage.redact(foreign), next_step=_EXPORT
        )
    if any(i.lower().startswith("sqlite:") for i in inputs):
        raise UsageError("an SQLite database is named by its file", next_step="Leave out what stands before the path")


def _statement(options: ConvertRequest) -> str:
    query, table = options.source.query, options.source.table
    if query is not None and table is not None:
        raise UsageError("--table and --query exclude each other", next_step="Drop one of them")
    if query is not None:
        return query.strip().rstrip(";").rstrip()
    if table is None:
        raise UsageError(
            "it is not said what to read from the database",
            where=storage.redact(options.inputs[0]),
            next_step='Add --table NAME (or SCHEMA.NAME), or --query "SELECT ... ORDER BY ..."',
        )
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
    return f"SELECT * FROM {quoted}"


def _name(url: str, statement: str) -> str:
    # Neither user nor password: they may change, and the name is written down.
    _, _, rest = url.partition("://")
    place, _, parameters = rest.partition("?")
    _, _, server = place.rpartition("@")
    database = server.partition("/")[2]
    others = [p for p in parameters.split("&") if "password" not in p.lower() and not p.lower().startswith("user=")]
    digest = xxhash.xxh3_64_hexdigest("\0".join((server, *others, statement)).encode())
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', database)[:64] or 'postgresql'}-{digest}.arrow"


def _read(url: str, statement: str, path: Path) -> None:
    try:
        from adbc_driver_manager import Error
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise missing_extra("postgres", "adbc-driver-postgresql") from error
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    cursors: list[dbapi.Cursor] = []
    is_cancelled = threading.Event()

    def stream() -> None:
        with dbapi.connect(url) as connection, connection.cursor() as cursor:
            cursors.append(cursor)
            try:
                cursor.execute(_END_WITH_CLIENT)
            except Error:
                # Servers before PostgreSQL 14 and on some systems lack it.
                connection.rollback()
            cursor.execute(_READ_ONLY)
            with bounded(_STATEMENT):
                cursor.execute(statement)
                reader = cursor.fetch_record_batch()
            # The folder is gone then.
            if is_cancelled.is_set():
                return
            with storage.translate_os_errors(path):
                _write(reader.schema, _batches(reader, url), temporary)

    def cancel() -> None:
        is_cancelled.set()
        for cursor in cursors:
            with contextlib.suppress(Error):
                cursor.adbc_cancel()

    with storage.translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        interruptible(stream, cancel)
        with storage.translate_os_errors(path):
            temporary.replace(path)
    except Error as error:
        raise _server_error(url, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _batches(reader: pa.RecordBatchReader, url: str) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            with bounded(_STATEMENT):
                batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:
            raise _server_error(url, error) from error
        yield batch


def _write(schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _server_error(url: str, error: Exception) -> UsageError | StorageError:
    text = str(error).strip()
    user, _, _ = url.partition("://")[2].rpartition("@")
    _, _, password = user.partition(":")
    for secret in (password, unquote(password)) if password else ():
        text = text.replace(secret, "***")
    why = " ".join(storage.redact(text).split())
    # Classes 22, 25 and 42 of SQLSTATE are about the statement.
    state = getattr(error, "sqlstate", None) or ""
    if state[:2] in ("22", "25", "42"):
        return UsageError(
            "the query does not work",
            where=storage.redact(url),
            why=why,
            next_step="It must be one SELECT, in the server's own SQL",
        )
    return StorageError(
        "the database server cannot be read",
        where=storage.redact(url),
        why=why,
        next_step="Check the URL and the query; a password is taken from PGPASSWORD or ~/.pgpass too",
    )
