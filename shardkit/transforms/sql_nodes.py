"""SQL as the tree that DuckDB parses it to and writes it from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from shardkit.transforms.duckdb_session import session

Node = dict[str, Any]


def to_sql(node: Node) -> str:
    """Returns the SQL of a SELECT."""
    document = json.dumps({"error": False, "statements": [{"node": node, "named_param_map": []}]})
    text: str = session().execute("SELECT json_deserialize_sql(?::JSON)", [document]).fetchall()[0][0]
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
