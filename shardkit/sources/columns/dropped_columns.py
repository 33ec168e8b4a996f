"""Columns that a user does not want: they are left out before their types are checked."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.messages import shown

_LISTED_COLUMNS = 50
_NOTHING = object()


def is_dropped(name: str, dropped: Iterable[str]) -> bool:
    """Whether a column, or an object or struct around it, is left out."""
    return any(name == d or name.startswith(f"{d}/") for d in dropped)


def check_dropped(dropped: Iterable[str], columns: Collection[str], where: str) -> None:
    """Checks that the columns to be left out are there.

    Args:
        dropped: Names of columns, and of structs that hold some.

    Raises:
        UsageError: If one is not; lists those there are.
    """
    for name in dropped:
        if not any(is_dropped(column, (name,)) for column in columns):
            listed = ", ".join(shown(column) for column in list(columns)[:_LISTED_COLUMNS])
            more = f" and {len(columns) - _LISTED_COLUMNS:,} more" if len(columns) > _LISTED_COLUMNS else ""
            raise UsageError(
                f"--drop-columns names {shown(name)}, which is no column",
                where=where,
                next_step=f"Columns are {listed}{more}",
            )


def drop_option(names: Sequence[str]) -> str:
    """Returns the option that leaves columns out, as one types it."""
    return f"--drop-columns {shlex.quote(','.join(names))}"


def wanted_fields(schema: pa.Schema, dropped: Sequence[str]) -> list[int] | None:
    """Returns the positions of the top-level fields that are not left out as a whole, None for all there are."""
    wanted = [i for i, field in enumerate(schema) if _is_wanted(field, field.name, dropped)]
    return None if len(wanted) in (0, len(schema)) else wanted


def without_keys(row: dict[str, Any], dropped: Sequence[str]) -> set[str]:
    """Takes keys out of an object, in place, and returns those that were there. Objects that it empties go too.

    Args:
        dropped: Keys; a `/` stands for nesting, or for itself.
    """
    found = set()
    for name in dropped:
        if name in row:
            del row[name]
            found.add(name)
        if "/" in name and _take(row, name.split("/")):
            found.add(name)
    return found


def _take(row: dict[str, Any], path: Sequence[str]) -> bool:
    first, *rest = path
    if not rest:
        return row.pop(first, _NOTHING) is not _NOTHING
    below = row.get(first)
    if not isinstance(below, dict) or not _take(below, rest):
        return False
    if not below:
        del row[first]
    return True


def _is_wanted(field: pa.Field, name: str, dropped: Sequence[str]) -> bool:
    type_ = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if pa.types.is_struct(type_):
        return any(_is_wanted(child, f"{name}/{child.name}", dropped) for child in type_)
    return not is_dropped(name, dropped)
