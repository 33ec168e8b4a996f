"""Which features JSON objects have: nested keys joined by `/`, and the kinds of value found under each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.sources.streams import shown
from shardkit.sources.text_types import fits_float32

JsonKind = Literal["int", "float", "bool", "string"]

MAX_DEPTH = 128

_EXACT_INTEGER = 2**53
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_KINDS: dict[type, JsonKind] = {int: "int", float: "float", bool: "bool", str: "string"}


class Seen(msgspec.Struct):
    """What one key has held so far.

    Attributes:
        kinds: Where each kind of value was first seen.
        list_place: Where a list was first seen; None if never.
        scalar_place: Where a single value was first seen; None if never.
        exact_integers: Whether float64 holds all integers.
        fits_float32: Whether float32 holds all numbers to the last digit.
    """

    kinds: dict[JsonKind, str] = {}
    list_place: str | None = None
    scalar_place: str | None = None
    exact_integers: bool = True
    fits_float32: bool = True


def is_too_deep(text: bytes) -> bool:
    """Whether the brackets of a JSON text are nested deeper than MAX_DEPTH, without parsing it."""
    if text.count(b"{") + text.count(b"[") <= MAX_DEPTH:
        return False
    level = 0
    for bracket in re.findall(rb"[\[\]{}]", _STRINGS.sub(b"", text)):
        level += 1 if bracket in (b"[", b"{") else -1
        if level > MAX_DEPTH:
            return True
    return False


def flatten(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of an object by their path; an empty object has none."""
    for key, value in row.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{path}/")
        else:
            yield path, value


class ShapeObserver:
    """Gathers what rows look like, and says which features hold them."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._objects: dict[str, str] = {}

    def add(self, rows: list[tuple[str, dict[str, Any]]]) -> None:
        """Takes in rows, each with the place it stands at.

        Raises:
            UsageError: If a value has no place in an example.
        """
        numbers: dict[str, list[str]] = {}
        for place, row in rows:
            self._note_objects(row, place, "")
            for path, value in flatten(row):
                seen = self._seen.setdefault(path, Seen())
                if value is not None:
                    self._note(path, seen, value, place, numbers.setdefault(path, []))
        for path, texts in numbers.items():
            seen = self._seen[path]
            seen.fits_float32 = seen.fits_float32 and fits_float32(pa.array(texts, pa.string()))

    def features(self) -> Features:
        """Returns the features, in the order in which their keys were first seen.

        Raises:
            UsageError: If the kinds of a key's values do not go together; names where each was seen.
        """
        for path, place in self._objects.items():
            if path in self._seen and (self._seen[path].kinds or self._seen[path].list_place):
                other = self._seen[path]
                elsewhere = other.scalar_place or other.list_place or ""
                raise _clash(path, "an object", place, "a value", elsewhere)
        return tuple(
            _feature(path, seen)
            for path, seen in self._seen.items()
            if seen.kinds or seen.list_place or path not in self._objects
        )

    def _note_objects(self, row: dict[str, Any], place: str, prefix: str) -> None:
        for key, value in row.items():
            if not key or "/" in key:
                raise UsageError(
                    f"the key {shown(key)} cannot name a column",
                    where=place,
                    why="it is empty" if not key else "the keys of nested objects are joined by '/'",
                )
            if isinstance(value, dict):
                self._objects.setdefault(f"{prefix}{key}", place)
                self._note_objects(value, place, f"{prefix}{key}/")

    def _note(self, path: str, seen: Seen, value: Any, place: str, numbers: list[str]) -> None:
        values = value if isinstance(value, list) else [value]
        if isinstance(value, list):
            seen.list_place = seen.list_place or place
        else:
            seen.scalar_place = seen.scalar_place or place
        for item in values:
            kind = _KINDS.get(type(item))
            if kind is None:
                what = {"dict": "objects", "list": "lists", "NoneType": "nulls"}[type(item).__name__]
                raise UsageError(
                    f"column {shown(path)} is a list of {what}",
                    where=place,
                    why="which a tf.train.Example cannot hold",
                    next_step="Change it in the source",
                )
            seen.kinds.setdefault(kind, place)
            if kind == "int":
                seen.exact_integers = seen.exact_integers and -_EXACT_INTEGER <= item <= _EXACT_INTEGER
            if kind in ("int", "float"):
                numbers.append(repr(item))


def _feature(path: str, seen: Seen) -> Feature:
    if seen.list_place and seen.scalar_place:
        raise _clash(path, "a list", seen.list_place, "a single value", seen.scalar_place)
    shape: tuple[int | None, ...] = (None,) if seen.list_place else ()
    return make_feature(path, _dtype(path, seen), shape, nullable=True)


def _dtype(path: str, seen: Seen) -> str:
    kinds = list(seen.kinds)
    if not kinds or kinds == ["string"]:
        return "string"
    if kinds == ["bool"]:
        return "bool"
    if kinds == ["int"]:
        return "int64"
    if set(kinds) <= {"int", "float"}:
        if not seen.exact_integers:
            raise UsageError(
                f"column {shown(path)} mixes floats with integers that no float holds",
                where=seen.kinds["int"],
                next_step="Write the integers as strings",
            )
        return "float32" if seen.fits_float32 else "float64"
    first = kinds[0]
    other = next(k for k in kinds if {k, first} != {"int", "float"} and k != first)
    raise _clash(path, f"{first} values", seen.kinds[first], f"{other} values", seen.kinds[other])


def _clash(path: str, one: str, here: str, other: str, there: str) -> UsageError:
    return UsageError(
        f"column {shown(path)} has both {one} and {other}",
        why=f"{one} in {here}, {other} in {there}",
        next_step="Make them alike in the source",
    )
