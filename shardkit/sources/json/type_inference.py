"""Which features JSON objects have: nested keys joined by `/`, and the kinds of value found under each."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import MAX_DIMENSIONS, Feature, Features, make_feature
from shardkit.messages import shown
from shardkit.sources.columns.halving import first_bad_row
from shardkit.sources.json.seen_values import JsonKind, MixedColumn, Seen, clash, dtype_of
from shardkit.sources.text.type_inference import fits_float32

MAX_DEPTH = 128

_EXACT_INTEGER = 2**53
_INT64 = range(-(2**63), 2**63)
_NUM_LOOKED_AT = 1_000
# Objects of more keys, of which each holds less than one of so many, are maps.
_MANY_KEYS, _FEW_OF_THEM = 16, 4
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_UNUSUAL = re.compile(r'["\\\x00-\x1f]')
_KINDS: dict[type, JsonKind] = {int: "int", float: "float", bool: "bool", str: "string"}


class SeenObjects(msgspec.Struct):
    """What the objects below one key were.

    Attributes:
        place: Where the first one was seen.
        keys: How many of them held each key.
        has_odd_key: Whether one held a key that cannot be a part of a column's name.
    """

    place: str
    num_objects: int = 0
    keys: Counter[str] = msgspec.field(default_factory=Counter)
    has_odd_key: bool = False

    @property
    def is_map(self) -> bool:
        """Whether the keys are rather values: none at all, or many of which an object holds few."""
        is_wide = len(self.keys) > _MANY_KEYS and self.keys.total() * _FEW_OF_THEM < len(self.keys) * self.num_objects
        return not self.keys or is_wide or self.has_odd_key


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
        self._objects: dict[str, SeenObjects] = {}
        # Of the keys of rows, in the order in which they were first seen.
        self._order: dict[str, int] = {}
        self.notes: list[str] = []
        # Where floats that are not finite were first seen, by path.
        self._not_finite: dict[str, str] = {}

    def add(self, rows: list[tuple[str, dict[str, Any]]]) -> None:
        """Takes in rows, each with the place it is at. Raises UsageError if a key cannot name a column."""
        columns: dict[str, tuple[list[int], list[Any]]] = {}
        known: set[str] = set()
        for row_index, (place, row) in enumerate(rows):
            if not known >= row.keys() or dict in map(type, row.values()):
                # A new key, or an object inside of the row.
                self._note_keys(row, place)
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
            self._note_column(path, seen, values, places)

    def _note_column(self, path: str, seen: Seen, values: list[Any], places: list[str]) -> None:
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
            plain = [(p, item) for p, item in spread if type(item) in _KINDS]
            was_nested = seen.is_nested
            seen.is_nested |= len(plain) < len(spread)
            if seen.is_nested and len(seen.shapes) < 2:
                # Lists before the first nested one have no shape that goes with it.
                seen.shapes |= {_shape_of(v) for v in values if v is not None}
                seen.shapes |= {None} if seen.kinds and not was_nested else set()
                plain = [(p, leaf) for p, v in zip(places, values, strict=True) for leaf in _leaves(v)]
                plain = [(p, leaf) for p, leaf in plain if type(leaf) in _KINDS]
            within = next((p for p, item in spread if _holds_not_finite(item)), None) if seen.is_nested else None
            if within is not None:
                self._not_finite.setdefault(path, within)
            places, values = [p for p, _ in plain], [v for _, v in plain]
        else:
            present = [v is not None for v in values]
            if not all(present):
                places, values = list(itertools.compress(places, present)), list(itertools.compress(values, present))
            if values:
                seen.scalar_place = seen.scalar_place or places[0]
        types = list(map(type, values))
        for type_ in sorted(set(types), key=types.index):
            seen.kinds.setdefault(_KINDS[type_], places[types.index(type_)])
            seen.first_values.setdefault(_KINDS[type_], values[types.index(type_)])
        self._note_numbers(path, seen, list(zip(values, places, types, strict=True)))

    def _note_numbers(self, path: str, seen: Seen, values: list[tuple[Any, str, type]]) -> None:
        integers, floats = ({v for v, _, t in values if t is type_} for type_ in (int, float))
        if not all(map(math.isfinite, floats)):
            self._not_finite.setdefault(path, next(p for v, p, _ in values if _holds_not_finite(v)))
            floats = set(filter(math.isfinite, floats))
        if integers:
            least, most = min(integers), max(integers)
            seen.are_unsigned &= least >= 0 and most < 2**64
            if seen.first_inexact is None and not (least >= -_EXACT_INTEGER and most <= _EXACT_INTEGER):
                seen.first_inexact = next((v, p) for v, p, t in values if t is int and abs(v) > _EXACT_INTEGER)
            if seen.first_beyond is None and not (least in _INT64 and most in _INT64):
                seen.first_beyond = next((v, p) for v, p, t in values if t is int and v not in _INT64)
        if seen.fits_float32 and not (_fit_float32(integers) and _fit_float32(floats)):
            seen.fits_float32 = False
            seen.first_wide = _first_wide([(v, p) for v, p, t in values if t in (int, float) and math.isfinite(v)])

    def why_wider(self, name: str, dtype: str) -> str | None:
        """Returns the first value that makes a column of numbers of a type, and where it is; None of other columns."""
        seen = self._seen.get(name, Seen())
        if dtype == "float64" and seen.first_wide is not None:
            return f"{seen.first_wide[0]!r} in {seen.first_wide[1]}"
        if dtype in ("float32", "float64") and "float" in seen.kinds:
            return f"{seen.first_values['float']!r} in {seen.kinds['float']}"
        return None

    def has_large_integers(self) -> bool:
        """Returns whether some column holds an integer that int64 does not hold."""
        return any(seen.first_beyond is not None for seen in self._seen.values())

    def place_of(self, name: str) -> str | None:
        """Returns where a column was first seen."""
        seen = self._seen.get(name, Seen())
        return next(iter(seen.kinds.values()), seen.list_place)

    def _note_not_finite(self, features: Features) -> None:
        for path, place in self._not_finite.items():
            within = (path, *parents(path))
            is_text = any(f.is_json and f.name in within for f in features)
            fate = "kept as text in a json column" if is_text else "read as floating-point values"
            self.notes.append(
                f"column {shown(path)} holds NaN or Infinity, which JSON does not know, in {place}: they are {fate}"
            )

    def features(self, *, takes_mixed: bool = False) -> Features:
        """Returns the features, in the order in which their keys were first seen.

        Args:
            takes_mixed: Whether a key that holds values of several kinds by turns is a `json` column.

        Raises:
            MixedColumn: If it is not, and a key holds such.
        """
        # Within a json column there are no others. Objects are in front of those that they hold.
        maps: dict[str, Feature] = {}
        for path, objects in self._objects.items():
            if any(parent in maps for parent in parents(path)):
                continue
            if (other := self._seen.get(path)) is not None and (place := other.scalar_place or other.list_place):
                self._refuse_or_note(
                    clash(path, "an object", "a value", f"an object in {objects.place}, a value in {place}"),
                    takes_mixed,
                )
            elif not objects.is_map:
                continue
            maps[path] = make_feature(path, "json", nullable=True)
        features = list(maps.values())
        for path, seen in self._seen.items():
            is_inside = path in maps or any(parent in maps for parent in parents(path))
            if not is_inside and (seen.kinds or seen.list_place or path not in self._objects):
                features.append(self._feature(path, seen, takes_mixed))
        self._note_not_finite(tuple(features))
        return tuple(sorted(features, key=lambda f: self._order[f.name.split("/")[0]]))

    def _feature(self, path: str, seen: Seen, takes_mixed: bool) -> Feature:
        sizes = next(iter(seen.shapes)) if len(seen.shapes) == 1 else None
        if seen.is_nested and (sizes is None or len(sizes) > MAX_DIMENSIONS):
            return make_feature(path, "json", nullable=True)
        shape: tuple[int | None, ...] = sizes or ((None,) if seen.list_place else ())
        try:
            if seen.list_place and seen.scalar_place:
                why = f"a list in {seen.list_place}, a single value in {seen.scalar_place}"
                raise clash(path, "a list", "a single value", why)
            dtype = dtype_of(path, seen)
            if dtype == "string" and seen.first_beyond is not None:
                value, place = seen.first_beyond
                advice = f"; --cast {shlex.quote(f'{path}=uint64')} makes numbers of it" if seen.are_unsigned else ""
                self.notes.append(f"column {shown(path)} is string, because {value} in {place} is beyond int64{advice}")
            return make_feature(path, dtype, shape, nullable=True)
        except MixedColumn as error:
            self._refuse_or_note(error, takes_mixed)
            return make_feature(path, "json", nullable=True)

    def _refuse_or_note(self, error: MixedColumn, takes_mixed: bool) -> None:
        if not takes_mixed:
            raise error
        self.notes.append(error.note)

    def _note_keys(self, row: dict[str, Any], place: str) -> None:
        for key, value in row.items():
            if why := why_no_name(key):
                raise UsageError(
                    f"the key {shown(key)} cannot name a column",
                    where=place,
                    why=why,
                    next_step="Rename the key in the file, or leave it out with --drop-columns",
                )
            self._order.setdefault(key, len(self._order))
            if isinstance(value, dict):
                self._note_object(key, value, place)

    def _note_object(self, path: str, value: dict[str, Any], place: str) -> None:
        objects = self._objects.setdefault(path, SeenObjects(place=place))
        objects.num_objects += 1
        objects.keys.update(value.keys())
        for key, below in value.items():
            objects.has_odd_key |= why_no_name(key) is not None
            if isinstance(below, dict):
                self._note_object(f"{path}/{key}", below, place)


def parents(path: str) -> Iterator[str]:
    """Yields the paths of the objects around a value, the outermost first."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def _holds_not_finite(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_holds_not_finite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


def _fit_float32(numbers: Iterable[int | float]) -> bool:
    # A few decide most columns of which not all fit.
    texts = map(repr, numbers)
    while some := list(itertools.islice(texts, _NUM_LOOKED_AT)):
        if not fits_float32(pa.array(some, pa.string())):
            return False
    return True


def _shape_of(value: Any) -> tuple[int, ...] | None:
    # Of numbers and booleans: texts in pairs are rarely arrays.
    if not isinstance(value, list):
        return () if type(value) in (int, float, bool) else None
    found = set(map(_shape_of, value))
    inner = found.pop() if len(found) == 1 else None
    return None if inner is None else (len(value), *inner)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _first_wide(numbers: list[tuple[float, str]]) -> tuple[float, str]:
    def fits(start: int, stop: int) -> bool:
        return _fit_float32({value for value, _ in numbers[start:stop]})

    return numbers[first_bad_row(fits, len(numbers))]
