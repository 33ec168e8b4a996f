"""A DuckDB without files and network, with one thread and UTC: facts about its functions, and SQL as its trees."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shardkit.errors import UsageError, missing_extra
from shardkit.messages import printable
from shardkit.runtime.interruptible import interruptible

Node = dict[str, Any]

if TYPE_CHECKING:
    import duckdb

_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET temp_directory = ''",
    # Arrow, to which filters would be handed down, compares NaN by other rules.
    # Conditions are tried in the order they are written in, so that an error is met or not met by rule.
    "SET disabled_optimizers = 'filter_pushdown,reorder_filter'",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_local = threading.local()


class FunctionInfo(NamedTuple):
    """What DuckDB's catalogue says of a function.

    Attributes:
        kinds: Such as `scalar`, `aggregate`, `macro`; one name may have several.
        stabilities: Such as `CONSISTENT`, `VOLATILE`.
        definitions: Of macros.
    """

    kinds: frozenset[str]
    stabilities: frozenset[str]
    definitions: tuple[str, ...]


def session() -> duckdb.DuckDBPyConnection:
    """Returns this thread's connection to an empty database in memory. Raises UsageError if DuckDB is not installed."""
    found: duckdb.DuckDBPyConnection | None = getattr(_local, "session", None)
    if found is None:
        found = _local.session = _open()
    return found


def ask(statement: str, *parameters: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement. Raises duckdb.Error if it fails."""
    connection = session()
    # DuckDB answers a signal in the main thread with an error of its own, which hides that of the handler.
    return interruptible(lambda: connection.execute(statement, parameters).fetchall(), connection.interrupt)


@functools.lru_cache(maxsize=1)
def functions() -> dict[str, FunctionInfo]:
    """Returns DuckDB's functions by their names in lower case."""
    rows = ask(
        """
        SELECT lower(function_name), list(DISTINCT function_type), list(DISTINCT stability), list(macro_definition)
        FROM duckdb_functions() GROUP BY 1
        """
    )
    return {
        name: FunctionInfo(frozenset(kinds), frozenset(s for s in stabilities or () if s), tuple(definitions or ()))
        for name, kinds, stabilities, definitions in rows
    }


def reason_of(error: Exception) -> str:
    """Returns the first line of what DuckDB says, without the kind of error in front."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return printable(first.split(" Error: ", 1)[-1])


def quoted(name: str) -> str:
    """Returns a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _open() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise missing_extra("sql", "duckdb") from error
    connection = duckdb.connect(
        ":memory:",
        config={"threads": "1", "autoinstall_known_extensions": "false", "autoload_known_extensions": "false"},
    )
    try:
        interruptible(lambda: connection.execute(";".join(_SETTINGS)), connection.interrupt)
    except duckdb.Error as error:
        raise UsageError(
            "this version of DuckDB cannot be closed off",
            why=reason_of(error),
            next_step="Run: pip install 'shardkit[sql]', which installs a version that can",
        ) from error
    return connection


def to_sql(node: Node) -> str:
    """Returns the SQL of a SELECT."""
    document = json.dumps({"error": False, "statements": [{"node": node, "named_param_map": []}]})
    text: str = ask("SELECT json_deserialize_sql(?::JSON)", document)[0][0]
    return text


def operator(kind: str, child: Node) -> Node:
    """Returns an operator of one operand, without a name."""
    plain = {**child, "alias": ""}
    return {"class": "OPERATOR", "type": kind, "alias": "", "query_location": 0, "children": [plain]}


def column_words(parts: Sequence[Node | None]) -> set[str]:
    """Returns the words, in lower case, by which expressions speak of columns."""
    found = (node for node in nodes(parts) if node["class"] == "COLUMN_REF")
    return {word.lower() for node in found for word in node["column_names"]}


def column(name: str, alias: str = "") -> Node:
    """Returns an expression that is a column."""
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": alias, "query_location": 0, "column_names": [name]}


def nodes(value: object) -> Iterator[Node]:
    """Yields all expressions below a value, itself included."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)
