"""Rows as `tf.train.Example` stores them, as multisets of hashes: to compare two readers that share no code.

A column is how many values each row has, and all values one after the other: int64, float32, float64 or bytes. What a
dtype becomes is written down here once more, from the README and not from the code of the converter.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

_EPOCH = dt.date(1970, 1, 1)
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TEMPORAL = re.compile(r"(timestamp|duration|time)\[(s|ms|us|ns)\]")
_ISO = re.compile(r"(\d+-\d+-\d+)(?:[ T](\d+):(\d+)(?::(\d+)(?:\.(\d+))?)?(Z|[-+].+)?)?")
_CHOSEN_BITS = {np.dtype("f4"): np.uint32, np.dtype("f8"): np.uint64}


class Stored(NamedTuple):
    """One column.

    Attributes:
        counts: Values per row; 0 is a null or an empty list.
        values: All of them: int64, float32, float64, or an object array of bytes.
    """

    counts: np.ndarray
    values: np.ndarray


class Text(str):
    """A field of a text format, whose meaning the feature decides."""


class OddValueError(ValueError):
    """A value that the feature cannot hold."""


class Difference(NamedTuple):
    """Rows that only one of two readers has.

    Attributes:
        num_rows: Of each.
        num_missing: Rows that the shards lack.
        num_extra: Rows that only the shards have.
        columns: In which the multisets of values differ, each by itself.
    """

    num_rows: tuple[int, int]
    num_missing: int
    num_extra: int
    columns: tuple[str, ...]

    def __str__(self) -> str:
        if not (self.num_missing or self.num_extra):
            return f"{self.num_rows[0]:,} rows equal"
        where = f" in {', '.join(self.columns)}" if self.columns else ""
        return f"DIFFERENT: {self.num_missing:,} of {self.num_rows[0]:,} missing, {self.num_extra:,} too many{where}"


def compare(wanted: Mapping[str, Stored], found: Mapping[str, Stored]) -> Difference:
    """Returns how the rows of two readers differ, as multisets."""
    if wanted.keys() != found.keys():
        return Difference((-1, -1), -1, -1, tuple(sorted(wanted.keys() ^ found.keys())))
    hashes = [{name: _hash_rows(column) for name, column in sorted(rows.items())} for rows in (wanted, found)]
    left, right = (_row_hashes(columns) for columns in hashes)
    missing, extra = _surplus(left, right), _surplus(right, left)
    different = [n for n in hashes[0] if _surplus(hashes[0][n], hashes[1][n]) or _surplus(hashes[1][n], hashes[0][n])]
    return Difference((len(left), len(right)), missing, extra, tuple(different))


def encode(values: Any, feature: Mapping[str, Any]) -> Stored:
    """Returns what a feature stores for logical values: None, one value, or a sequence of values a row.

    Raises:
        MisfitError: At a value that the feature cannot hold.
    """
    if isinstance(values, Stored):
        return values
    if isinstance(values, np.ndarray) and values.ndim > 1:
        counts = np.full(len(values), math.prod(values.shape[1:]))
        return Stored(counts, _typed(values.reshape(-1), feature["stored_as"]))
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return Stored(np.ones(len(values), np.int64), _typed(values, feature["stored_as"]))
    convert = _converter(feature)
    if not feature.get("shape"):
        flat = [convert(v) for v in values if not _is_null(v, feature)]
        return Stored(
            np.array([not _is_null(v, feature) for v in values], np.int64), _typed(flat, feature["stored_as"])
        )
    rows = [() if v is None else list(_flattened(v)) for v in values]
    flat = [convert(v) for row in rows for v in row]
    return Stored(np.array([len(r) for r in rows], np.int64), _typed(flat, feature["stored_as"]))


def storable_rows(table: Mapping[str, Sequence[Any]], features: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the positions of the rows of which every value fits its feature."""
    bad: set[int] = set()
    num_rows = 0
    for feature in features:
        values = table[feature["name"]]
        num_rows = len(values)
        bad.update(i for i, value in enumerate(values) if i not in bad and not _fits(value, feature))
    return [i for i in range(num_rows) if i not in bad]


def _fits(value: Any, feature: Mapping[str, Any]) -> bool:
    if _is_null(value, feature):
        return bool(feature.get("nullable"))
    convert = _converter(feature)
    try:
        for item in _flattened(value) if feature.get("shape") else (value,):
            convert(item)
    except (ValueError, TypeError):
        return False
    return True


def _is_null(value: Any, feature: Mapping[str, Any]) -> bool:
    return value is None or (isinstance(value, Text) and value == "" and feature["dtype"] != "string")


def _flattened(value: Any) -> Any:
    for item in value:
        if isinstance(item, list | tuple | np.ndarray):
            yield from _flattened(item)
        else:
            yield item


def _typed(flat: Any, stored_as: str) -> np.ndarray:
    if stored_as == "bytes_list":
        array = np.empty(len(flat), object)
        array[:] = flat
        return array
    dtype = {"int64_list": np.int64, "float_list": np.float32, "little_endian_bytes": np.float64}[stored_as]
    if isinstance(flat, np.ndarray):
        return flat.astype(dtype)
    if stored_as == "int64_list":
        return np.array([v - 2**64 if v >= 2**63 else v for v in flat], np.int64)
    return np.array(flat, dtype)


def _converter(feature: Mapping[str, Any]) -> Callable[[Any], Any]:
    dtype, vocabulary = feature["dtype"], feature.get("vocabulary")
    if vocabulary is not None:
        return lambda v: vocabulary.index(v) if isinstance(v, str) else int(v)
    if match := _TEMPORAL.fullmatch(dtype):
        unit = _UNITS[match[2]]
        return lambda v: _exact(nanoseconds(v), unit)
    if dtype.startswith("decimal"):
        scale = int(dtype.rstrip(")").split(",")[1])
        return lambda v: _decimal(v, scale)
    if dtype.startswith(("int", "uint")):
        bits, low = int(dtype.lstrip("uint")), 0 if dtype.startswith("u") else 1
        return lambda v: _integer(v, -low << (bits - 1), 1 << (bits - low))
    return {
        "bool": _truth, "date": _days, "string": _utf8, "bytes": _utf8,
        "float16": _number, "float32": _number, "float64": _number,
    }[dtype]  # fmt: skip


def _integer(value: Any, low: int, stop: int) -> int:
    if isinstance(value, Text) and not re.fullmatch(r"[ \t]*[-+]?[0-9]+[ \t]*", value):
        raise OddValueError(value)
    number = int(value)
    if not low <= number < stop or (isinstance(value, float) and number != value):
        raise OddValueError(value)
    return number


def _number(value: Any) -> float:
    if isinstance(value, Text) and "_" in value:
        raise OddValueError(value)
    return float(value)


def _truth(value: Any) -> int:
    if not isinstance(value, str):
        return int(value)
    if value.lower() not in ("true", "false"):
        raise OddValueError(value)
    return int(value.lower() == "true")


def _days(value: Any) -> int:
    if isinstance(value, str):
        value = dt.date.fromisoformat(value)
    return (value - _EPOCH).days if isinstance(value, dt.date) else int(value)


def _utf8(value: Any) -> bytes:
    # Bytes that are no UTF-8 were read as lone surrogates, which do not encode.
    return value.encode() if isinstance(value, str) else bytes(value)


def _decimal(value: Any, scale: int) -> bytes:
    exact = Decimal(str(value))
    return format(exact.quantize(Decimal(1).scaleb(-scale)) if scale >= 0 else exact, "f").encode()


def _exact(value: int, unit: int) -> int:
    if value % unit:
        raise OddValueError(f"{value} ns")
    return value // unit


def nanoseconds(value: Any) -> int:
    """Returns a moment, a time or a duration in nanoseconds, exactly; integers are that already, text is ISO 8601."""
    if isinstance(value, dt.datetime):
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if value.tzinfo else None)
        return (value - epoch) // dt.timedelta(microseconds=1) * 1000
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1) * 1000
    if not isinstance(value, str):
        return int(value)
    match = _ISO.fullmatch(value)
    if match is None:
        raise OddValueError(value)
    day, hour, minute, second, fraction, zone = match.groups()
    seconds = _days(day) * 86_400 + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    if zone not in (None, "Z"):
        digits = re.sub(r"\D", "", zone).ljust(4, "0")
        seconds -= (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
    return seconds * 10**9 + int((fraction or "0").ljust(9, "0"))


def _hash_values(values: np.ndarray) -> np.ndarray:
    if values.dtype in _CHOSEN_BITS:
        values = np.where(np.isnan(values), values.dtype.type("nan"), values).view(_CHOSEN_BITS[values.dtype])
    return pd.util.hash_array(values, categorize=False) if len(values) else np.empty(0, np.uint64)


def _hash_rows(column: Stored) -> np.ndarray:
    hashes, counts = _hash_values(column.values), column.counts
    # 64-bit sums wrap; a position changes the value's weight, so that order matters.
    starts = np.cumsum(counts) - counts
    positions = np.arange(len(hashes)) - np.repeat(starts, counts)
    weighted = hashes * _mixed(positions.astype(np.uint64)) if len(hashes) else hashes
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)])
    return _mixed(sums[starts + counts] - sums[starts] + _mixed(counts.astype(np.uint64)))


def _row_hashes(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    total = np.zeros(len(next(iter(columns.values()))), np.uint64)
    for hashes in columns.values():
        total = _mixed(total + hashes)
    return total


def _mixed(values: np.ndarray) -> np.ndarray:
    mixed = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    return (mixed * np.uint64(0x94D049BB133111EB)) | np.uint64(1)


def _surplus(left: np.ndarray, right: np.ndarray) -> int:
    """How many elements of the multiset `left` are not in `right`."""
    values, counts = np.unique(left, return_counts=True)
    others, theirs = np.unique(right, return_counts=True)
    positions = np.searchsorted(others, values)
    positions[positions == len(others)] = 0
    matched = np.where(others[positions] == values, theirs[positions], 0) if len(others) else np.zeros_like(counts)
    return int(np.maximum(counts - matched, 0).sum())
