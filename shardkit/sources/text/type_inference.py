"""Which dtype text values have: evidence gathered per column, and the rule that decides.

No rule loses anything: leading zeros, integers beyond int64 and mixtures stay strings; a float is float32 only while
no value has more than six significant digits, which is what float32 holds exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.features import Feature, make_feature

Kind = Literal["int", "float", "nonfinite", "bool", "date", "timestamp", "zoned", "text"]

FLOAT32_DIGITS = 6

_EXACT_INTEGER = 2**53
_FLOAT32_SMALLEST, _FLOAT32_LARGEST = 1.1754944e-38, 3.4028234e38
# A column is nearly of a type if no more than this share of its values are of none of these kinds.
_UNTYPED_SHARE = 0.2
_KINDS_OF_TYPES: tuple[frozenset[Kind], ...] = (
    frozenset({"int", "float", "nonfinite"}),
    frozenset({"int"}),
    frozenset({"bool"}),
    frozenset({"date", "timestamp"}),
    frozenset({"zoned"}),
)
USUAL_NULLS = ("NA", "N/A", "n/a", "na", "NULL", "null", "None", "none", "-", "?", "\\N", "#N/A", ".")
_SPACE = r"[ \t]*"
_NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*")
_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("int", rf"^{_SPACE}(0|-?[1-9][0-9]{{0,18}}){_SPACE}$"),
    (
        "float",
        rf"^{_SPACE}-?((0|[1-9][0-9]*)(\.[0-9]*([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)|\.[0-9]+([eE][-+]?[0-9]+)?|0)"
        rf"{_SPACE}$",
    ),
    ("nonfinite", rf"(?i)^{_SPACE}(nan|[-+]?inf|[-+]?infinity){_SPACE}$"),
    ("bool", r"(?i)^(true|false)$"),
    ("date", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
    ("timestamp", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?$"),
    (
        "zoned",
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[-+][0-9]{2}(:?[0-9]{2})?)$",
    ),
)


class UntypedValue(NamedTuple):
    """A value that makes a column text, and the type that it would have but for such values."""

    value: str
    dtype: str

    @property
    def is_usual_null(self) -> bool:
        """Whether it is a usual way to write null."""
        return self.value in USUAL_NULLS


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What some values of one column look like.

    Attributes:
        kinds: Kinds that occur; empty if there are no values.
        exact_integers: Whether float64 holds all integers among them.
        fits_float32: Whether float32 holds all numbers among them to the last written digit.
        nanoseconds: Whether a timestamp has more than six decimals.
        num_leading_zeros: Values that would be integers but for a leading zero.
    """

    kinds: frozenset[Kind] = frozenset()
    exact_integers: bool = True
    fits_float32: bool = True
    nanoseconds: bool = False
    num_leading_zeros: int = 0


def examine(values: pa.Array, null_spellings: Iterable[str] = ()) -> Evidence:
    """Returns the evidence of text values; nulls, empty values and spellings of null say nothing."""
    values = values.unique().drop_null()
    empty = pa.array(["", *null_spellings], pa.string())
    values = values.filter(pc.invert(pc.is_in(values, value_set=empty)))
    kinds: set[Kind] = set()
    integers = numbers = pa.array([], pa.string())
    nanoseconds, num_leading_zeros = False, 0
    rest = values
    for kind, pattern in _PATTERNS:
        if not len(rest):
            break
        found, rest = _parted(rest, pc.match_substring_regex(rest, pattern))
        if not len(found):
            continue
        if kind in ("int", "float"):
            found, beyond = _within_range(kind, pc.utf8_trim_whitespace(found))
            rest = pa.concat_arrays([rest, beyond]) if len(beyond) else rest
            integers = found if kind == "int" else integers
            numbers = pa.concat_arrays([numbers, found])
        elif kind in ("date", "timestamp", "zoned"):
            nanoseconds |= bool(pc.any(pc.match_substring_regex(found, r"\.[0-9]{7,9}")).as_py())
            if not _is_valid_time(kind, found, nanoseconds):
                rest = pa.concat_arrays([rest, found])
                continue
        if len(found):
            kinds.add(kind)
    if len(rest):
        kinds.add("text")
        zeros = pc.match_substring_regex(rest, r"^-?0[0-9]+$")
        num_leading_zeros = int(pc.sum(zeros).as_py())
    return Evidence(
        kinds=frozenset(kinds),
        exact_integers=_are_exact(integers),
        fits_float32="text" in kinds or fits_float32(numbers),
        nanoseconds=nanoseconds,
        num_leading_zeros=num_leading_zeros,
    )


def unite(evidence: Iterable[Evidence]) -> Evidence:
    """Returns the evidence of several samples of one column taken together."""
    parts = list(evidence)
    return Evidence(
        kinds=frozenset().union(*(e.kinds for e in parts)),
        exact_integers=all(e.exact_integers for e in parts),
        fits_float32=all(e.fits_float32 for e in parts),
        nanoseconds=any(e.nanoseconds for e in parts),
        num_leading_zeros=sum(e.num_leading_zeros for e in parts),
    )


def decide(name: str, evidence: Evidence) -> Feature:
    """Returns the feature that holds all values of the evidence without loss; nullable, as text always is."""
    kinds = evidence.kinds
    unit = "ns" if evidence.nanoseconds else "us"
    dtype, timezone = "string", None
    if kinds == {"int"}:
        dtype = "int64"
    elif kinds & {"int", "float"} and kinds <= {"int", "float", "nonfinite"} and evidence.exact_integers:
        dtype = "float32" if evidence.fits_float32 else "float64"
    elif kinds == {"bool"}:
        dtype = "bool"
    elif kinds == {"date"}:
        dtype = "date"
    elif kinds and kinds <= {"date", "timestamp"}:
        dtype = f"timestamp[{unit}]"
    elif kinds == {"zoned"}:
        dtype, timezone = f"timestamp[{unit}]", "UTC"
    return make_feature(name, dtype, nullable=True, timezone=timezone)


def find_untyped_value(
    values: pa.Array, null_spellings: Sequence[str], others: Evidence | None = None
) -> UntypedValue | None:
    """Returns the first value that makes a column text although nearly all are of one type; None if there is none.

    Args:
        values: Text values of a column that is read as strings.
        null_spellings: What counts as null; so do the usual ones, of which `column_notes` tells, without `others`.
        others: Evidence of values elsewhere that are of one type, if that is what these do not go with.
    """
    said = values.drop_null()
    empty = pa.array(["", *null_spellings, *(USUAL_NULLS if others is None else ())], pa.string())
    said = said.filter(pc.invert(pc.is_in(said, value_set=empty)))
    for kinds in _KINDS_OF_TYPES:
        if others is not None and not others.kinds <= kinds:
            continue
        fits = _are_of(kinds, said)
        others_found = said.filter(pc.invert(fits))
        if not len(others_found) or (others is None and len(others_found) > len(said) * _UNTYPED_SHARE):
            continue
        dtype = decide("column", examine(said.filter(fits)) if others is None else others).dtype
        if dtype != "string":
            return UntypedValue(value=others_found[0].as_py(), dtype=dtype)
    return None


def count_from_zero(names: Sequence[str]) -> bool:
    """Whether names count up from 0, as data frames write columns that have none."""
    return list(names) == [str(number) for number in range(len(names))]


def fits_float32(numbers: pa.Array) -> bool:
    """Whether float32 holds all decimal numbers, given as text without spaces, to the last significant digit."""
    if not _have_few_digits(numbers):
        return False
    sizes = pc.abs(numbers.cast(pa.float64()))
    sizes = sizes.filter(pc.greater(sizes, 0.0))
    if not len(sizes):
        return True
    bounds = pc.min_max(sizes).as_py()
    return bool(bounds["min"] >= _FLOAT32_SMALLEST and bounds["max"] <= _FLOAT32_LARGEST)


def _have_few_digits(numbers: pa.Array) -> bool:
    text = numbers.buffers()[2]
    if text is not None and any(e in text.to_pybytes() for e in (b"e", b"E")):
        numbers = pc.replace_substring_regex(numbers, r"[eE].*$", "")
    # The rest begins and ends with a digit that counts, and may hold a point.
    digits = pc.ascii_rtrim(pc.ascii_ltrim(numbers, "-+0."), "0.")
    num_digits = pc.subtract(pc.binary_length(digits), pc.count_substring(digits, "."))
    longest = pc.max(num_digits).as_py()
    return longest is None or longest <= FLOAT32_DIGITS


def _parted(values: pa.Array, matches: pa.Array) -> tuple[pa.Array, pa.Array]:
    # The values that match, and the others. Mostly all are of one kind.
    if pc.all(matches).as_py():
        return values, values[:0]
    if not pc.any(matches).as_py():
        return values[:0], values
    return values.filter(matches), values.filter(pc.invert(matches))


def _are_of(kinds: frozenset[Kind], values: pa.Array) -> pa.Array:
    found = pa.array(np.zeros(len(values), dtype=bool))
    for kind, pattern in _PATTERNS:
        if kind not in kinds:
            continue
        matches = pc.match_substring_regex(values, pattern)
        alike = pc.utf8_trim_whitespace(values.filter(matches)).unique()
        if kind in ("int", "float") and len(alike):
            alike, _ = _within_range(kind, alike)
        elif kind in ("date", "timestamp", "zoned") and not _is_time(kind, alike):
            alike = alike.filter(pa.array([_is_time(kind, alike[i : i + 1]) for i in range(len(alike))], pa.bool_()))
        matches = pc.and_(matches, pc.is_in(pc.utf8_trim_whitespace(values), value_set=alike))
        found = pc.or_(found, matches)
    return found


def _within_range(kind: Kind, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    # Integers of 19 digits may be beyond int64, floats beyond float64: those stay text.
    if kind == "int":
        if pc.max(pc.binary_length(values)).as_py() < 19:
            return values, values[:0]
        fits = pa.array([-(2**63) <= int(v) < 2**63 for v in values.to_pylist()], pa.bool_())
    else:
        fits = pc.is_finite(values.cast(pa.float64()))
    return _parted(values, fits)


def _are_exact(integers: pa.Array) -> bool:
    if not len(integers):
        return True
    values = integers.cast(pa.int64())
    bounds = pc.min_max(values).as_py()
    return bool(bounds["min"] >= -_EXACT_INTEGER and bounds["max"] <= _EXACT_INTEGER)


def _is_time(kind: Kind, values: pa.Array) -> bool:
    return _is_valid_time(kind, values, nanoseconds=False) or _is_valid_time(kind, values, nanoseconds=True)


def _is_valid_time(kind: Kind, values: pa.Array, nanoseconds: bool) -> bool:
    type_ = {
        "date": pa.date32(),
        "timestamp": pa.timestamp("ns" if nanoseconds else "us"),
        "zoned": pa.timestamp("ns" if nanoseconds else "us", "UTC"),
    }[kind]
    try:
        values.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True
