"""Checks all records of a block at once: that each is a `tf.train.Example` with the features of the manifest.

Records as shardkit writes them (features in the byte order of their names, lengths minimal or not) are followed field
by field with array arithmetic, all records of the block in step; about ten times faster than parsing one by one.
Whatever strays from that form is parsed by protobuf, which decides. So nothing is refused only for its form, and
nothing is accepted that protobuf would refuse. Wire format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.errors import DamageError
from shardkit.example import parse_record, stored_values
from shardkit.features import Feature, Features

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FIELD_1, _FIELD_2 = 0x0A, 0x12
_KIND_TAGS = {"bytes_list": 0x0A, "little_endian_bytes": 0x0A, "float_list": 0x12, "int64_list": 0x1A}
_MAX_VARINT_BYTES = 10
_HIGH_BITS = 0x8080808080808080


class _Expected(msgspec.Struct, frozen=True):
    feature: Feature
    prefix: bytes
    kind_tag: int


class _Span(NamedTuple):
    """One payload a record, half-open positions in the buffer."""

    start: Int64s
    stop: Int64s


class ExampleChecker:
    """Checks records against features.

    Args:
        features: Of the manifest.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        ordered = sorted(features, key=lambda f: f.name.encode())
        self._expected = [_Expected(f, _key_prefix(f.name), _KIND_TAGS[f.stored_as]) for f in ordered]

    def find_problems(self, buffer: bytes, starts: Int64s, lengths: Int64s) -> list[tuple[int, str]]:
        """Returns the position and the problem of every record that is not as the manifest says.

        Args:
            buffer: Holds the records.
            starts: Where each record starts in the buffer.
            lengths: Bytes of each record.
        """
        if len(starts) == 0:
            return []
        passed = _Bytes(buffer).follow(starts, starts + lengths, self._expected)
        problems = []
        for i in np.flatnonzero(~passed).tolist():
            problem = self.find_problem(buffer[starts[i] : starts[i] + lengths[i]])
            if problem is not None:
                problems.append((i, problem))
        return problems

    def find_problem(self, record: bytes) -> str | None:
        """Returns what is wrong with one record, None if nothing is."""
        try:
            stored = parse_record(record, "")
            for feature in self._features:
                stored_values(stored, feature, "")
        except DamageError as error:
            return f"{error.what}: {error.why}"
        unknown = set(stored) - {f.name for f in self._features}
        return f"it has the feature {min(unknown)!r}, which the manifest does not name" if unknown else None


class _Bytes:
    """The bytes of a buffer and where it is being read, one position a record."""

    def __init__(self, buffer: bytes) -> None:
        padded = buffer + bytes(16)
        self._last = len(buffer)
        self._bytes = np.frombuffer(padded, np.uint8)
        self._words: npt.NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        self._num_varints: Int64s | None = None
        self._num_overlong: Int64s | None = None

    def follow(self, starts: Int64s, stops: Int64s, expected: list[_Expected]) -> Bools:
        passed: Bools = self._byte(starts) == _FIELD_1
        length, position, is_short = self._varint(starts + 1)
        passed &= is_short & (position + length == stops)
        # An Example without features may also be zero bytes; protobuf decides about those.
        for one in expected:
            is_present, span, is_well_formed = self._find(one, position, stops)
            passed &= np.where(is_present, is_well_formed & self._holds(one.feature, span), one.feature.nullable)
            position = self._clip(np.where(is_present, span.stop, position))
        passed &= position == stops
        return passed

    def _find(self, one: _Expected, position: Int64s, stops: Int64s) -> tuple[Bools, _Span, Bools]:
        """Returns whether the feature comes next, where its list lies, and whether all lengths around it agree."""
        is_present = (self._byte(position) == _FIELD_1) & (position < stops)
        entry_length, inner, is_well_formed = self._varint(position + 1)
        stop = inner + entry_length
        is_present &= self._matches(inner, one.prefix)
        length, inner, is_short = self._varint(inner + len(one.prefix))
        is_well_formed &= is_short & (inner + length == stop) & (self._byte(inner) == one.kind_tag)
        length, inner, is_short = self._varint(inner + 1)
        is_well_formed &= is_short & (inner + length == stop) & (stop <= stops)
        return is_present, _Span(inner, stop), is_well_formed

    def _holds(self, feature: Feature, span: _Span) -> Bools:
        if feature.stored_as == "bytes_list":
            return self._count_strings(span, feature.num_values)
        is_empty: Bools = span.start == span.stop
        length, inner, is_short = self._varint(span.start + 1)
        is_one_run: Bools = is_short & (self._byte(span.start) == _FIELD_1) & (inner + length == span.stop) & ~is_empty
        if feature.stored_as == "int64_list":
            is_one_run &= self._holds_varints(_Span(inner, span.stop), feature)
        else:
            num_value_bytes = 4 if feature.stored_as == "float_list" else 8
            fits = length % num_value_bytes == 0
            is_one_run &= fits if feature.num_values is None else length == num_value_bytes * feature.num_values
        if feature.num_values is None and feature.stored_as != "little_endian_bytes":
            is_one_run |= is_empty
        return is_one_run

    def _count_strings(self, span: _Span, num_values: int | None) -> Bools:
        counts = np.zeros(len(span.start), np.int64)
        passed = np.ones(len(span.start), np.bool_)
        position = span.start.copy()
        rows = np.flatnonzero(position < span.stop)
        while len(rows):
            length, inner, is_short = self._varint(position[rows] + 1)
            is_string = is_short & (self._byte(position[rows]) == _FIELD_1) & (inner + length <= span.stop[rows])
            passed[rows] &= is_string
            position[rows] = inner + length
            counts[rows] += 1
            rows = rows[is_string & (position[rows] < span.stop[rows])]
            if num_values is not None:
                rows = rows[counts[rows] < num_values]
        passed &= position == span.stop
        if num_values is not None:
            passed &= counts == num_values
        return passed

    def _holds_varints(self, span: _Span, feature: Feature) -> Bools:
        if feature.is_scalar:
            return self._is_one_varint(span.start, span.stop - span.start)
        ends, overlong = self._varint_sums()
        start, stop = self._clip(span.start), self._clip(span.stop)
        passed: Bools = (self._byte(stop - 1) < 0x80) & (overlong[stop] == overlong[start])
        if feature.num_values is not None:
            passed &= ends[stop] - ends[start] == feature.num_values
        return passed

    def _is_one_varint(self, start: Int64s, length: Int64s) -> Bools:
        passed: Bools = (length >= 1) & (length <= _MAX_VARINT_BYTES)
        high = self._words[self._clip(start)] & np.uint64(_HIGH_BITS)
        size = np.clip(length, 0, 9)
        passed &= (high & _FIRST_BYTES[np.minimum(size, 8)]) == _CONTINUED[size]
        if (length > 8).any():
            tail = self._words[self._clip(start + 8)] & np.uint64(_HIGH_BITS)
            size = np.clip(length - 8, 1, 2)
            passed &= (length <= 8) | ((tail & _FIRST_BYTES[size]) == _CONTINUED[size])
        return passed

    def _varint_sums(self) -> tuple[Int64s, Int64s]:
        """Returns, before each position, how many varints have ended and how many bytes follow ten unended ones."""
        if self._num_varints is None or self._num_overlong is None:
            is_end = self._bytes < 0x80
            self._num_varints = np.concatenate([[0], np.cumsum(is_end)])
            ended_before = np.concatenate([np.full(_MAX_VARINT_BYTES, -1), self._num_varints[:-1]])
            is_overlong = ended_before[: len(is_end)] == self._num_varints[: len(is_end)]
            self._num_overlong = np.concatenate([[0], np.cumsum(is_overlong)])
        return self._num_varints, self._num_overlong

    def _matches(self, position: Int64s, text: bytes) -> Bools:
        same = np.ones(len(position), np.bool_)
        for first in range(0, len(text), 8):
            chunk = text[first : first + 8]
            word = self._words[self._clip(position + first)] & _FIRST_BYTES[len(chunk)]
            same &= word == np.uint64(int.from_bytes(chunk, "little"))
        return same

    def _varint(self, position: Int64s) -> tuple[Int64s, Int64s, Bools]:
        """Returns the number at each position, where it ends, and whether it ended within five bytes."""
        value = self._byte(position).astype(np.int64)
        position = position + 1
        goes_on = value >= 0x80
        for shift in (7, 14, 21, 28):
            if not goes_on.any():
                break
            byte = np.where(goes_on, self._byte(position), 0).astype(np.int64)
            value = np.where(goes_on, value & ((1 << shift) - 1) | byte << shift, value)
            position = position + goes_on
            goes_on = byte >= 0x80
        return value, position, ~goes_on

    def _byte(self, position: Int64s) -> npt.NDArray[np.uint8]:
        found: npt.NDArray[np.uint8] = self._bytes[self._clip(position)]
        return found

    def _clip(self, position: Int64s) -> Int64s:
        # Positions come from lengths that nobody has checked; those outside read the padding and fail later.
        return np.minimum(position, self._last)


def _key_prefix(name: str) -> bytes:
    key = name.encode()
    length = len(key)
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes([_FIELD_1]) + bytes(encoded) + key + bytes([_FIELD_2])


# By number of bytes: all their bits; and the high bits of one varint of that many bytes (9: one that goes on).
_FIRST_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)
_CONTINUED = np.array([0, *((_HIGH_BITS & ((1 << (8 * n)) - 1)) for n in range(8)), _HIGH_BITS], dtype=np.uint64)
