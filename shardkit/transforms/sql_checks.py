"""Which SQL statements are sound row by row, and where their columns come from.

DuckDB's parser takes a statement apart (`json_serialize_sql`). This module allows only a list of expressions over one
table, and a condition. Columns that are merely passed on never go through DuckDB, so that they keep their exact type
and cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.messages import printable, shown
from shardkit.transforms.duckdb_session import (
    Node,
    ask,
    column,
    column_words,
    functions,
    nodes,
    operator,
    quoted,
    to_sql,
)
from shardkit.transforms.steps import no_such_column

TABLE = "rows"
OPTION = "--select"


_REFUSED_CLASSES = {
    "WINDOW": "a window function looks at other rows",
    "SUBQUERY": "a subquery looks at other rows",
    "POSITIONAL_REFERENCE": "columns are named, not counted",
    "PARAMETER": "there is nothing to fill a parameter with",
}
_ALLOWED_CLASSES = frozenset(
    {"COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "FUNCTION", "CASE", "CAST", "BETWEEN",
     "COLLATE", "LAMBDA", "LAMBDA_REF"}
)  # fmt: skip
_REFUSED_MODIFIERS = {
    "ORDER_MODIFIER": "ORDER BY has no meaning: --no-shuffle keeps the order of the inputs",
    "LIMIT_MODIFIER": "LIMIT counts other rows",
    "LIMIT_PERCENT_MODIFIER": "LIMIT counts other rows",
    "DISTINCT_MODIFIER": "DISTINCT looks at other rows; use --dedup",
}
_ROWS_FROM_LISTS = frozenset({"unnest", "unlist"})
# Called consistent by the catalogue, but they depend on the clock, the machine or how rows lie in memory.
_UNSTABLE = frozenset(
    {"current_localtime", "current_localtimestamp", "current_setting", "getvariable", "version", "vector_type",
     "json_serialize_plan", "current_user", "current_role", "session_user", "user", "current_catalog", "grouping"}
)  # fmt: skip
# Words that DuckDB takes for functions where there is no column of that name.
_VALUE_WORDS = frozenset(
    {"current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
     "current_user", "localtime", "localtimestamp", "session_user", "user"}
)  # fmt: skip
_LIST_AGGREGATES = frozenset({"list_aggr", "list_aggregate", "array_aggr", "array_aggregate", "aggregate"})
_RANDOM_AGGREGATES = frozenset({"reservoir_quantile"})
_NEVER_NULL_OF_VALUES = frozenset(
    {"+", "-", "*", "||", "lower", "upper", "length", "len", "trim", "ltrim", "rtrim", "abs", "concat", "~~", "!~~",
     "starts_with", "ends_with", "contains", "round", "floor", "ceil"}
)  # fmt: skip
_IN = ("COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_NOT")
_MAX_MACRO_DEPTH = 8


class Item(NamedTuple):
    """One column that a statement gives.

    Attributes:
        source: The column that is passed on as it is; None if the value is computed.
    """

    name: str
    source: str | None
    is_nullable: bool = True


class Part(NamedTuple):
    """What a row may fail in.

    Attributes:
        is_condition: Whether it is what rows are chosen by.
    """

    text: str
    inputs: tuple[str, ...]
    is_condition: bool


class Statement(NamedTuple):
    """A statement that is sound row by row.

    Attributes:
        items: The columns it gives, in order.
        sql: Gives the number of each row that stays, and the computed columns by their names; None if there is
            nothing to compute or to filter.
        row_column: Name of the column with the numbers of the rows, which no column of the features has.
        inputs: Columns that `sql` reads besides.
        check_sql: Gives, by row, whether each of `parts` can be computed, and what the condition says.
        parts: What a row may fail in: the condition first, if there is one, then what is computed.
    """

    items: tuple[Item, ...]
    sql: str | None
    row_column: str
    inputs: tuple[str, ...]
    check_sql: str = ""
    parts: tuple[Part, ...] = ()


def parse_statement(text: str, features: Features) -> Statement:
    """Returns a parsed and checked statement.

    Args:
        text: `SELECT ... FROM rows WHERE ...`.

    Raises:
        UsageError: If it is no single SELECT, or a row's result would depend on anything but that row.
    """
    _check_names(features)
    node = _parse(text)
    _check_shape(node)
    table = node["from_table"]["alias"] or TABLE
    columns = {f.name.lower(): f.name for f in features}
    expanded = [pair for item in node["select_list"] for pair in _expand(item, table, features)]
    where = node["where_clause"]
    aliases = {item["alias"].lower() for item, _ in expanded if item["alias"]}
    for part in [item for item, _ in expanded] + ([where] if where else []):
        _check_expression(part, frozenset(columns))
        _check_columns(part, columns, aliases, table, features)
    nullable = {f.name: f.nullable for f in features}
    items = tuple(_item(item, source, columns, table, nullable) for item, source in expanded)
    _check_items(items)
    return _compose(node, expanded, items, columns, _free_name(columns))


def _parse(text: str) -> Node:
    found = json.loads(ask("SELECT json_serialize_sql(?::VARCHAR)", text)[0][0])
    if found["error"]:
        if found["error_type"] == "parser":
            raise _refused(found["error_message"])
        raise _refused("only a SELECT statement can be used")
    if len(found["statements"]) != 1:
        raise _refused(f"there are {len(found['statements'])} statements")
    node: Node = found["statements"][0]["node"]
    if node["type"] != "SELECT_NODE":
        raise _refused("UNION, INTERSECT, EXCEPT and recursion look at other rows")
    return node


def _check_shape(node: Node) -> None:
    for modifier in node["modifiers"]:
        raise _refused(_REFUSED_MODIFIERS.get(modifier["type"], f"{modifier['type']} is not row by row"))
    if node["cte_map"]["map"]:
        raise _refused("WITH makes other tables")
    is_grouped = node["group_expressions"] or node["group_sets"] or node["having"]
    if is_grouped or node["aggregate_handling"] != "STANDARD_HANDLING":
        raise _refused("GROUP BY and HAVING look at other rows")
    if node["qualify"]:
        raise _refused("QUALIFY looks at other rows")
    table = node["from_table"]
    if node["sample"] or table.get("sample"):
        raise _refused("a sample is drawn at random")
    is_rows = table["type"] == "BASE_TABLE" and table["table_name"].lower() == TABLE
    if not is_rows or table["schema_name"] or table["catalog_name"] or table["at_clause"]:
        raise _refused(f"the only table is {TABLE}", f"Write it like SELECT ... FROM {TABLE} WHERE ...")
    if table["column_name_alias"]:
        raise _refused(f"the columns of {TABLE} cannot be renamed there", "Use --rename")


def _expand(item: Node, table: str, features: Features) -> Iterator[tuple[Node, str | None]]:
    """Yields the expressions of an item, each with the column that it passes on unchanged."""
    if item["class"] != "STAR":
        yield item, _passed_on(item, {f.name.lower(): f.name for f in features}, table)
        return
    if item["columns"] or item["expr"] is not None:
        raise _refused("COLUMNS(...) is not supported", "Name the columns")
    if item["relation_name"] and item["relation_name"].lower() != table.lower():
        raise _refused(f"there is no table {item['relation_name']}")
    columns = {f.name.lower(): f for f in features}
    excluded = {name.lower() for name in item["exclude_list"]}
    excluded |= {entry["column"].lower() for entry in item["qualified_exclude_list"]}
    replaced = {entry["key"].lower(): entry["value"] for entry in item["replace_list"]}
    renamed = {entry["key"]["column"].lower(): entry["value"] for entry in item["rename_list"]}
    for name in (*excluded, *replaced, *renamed):
        if name not in columns:
            raise no_such_column(features, name, OPTION)
    for key, feature in columns.items():
        if key in replaced:
            # Its own alias is the name behind AS, in the user's spelling.
            yield {**replaced[key], "alias": feature.name}, None
        elif key not in excluded:
            alias = renamed.get(key, "")
            yield column(feature.name, alias), feature.name


def _passed_on(item: Node, columns: dict[str, str], table: str) -> str | None:
    if item["class"] != "COLUMN_REF":
        return None
    names = item["column_names"]
    if len(names) == 1 or (len(names) == 2 and names[0].lower() == table.lower()):
        return columns.get(names[-1].lower())
    return None


def _item(item: Node, source: str | None, columns: dict[str, str], table: str, nullable: dict[str, bool]) -> Item:
    name = item["alias"] or source
    if not name:
        raise _refused("a computed column has no name", "Write it like SELECT price * 2 AS double_price FROM rows")
    return Item(name, source, _may_be_null(item, columns, table, nullable))


def _check_names(features: Features) -> None:
    seen: dict[str, str] = {}
    for feature in features:
        other = seen.setdefault(feature.name.lower(), feature.name)
        if other != feature.name:
            raise _refused(
                f"SQL cannot tell the columns {shown(other)} and {shown(feature.name)} apart", "Use --rename for one"
            )


def _check_items(items: tuple[Item, ...]) -> None:
    seen: set[str] = set()
    for item in items:
        if item.name.lower() in seen:
            raise _refused(f"two columns of the result are called {shown(item.name)}", "Give one another name with AS")
        seen.add(item.name.lower())


def _check_expression(expression: Node, columns: frozenset[str], depth: int = 0) -> None:
    for node in nodes(expression):
        kind = node["class"]
        if kind == "STAR":
            raise _refused("* stands for all columns only by itself", "Name the columns")
        if kind not in _ALLOWED_CLASSES:
            raise _refused(_REFUSED_CLASSES.get(kind, f"{kind} is not row by row"))
        if kind == "FUNCTION":
            _check_function(node, depth)
        word = node["column_names"][0].lower() if kind == "COLUMN_REF" else ""
        if word in _VALUE_WORDS and word not in columns:
            raise _unstable(word)


def _check_function(node: Node, depth: int) -> None:
    name = node["function_name"].lower()
    info = functions().get(name)
    if name in _ROWS_FROM_LISTS:
        raise _refused(f"{name}() makes several rows of one")
    if info is None:
        raise _refused(f"there is no function {printable(name)}()")
    if "aggregate" in info.kinds or node["filter"] or node["distinct"] or node["order_bys"]["orders"]:
        raise _refused(f"the aggregate {name}() looks at other rows")
    is_unstable = name in _UNSTABLE or not info.stabilities <= {"CONSISTENT"}
    if is_unstable or (name == "age" and len(node["children"]) == 1):
        raise _unstable(f"{name}()")
    if not info.kinds & {"scalar", "macro"}:
        raise _refused(f"{name}() is no function of a row")
    if name in _LIST_AGGREGATES:
        _check_list_aggregate(node)
    if depth > _MAX_MACRO_DEPTH:
        raise _refused(f"{name}() is defined by itself")
    for definition in info.definitions:
        if definition is not None:
            for item in _parse(f"SELECT {definition}")["select_list"]:
                _check_expression(item, frozenset(), depth + 1)


def _check_list_aggregate(node: Node) -> None:
    chosen = node["children"][1] if len(node["children"]) > 1 else None
    if chosen is None or chosen["class"] != "CONSTANT" or chosen["value"].get("value") in _RANDOM_AGGREGATES:
        raise _refused(f"{node['function_name']}() needs the name of an aggregate that gives the same every time")


def _check_columns(
    expression: Node, columns: dict[str, str], aliases: set[str], table: str, features: Features
) -> None:
    parameters = {
        name.lower()
        for node in nodes(expression)
        if node["class"] == "LAMBDA"
        for name in _parameter_names(node["lhs"])
    }
    for node in nodes(expression):
        if node["class"] != "COLUMN_REF":
            continue
        names = [name.lower() for name in node["column_names"]]
        first = names[1] if len(names) > 1 and names[0] == table.lower() else names[0]
        if first not in columns and first not in aliases and first not in parameters:
            raise no_such_column(features, node["column_names"][-1], OPTION)


def _parameter_names(left: Node | list[str]) -> Iterator[str]:
    if isinstance(left, list):
        yield from left
        return
    for node in nodes(left):
        if node["class"] == "COLUMN_REF":
            yield from node["column_names"]


def _may_be_null(node: Node, columns: dict[str, str], table: str, nullable: dict[str, bool]) -> bool:
    """Returns whether a value may be null; when in doubt, it may."""

    def any_null(parts: list[Node]) -> bool:
        return any(_may_be_null(part, columns, table, nullable) for part in parts)

    kind, type_ = node["class"], node["type"]
    if kind == "COLUMN_REF":
        source = _passed_on(node, columns, table)
        return source is None or nullable[source]
    if kind == "CONSTANT":
        return bool(node["value"]["is_null"])
    if kind == "COMPARISON":
        return any_null([node["left"], node["right"]])
    if kind == "CONJUNCTION" or (kind == "OPERATOR" and type_ in _IN):
        return any_null(node["children"])
    if kind == "OPERATOR" and type_ in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        return False
    if kind == "OPERATOR" and type_ == "OPERATOR_COALESCE":
        return all(_may_be_null(part, columns, table, nullable) for part in node["children"])
    if kind == "FUNCTION" and node["function_name"].lower() in _NEVER_NULL_OF_VALUES:
        return any_null(node["children"])
    if kind == "CAST" and not node["try_cast"] and node["child"]["class"] in ("COLUMN_REF", "CONSTANT"):
        return any_null([node["child"]])
    if kind == "CASE":
        return any_null([*(check["then_expr"] for check in node["case_checks"]), node["else_expr"]])
    if kind == "BETWEEN":
        return any_null([node["input"], node["lower"], node["upper"]])
    return True


def _compose(
    node: Node,
    expanded: list[tuple[Node, str | None]],
    items: tuple[Item, ...],
    columns: dict[str, str],
    row_column: str,
) -> Statement:
    computed = [item for item, source in expanded if source is None]
    where = node["where_clause"]
    if not computed and where is None:
        return Statement(items, None, row_column, ())
    used = column_words([*computed, where])
    # Other expressions may speak of a passed-on column by its new name.
    needed = [
        {**item, "alias": described.name}
        for (item, source), described in zip(expanded, items, strict=True)
        if source is None or (item["alias"] and item["alias"].lower() in used)
    ]
    used |= column_words(needed)
    inner = {**node, "select_list": [column(row_column), *needed]}
    wanted = ", ".join(quoted(name) for name in (row_column, *(i.name for i in items if i.source is None)))
    inputs = tuple(name for lower, name in columns.items() if lower in used)
    parts = [*([where] if where else []), *computed]
    # The attempt is null where the expression fails, and true or false where it does not.
    attempts = [operator("OPERATOR_TRY", operator("OPERATOR_IS_NULL", part)) for part in parts]
    can_be = [operator("OPERATOR_IS_NOT_NULL", attempt) for attempt in attempts]
    holds = [operator("OPERATOR_TRY", where)] if where else []
    check = {**node, "select_list": [*can_be, *holds], "where_clause": None}
    return Statement(
        items,
        f"SELECT {wanted} FROM ({to_sql(inner)})",
        row_column,
        inputs,
        to_sql(check),
        tuple(_part(part, part is where, node, columns) for part in parts),
    )


def _part(part: Node, is_condition: bool, node: Node, columns: dict[str, str]) -> Part:
    plain = {**node, "select_list": [{**part, "alias": ""}], "where_clause": None}
    text = to_sql(plain).removeprefix("SELECT ").rsplit(" FROM ", 1)[0]
    used = column_words([part])
    return Part(text, tuple(name for lower, name in columns.items() if lower in used), is_condition)


def _free_name(columns: dict[str, str]) -> str:
    name = "__row__"
    while name in columns:
        name += "_"
    return name


def _refused(why: str, next_step: str | None = None) -> UsageError:
    step = next_step or "Write one SELECT whose expressions look at one row, or compute it with --map"
    return UsageError(f"the statement of {OPTION} cannot be used", why=why, next_step=step)


def _unstable(name: str) -> UsageError:
    return _refused(f"{name} does not give the same every time")
