"""SQLite databases opened so that nothing in them, or beside them, is written, run or trusted.

Sources: https://www.sqlite.org/security.html, https://www.sqlite.org/fileformat2.html,
https://www.sqlite.org/uri.html (immutable)
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

from shardkit.errors import DamagedFileError, ShardkitError, StorageError, UsageError
from shardkit.runtime.signals import noted_interrupt
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.files.streams import open_stream, read_exactly
from shardkit.storage import files as storage
from shardkit.units import MiB, format_size

MAGIC = b"SQLite format 3\0"

_HEADER_BYTES = 100
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_MAX_HELD_BYTES = 256 * MiB
_MAX_VALUE_BYTES = 1_000_000_000
_PRAGMAS = (
    "trusted_schema=OFF",
    "cell_size_check=ON",
    "query_only=ON",
    "ignore_check_constraints=ON",
    "mmap_size=0",
)
_OPCODES_BETWEEN_SIGNALS = 1_000_000
_STRUCTURAL_MESSAGE = b"***"
_PRIMARY_CODE = 0xFF
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
_STORE_CODES = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)
_QUERY_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
# They give other rows when a part of the work is done again, or reach beyond the database.
_REFUSED_FUNCTIONS = frozenset(
    {"random", "randomblob", "load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
)


def is_direct(file: RawFile) -> bool:
    """Whether SQLite can read the file where it is; any other one is held in memory."""
    return file.member is None and file.compression is None and storage.is_local(file.path)


@contextmanager
def open_database(file: RawFile, options: SourceOptions) -> Iterator[sqlite3.Connection]:
    """Opens a database for reading. Texts and blobs come as bytes.

    Raises:
        DamagedFileError: If the database is damaged, also where that shows only while it is used.
        UsageError: If it would have to be held in memory and is too large for that.
        StorageError: If it cannot be read.
    """
    with translated(file):
        check_header(file)
        with closing(_connect(file)) as connection:
            connection.text_factory = bytes
            limit = min(max(options.max_record_bytes, MiB), _MAX_VALUE_BYTES)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            # Python looks for Ctrl-C only between its own instructions.
            connection.set_progress_handler(lambda: 0, _OPCODES_BETWEEN_SIGNALS)
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            yield connection


@contextmanager
def only_queries(connection: sqlite3.Connection) -> Iterator[None]:
    """Lets nothing but reading through, and no function that gives other rows the next time."""
    connection.set_authorizer(_authorize)
    try:
        yield
    finally:
        connection.set_authorizer(None)


def _authorize(action: int, _: str | None, function: str | None, *__: str | None) -> int:
    is_function = action == sqlite3.SQLITE_FUNCTION and (function or "").lower() not in _REFUSED_FUNCTIONS
    return sqlite3.SQLITE_OK if is_function or action in _QUERY_ACTIONS else sqlite3.SQLITE_DENY


def check_at_rest(file: RawFile) -> None:
    """Checks that all that was written to a database is in its file.

    Raises:
        UsageError: If rows are in a log beside it, or a transaction was cut off.
    """
    if file.member is not None:
        return
    for suffix, what in (("-wal", "a write-ahead log"), ("-journal", "the journal of an unfinished transaction")):
        try:
            num_bytes = storage.stat_file(f"{file.path}{suffix}").num_bytes
        except (UsageError, FileNotFoundError):
            continue
        is_cold = suffix == "-journal" and storage.read_range(f"{file.path}{suffix}", 0, 8) != _JOURNAL_MAGIC
        if num_bytes and not is_cold:
            raise UsageError(
                f"{what} lies beside the database",
                where=place(file),
                why=f"{format_size(num_bytes)} in {place(file)}{suffix} may hold rows that its file does not",
                next_step="Close the programs that use it, open and close it once with the sqlite3 command "
                "(PRAGMA wal_checkpoint(TRUNCATE) empties a log), or convert a copy made with its .backup",
            )


def check_structure(connection: sqlite3.Connection, file: RawFile, table: str | None) -> None:
    """Checks that the pages of a table, or of the whole database, hang together. Reads all of them.

    Values that do not keep what their columns declare are no matter of structure.

    Raises:
        DamagedFileError: If a page is damaged.
    """
    what = "" if table is None else f"({quoted(table)})"
    for (message,) in connection.execute(f"PRAGMA main.quick_check{what}"):
        if message.startswith(_STRUCTURAL_MESSAGE):
            why = message.decode(errors="replace").partition("\n")[2] or "its pages do not hang together"
            raise _damaged(file, why.splitlines()[0])


def quoted(name: str) -> str:
    """Returns a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def translated(file: RawFile) -> Iterator[None]:
    """Turns errors of SQLite into errors that a user understands.

    Raises:
        DamagedFileError, StorageError: In place of SQLite's own.
    """
    try:
        yield
    except ShardkitError:
        raise
    except sqlite3.Error as error:
        exact = _code_of(error)
        code = exact & _PRIMARY_CODE
        if code == sqlite3.SQLITE_INTERRUPT:
            raise noted_interrupt() from error
        if code in _STORE_CODES or (code == sqlite3.SQLITE_IOERR and exact != sqlite3.SQLITE_IOERR_SHORT_READ):
            raise StorageError("the database cannot be read", where=place(file), why=str(error)) from error
        if code == sqlite3.SQLITE_TOOBIG:
            raise DamagedFileError(
                "a value is too large",
                where=place(file),
                why="the rows of it cannot be read one by one",
                next_step="Allow more with --max-record-size, or leave the row out with --query",
            ) from error
        raise _damaged(file, str(error)) from error
    except (ValueError, OverflowError) as error:
        raise _damaged(file, str(error)) from error


def is_damage(error: Exception) -> bool:
    """Whether an error is about the database or its file, rather than about the statement."""
    others = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG)
    return _code_of(error) & _PRIMARY_CODE in (*_DAMAGE_CODES, *_STORE_CODES, *others)


def is_too_big(error: Exception) -> bool:
    """Whether a value is larger than the limit."""
    return _code_of(error) & _PRIMARY_CODE == sqlite3.SQLITE_TOOBIG


def _code_of(error: Exception) -> int:
    # Errors of Python's own have none.
    return getattr(error, "sqlite_errorcode", None) or 0


def check_header(file: RawFile) -> None:
    """Checks that a file is as long as its header says.

    Raises:
        DamagedFileError: If it is not, or no database.
    """
    with open_stream(file) as stream:
        head = read_exactly(stream, _HEADER_BYTES)
    if not head.startswith(MAGIC):
        raise DamagedFileError("the file is no SQLite database", where=place(file), why=f"it begins with {head[:16]!r}")
    if len(head) < _HEADER_BYTES:
        raise _damaged(file, "it ends in its header")
    page_bytes = int.from_bytes(head[16:18], "big")
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    if page_bytes < 512 or page_bytes & (page_bytes - 1):
        raise _damaged(file, f"its header says pages of {page_bytes} bytes")
    counter, num_pages = struct.unpack_from(">II", head, 24)
    is_counted = num_pages > 0 and counter == int.from_bytes(head[92:96], "big")
    if file.compression is not None:
        return
    if file.num_bytes % page_bytes or (is_counted and num_pages * page_bytes > file.num_bytes):
        expected = f"{num_pages:,} pages of {page_bytes:,} bytes" if is_counted else f"whole pages of {page_bytes:,}"
        raise _damaged(file, f"its header says {expected}, it has {file.num_bytes:,} bytes")


def _damaged(file: RawFile, why: str) -> DamagedFileError:
    return DamagedFileError("the SQLite database is cut off or damaged", where=place(file), why=why.rstrip("."))


def _connect(file: RawFile) -> sqlite3.Connection:
    if is_direct(file):
        # Immutable: no locks, and no log made or read beside the user's file.
        path = quote(str(storage.local_path(file.path)))
        return sqlite3.connect(
            f"file:{path}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
    with open_stream(file) as stream:
        content = bytearray(read_exactly(stream, _MAX_HELD_BYTES + 1))
    if len(content) > _MAX_HELD_BYTES:
        raise UsageError(
            "the database is too large to be read where it is",
            where=place(file),
            why=f"SQLite reads local files; of others at most {format_size(_MAX_HELD_BYTES)} are held in memory",
            next_step="Copy it to a local folder first, decompressed",
        )
    # A database in memory has no write-ahead log; its file may say that it had one.
    content[18:20] = b"\1\1"
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(bytes(content))
    return connection
