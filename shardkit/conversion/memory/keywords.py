"""Options of `shardkit convert` as keywords of a Python call."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from shardkit.conversion.request import ConvertRequest, option_fields, parse_request
from shardkit.errors import UsageError, suggest
from shardkit.options import OptionField, Size
from shardkit.sources.formats import formats_with
from shardkit.units import parse_size

MAX_WORKERS = 1024
# Of the command alone: they say which engine runs, or what is shown.
_OF_THE_COMMAND = frozenset({
    "dry_run", "engine_option", "max_memory", "project", "recipe", "region", "runner", "temp_location", "workers",
})  # fmt: skip
_OF_FILES = frozenset({"exclude", "fetch_again", "format", "include"})
ROWS_FORMAT = "arrow"


def keywords(*, of_rows: bool = False) -> dict[str, OptionField]:
    """Returns the options of a Python call by keyword.

    Args:
        of_rows: Leave out those that have a meaning for files alone.
    """
    found = {_keyword(field): field for field in option_fields() if _keyword(field) not in _OF_THE_COMMAND}
    return {name: field for name, field in found.items() if not of_rows or _is_of_rows(name, field)}


def check_for_rows(options: Mapping[str, Any]) -> None:
    """Checks that no keyword is for files.

    Raises:
        UsageError: If one is.
    """
    known = keywords(of_rows=True)
    if of_files := [name for name in keywords() if options.get(name) is not None and name not in known]:
        raise UsageError(f"{of_files[0]} is for files, and these are rows", next_step="Leave it out")


def request_of(options: Mapping[str, Any], inputs: tuple[str, ...], destination: str) -> ConvertRequest:
    """Returns keywords as a request.

    A keyword is called as its option, with `_` for `-`; a switch is True or False. An option that is repeated takes one
    text or several, and a mapping in place of `NAME=VALUE`: `split={"train": 0.9, "test": 0.1}`.

    Raises:
        UsageError: If there is no such option, or a value is not of its form.
    """
    fields = keywords()
    typed = {}
    for name, value in options.items():
        if name not in fields:
            raise UsageError(
                f"there is no option {name!r}{suggest(name, list(fields))}",
                next_step="Call it as `shardkit convert --help-all` does, with _ for -",
            )
        if value is not None:
            typed[fields[name].typed_name] = _typed(fields[name], value)
    return parse_request(typed, inputs, destination)


def checked_destination(destination: Any) -> str:
    """Returns where a dataset goes, as text. Raises UsageError if it is no path or URL."""
    if not isinstance(destination, str | os.PathLike) or not os.fspath(destination):
        raise UsageError(f"the destination {destination!r} is no path or URL", next_step="Name a folder")
    return str(os.fspath(destination))


def checked_workers(workers: Any) -> int | None:
    """Returns a number of workers, None for that which the data decides.

    Raises:
        UsageError: If it is no number from 1 to `MAX_WORKERS`.
    """
    if workers is not None and (type(workers) is not int or not 1 <= workers <= MAX_WORKERS):
        raise UsageError(f"workers is 1 to {MAX_WORKERS}, and not {workers!r}", next_step="Give another number")
    return workers


def _keyword(field: OptionField) -> str:
    return field.key.replace("-", "_")


def _is_of_rows(name: str, field: OptionField) -> bool:
    return name not in _OF_FILES and ROWS_FORMAT in (formats_with(field.name) or (ROWS_FORMAT,))


def _typed(field: OptionField, value: Any) -> Any:
    """Returns a value as the command line has it."""
    if not isinstance(value, str | int | float | os.PathLike | Mapping | list | tuple):
        raise UsageError(
            f"{_keyword(field)} cannot be of type {type(value).__name__}", next_step="Give text, numbers or a list"
        )
    if field.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{_keyword(field)} is True or False, and not {value!r}", next_step="Give one of these")
        return value
    if isinstance(value, Mapping):
        value = [f"{name}={part}" for name, part in value.items()]
    if field.is_repeated:
        parts = value if isinstance(value, list | tuple) else [value]
        return tuple(str(os.fspath(part)) if isinstance(part, os.PathLike) else str(part) for part in parts)
    if isinstance(field.option.form, Size):
        return parse_size(str(value))
    form = field.option.form
    if isinstance(value, list | tuple):
        if unclear := [part for part in value if form.joint in str(part)]:
            raise UsageError(
                f"{_keyword(field)} holds {unclear[0]!r}, which {form.joint!r} cuts in two",
                next_step="Give each part alone, and columns names without it",
            )
        return form.joint.join(map(str, value))
    if isinstance(value, int | float):
        _check_range(field, value)
        return value if form.metavar is None or field.kind in (int, int | None, float, float | None) else str(value)
    return os.fspath(value)


def _check_range(field: OptionField, value: float) -> None:
    low, high, excludes = field.option.minimum, field.option.maximum, field.option.excludes
    is_low = low is not None and (value < low or (value == low and excludes in ("minimum", "both")))
    is_high = high is not None and (value > high or (value == high and excludes in ("maximum", "both")))
    if is_low or is_high or not math.isfinite(value):
        limits = f"from {low} to {high}" if None not in (low, high) else f"at least {low}" if high is None else ""
        raise UsageError(f"{_keyword(field)} is {limits}, and not {value!r}", next_step="Give another number")
