"""What one key of JSON objects has held, and the type that follows."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from shardkit.messages import shown

JsonKind = Literal["int", "float", "bool", "string"]


class MixedColumn(Exception):  # noqa: N818 - not an error: the column becomes json
    """A column that no type but `json` holds.

    Args:
        what: The column and its values.
        why: Where they are.
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
        exact_integers: Whether float64 holds all integers.
        first_beyond: The first integer that int64 does not hold, and where it was seen.
        fits_float32: Whether float32 holds all numbers to the last digit.
        first_float: The first value that is no integer.
        first_wide: The first number that float32 does not hold, and where it was seen.
    """

    kinds: dict[JsonKind, str] = {}
    list_place: str | None = None
    scalar_place: str | None = None
    is_nested: bool = False
    shapes: set[tuple[int, ...] | None] = set()
    exact_integers: bool = True
    first_beyond: tuple[int, str] | None = None
    fits_float32: bool = True
    first_float: float | None = None
    first_wide: tuple[float, str] | None = None


def dtype_of(path: str, seen: Seen) -> str:
    """Returns the type that holds all values of a column.

    Raises:
        MixedColumn: If none does but `json`.
    """
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
        if not seen.exact_integers:
            raise MixedColumn(f"column {shown(path)} mixes floats with integers that no float holds", seen.kinds["int"])
        return "float32" if seen.fits_float32 else "float64"
    first = kinds[0]
    other = next(k for k in kinds if {k, first} != {"int", "float"} and k != first)
    dtype = {"int": "int64", "float": "float64"}.get(first, first)
    fate = "makes text of all" if first == "string" else "makes bad rows of the others"
    advice = f"--cast {shlex.quote(f'{path}={dtype}')} {fate}" if seen.list_place is None else None
    raise clash(path, f"{first} values", seen.kinds[first], f"{other} values", seen.kinds[other], advice)


def clash(path: str, one: str, here: str, other: str, there: str, advice: str | None = None) -> MixedColumn:
    """Returns the error of a column with values of two kinds, each with its place."""
    return MixedColumn(
        f"column {shown(path)} has both {one} and {other}", f"{one} in {here}, {other} in {there}", advice
    )
