"""Which features JSON objects have: nested keys joined by `/`, and the kinds of value found under each."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.messages import shown
from shardkit.sources.columns.dropped_columns import drop_option
from shardkit.sources.text.type_inference import fits_float32

JsonKind = Literal["int", "float", "bool", "string"]

MAX_DEPTH = 128

_EXACT_INTEGER = 2**53
_NUM_LOOKED_AT = 1_000
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_UNUSUAL = re.compile(r'["\\\x00-\x1f]')
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


def why_no_name(key: str) -> str | None:
    """Returns why a key cannot be a part of a column's name, None if it can."""
    if not key:
        return "it is empty"
    if "/" in key:
        return "the keys of nested objects are joined by '/'"
    return "it holds a quote, a backslash or a control character" if _UNUSUAL.search(key) else None


class ShapeObserver:
    """Gathers the shapes of rows, and says which features hold them."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._objects: dict[str, str] = {}

    def add(self, rows: list[tuple[str, dict[str, Any]]]) -> None:
        """Takes in rows, each with the place it stands at.

        Raises:
            UsageError: If a value has no place in an example.
        """
        columns: dict[str, tuple[list[int], list[Any]]] = {}
        known: set[str] = set()
        for row_index, (place, row) in enumerate(rows):
            if not known >= row.keys() or dict in map(type, row.values()):
                # A new key, or an object inside of the row.
                self._note_objects(row, place, "")
                known |= row.keys()
                row = dict(flatten(row))
            for path, value in row.items():
                column = columns.get(path)
                if column is None:
                    column = columns[path] = ([], [])
                column[0].append(row_index)
                column[1].append(value)
        for path, (row_indices, values) in columns.items():
            places = [rows[i][0] for i in row_indices]
            seen = self._seen.setdefault(path, Seen())
            self._note_column(path, seen, values, places, is_document=len(rows) == 1)

    def _note_column(self, path: str, seen: Seen, values: list[Any], places: list[str], *, is_document: bool) -> None:
        if list in set(map(type, values)):
            seen.list_place = seen.list_place or next(
                p for p, v in zip(places, values, strict=True) if isinstance(v, list)
            )
            seen.scalar_place = seen.scalar_place or next(
                (p for p, v in zip(places, values, strict=True) if v is not None and not isinstance(v, list)), None
            )
            spread = [
                (p, item)
                for p, v in zip(places, values, strict=True)
                if v is not None
                for item in (v if isinstance(v, list) else [v])
            ]
            places, values = [p for p, _ in spread], [v for _, v in spread]
            _refuse_items(path, values, places, is_document=is_document)
        else:
            present = [v is not None for v in values]
            if not all(present):
                places, values = list(itertools.compress(places, present)), list(itertools.compress(values, present))
            if values:
                seen.scalar_place = seen.scalar_place or places[0]
        types = list(map(type, values))
        for type_ in sorted(set(types), key=types.index):
            seen.kinds.setdefault(_KINDS[type_], places[types.index(type_)])
        integers = {v for v, t in zip(values, types, strict=True) if t is int}
        floats = {v for v, t in zip(values, types, strict=True) if t is float}
        if integers:
            seen.exact_integers &= min(integers) >= -_EXACT_INTEGER and max(integers) <= _EXACT_INTEGER
        seen.fits_float32 = seen.fits_float32 and _fit_float32(integers) and _fit_float32(floats)

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
            if why := why_no_name(key):
                raise UsageError(
                    f"the key {shown(key)} cannot name a column",
                    where=place,
                    why=why,
                    next_step="Rename the key in the file, or leave it out with --drop-columns",
                )
            if isinstance(value, dict):
                self._objects.setdefault(f"{prefix}{key}", place)
                self._note_objects(value, place, f"{prefix}{key}/")


def _refuse_items(path: str, items: list[Any], places: list[str], *, is_document: bool) -> None:
    # The rows can stand in a list of objects where the file holds no other object.
    for item, place in zip(items, places, strict=True):
        if type(item) not in _KINDS:
            what = {"dict": "objects", "list": "lists", "NoneType": "nulls"}[type(item).__name__]
            key = shlex.quote(path.replace("/", "."))
            rows = f", or take its objects as the rows with --records {key}" if is_document else ""
            raise UsageError(
                f"column {shown(path)} is a list of {what}",
                where=place,
                why="which a tf.train.Example cannot hold",
                next_step=f"Leave it out with {drop_option([path])}, or change it in the source"
                f"{rows if what == 'objects' else ''}",
            )


def _fit_float32(numbers: Iterable[int | float]) -> bool:
    # A few decide most columns of which not all fit.
    texts = map(repr, numbers)
    while some := list(itertools.islice(texts, _NUM_LOOKED_AT)):
        if not fits_float32(pa.array(some, pa.string())):
            return False
    return True


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
                next_step=f"Write the integers as strings, or leave the column out with {drop_option([path])}",
            )
        return "float32" if seen.fits_float32 else "float64"
    first = kinds[0]
    other = next(k for k in kinds if {k, first} != {"int", "float"} and k != first)
    raise _clash(path, f"{first} values", seen.kinds[first], f"{other} values", seen.kinds[other])


def _clash(path: str, one: str, here: str, other: str, there: str) -> UsageError:
    return UsageError(
        f"column {shown(path)} has both {one} and {other}",
        why=f"{one} in {here}, {other} in {there}",
        next_step=f"Make them alike in the source, or leave the column out with {drop_option([path])}",
    )
