"""What one key of JSON objects has held, and the type that follows."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from shardkit.messages import shown

JsonKind = Literal["int", "float", "bool", "string"]

TOLERATE = "--on-bad-record skip makes bad rows of those that are fewer"


class MixedColumn(Exception):  # noqa: N818 - not an error: the column becomes json
    """A column that no type but `json` holds.

    Args:
        advice: An option that gives it one type, None if there is none.
    """

    def __init__(self, what: str, why: str, advice: str | None = None) -> None:
        super().__init__(what, why, advice)
        self.note = "; ".join(filter(None, (f"{what}, so it is a json column: {why}", advice)))


class Seen(msgspec.Struct):
    """What one key has held so far, objects aside.

    Attributes:
        kinds: Where each kind of value was first seen, in lists as well.
        list_place: Where a list was first seen; None if never.
        scalar_place: Where a single value was first seen; None if never.
        is_nested: Whether some list held an object, a list or a null.
        shapes: Of all lists, once one is nested; None of one that has no shape. Two of them decide.
        first_values: The first value of each kind.
        first_inexact: The first integer that float64 may not hold, and where it was seen.
        first_beyond: The first integer that int64 does not hold, and where it was seen.
        fits_float32: Whether float32 holds all numbers to the last digit.
        are_unsigned: Whether uint64 holds all integers.
        first_wide: The first number that float32 does not hold, and where it was seen.
    """

    kinds: dict[JsonKind, str] = {}
    list_place: str | None = None
    scalar_place: str | None = None
    is_nested: bool = False
    shapes: set[tuple[int, ...] | None] = set()
    first_values: dict[JsonKind, object] = {}
    first_inexact: tuple[int, str] | None = None
    first_beyond: tuple[int, str] | None = None
    fits_float32: bool = True
    are_unsigned: bool = True
    first_wide: tuple[float, str] | None = None


def dtype_of(path: str, seen: Seen) -> str:
    """Returns the type that holds all values of a column. Raises MixedColumn if none does but `json`."""
    kinds = list(seen.kinds)
    if not kinds or kinds == ["string"]:
        return "string"
    if kinds == ["bool"]:
        return "bool"
    if kinds == ["int"]:
        if seen.first_beyond is not None and seen.is_nested:
            raise MixedColumn(f"column {shown(path)} holds integers beyond int64", seen.first_beyond[1])
        return "int64" if seen.first_beyond is None else "string"
    if set(kinds) <= {"int", "float"}:
        if seen.first_inexact is not None:
            value, place = seen.first_inexact
            what = f"column {shown(path)} mixes floats with integers that no float holds"
            raise MixedColumn(what, f"{value} in {place}", f"--cast {shlex.quote(f'{path}=float64')} rounds them")
        return "float32" if seen.fits_float32 else "float64"
    first = kinds[0]
    other = next(k for k in kinds if {k, first} != {"int", "float"} and k != first)
    dtype = {"int": "int64", "float": "float64"}.get(first, first)
    fate = "makes text of all" if first == "string" else "makes bad rows of the others"
    advice = f"--cast {shlex.quote(f'{path}={dtype}')} {fate}" if seen.list_place is None else None
    why = ", ".join(f"{kind} {_shown(seen.first_values[kind])} in {seen.kinds[kind]}" for kind in (first, other))
    raise clash(path, f"{first} values", f"{other} values", why, advice)


def clash(path: str, one: str, other: str, why: str, advice: str | None = None) -> MixedColumn:
    """Returns the error of a column with values of two kinds; `why` says where they are."""
    return MixedColumn(f"column {shown(path)} has both {one} and {other}", why, advice or TOLERATE)


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, str) else str(value).lower()
