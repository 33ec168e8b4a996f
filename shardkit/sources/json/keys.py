"""Strings and keys of JSON as they are in the text.

Strings are found in whole blocks at once. Decoders keep only the last of keys that are the same.
NaN and infinities are no JSON, but Python's `json` writes them, and floats hold them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.sources.text.blocks import Positions, as_array

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
# A key that no document has: a character for private use.
_KEY = "\uf8ff"
_BEGIN = b'{"%s":"' % _KEY.encode()
_SPELLED = re.compile(re.escape(_BEGIN) + rb'(-?\w+)"}')


Flags = npt.NDArray[np.bool_]

OBJECTS = msgspec.json.Decoder(dict[str, Any])

_SPACES = b" \t\r\n"
_NUM_STEPS = 8
_QUOTE, _BACKSLASH = 0x22, 0x5C


def are_escaped(values: npt.NDArray[np.uint8], quotes: Positions) -> Flags:
    """Returns which quotes are part of a string, because an odd number of backslashes is before them."""
    escaped = np.zeros(len(quotes), dtype=np.bool_)
    candidates = np.flatnonzero((values[quotes - 1] == _BACKSLASH) & (quotes > 0))
    if len(candidates):
        backslashes = np.flatnonzero(values == _BACKSLASH)
        numbers = np.arange(len(backslashes))
        is_first = np.diff(backslashes, prepend=-2) != 1
        first_of_run = np.maximum.accumulate(np.where(is_first, numbers, 0))
        last = np.searchsorted(backslashes, quotes[candidates] - 1)
        escaped[candidates] = (last - first_of_run[last]) % 2 == 0
    return escaped


def inside_strings(values: npt.NDArray[np.uint8], positions: Positions) -> Flags:
    """Returns which places of a text, that begins outside of strings, are inside of one."""
    quotes = np.flatnonzero(values == _QUOTE)
    quotes = quotes[~are_escaped(values, quotes)]
    inside: Flags = np.searchsorted(quotes, positions) % 2 == 1
    return inside


def find_keys(data: bytes) -> Positions:
    """Returns where the quotes are that end keys.

    In JSON a quote with a colon behind it ends a key, unless an odd number of backslashes before it make it a part of a
    string.

    Args:
        data: Valid JSON texts.
    """
    values = as_array(data)
    ends = np.flatnonzero(values == ord(":")) - 1
    spaced = np.flatnonzero(values[ends] <= ord(" "))
    for _ in range(_NUM_STEPS):
        if not len(spaced):
            break
        ends[spaced] -= 1
        spaced = spaced[values[ends[spaced]] <= ord(" ")]
    for position in spaced.tolist():
        ends[position] = _skip_spaces_back(data, int(ends[position]) + 1) - 1
    ends = ends[values[ends] == ord('"')]
    found: Positions = ends[~are_escaped(values, ends)]
    return found


def repeated_key(line: bytes, num_written: int | None = None) -> str | None:
    """Returns a key that the object of a line, or one inside it, holds twice.

    Args:
        line: An object that fits.
        num_written: Number of keys in its text, if known.
    """
    if num_written is None:
        num_written = len(find_keys(line))
    if num_written == count_keys(OBJECTS.decode(with_nulls(line))):
        return None
    return next(iter(repeated_keys(line)), None)


def repeated_keys(text: bytes) -> list[str]:
    """Returns the keys that an object of some JSON holds twice."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        repeated.extend(k for k in keys if keys.count(k) > 1)

    json.loads(text, object_pairs_hook=look)
    return repeated


def with_last_values(line: bytes) -> bytes:
    """Returns an object with only the last value of each key, numbers as they were written.

    Args:
        line: A valid object.
    """
    row = json.loads(line, parse_int=_as_written, parse_float=_as_written, parse_constant=_as_written)
    return msgspec.json.encode(row)


def count_keys(row: dict[str, Any]) -> int:
    """Returns the number of keys of an object and of those inside it; lists hold none in lines that fit."""
    return len(row) + sum([count_keys(value) for value in row.values() if type(value) is dict])


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


def _skip_spaces_back(data: bytes, stop: int) -> int:
    # Returns the start of the white space before `stop`.
    step = 64
    while stop > 0:
        piece = data[max(0, stop - step) : stop]
        kept = len(piece.rstrip(_SPACES))
        if kept:
            return stop - len(piece) + kept
        stop, step = stop - len(piece), 4 * step
    return 0


class NotFinite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename={"name": _KEY}):
    """A float that is not finite, called as Python's `json` calls it."""

    name: Literal["NaN", "Infinity", "-Infinity"]

    def as_float(self) -> float:
        """Returns the float."""
        return float(self.name)


def spelled_out(text: bytes) -> bytes | None:
    """Returns JSON in which floats that are not finite are objects that `NotFinite` takes; None if there are none."""
    spelled = _replaced(text, b'%s%%s"}' % _BEGIN)
    return None if spelled is text else spelled


def with_nulls(text: bytes) -> bytes:
    """Returns JSON with nulls in the place of floats that are not finite."""
    return _replaced(text, b"null")


def as_words(spelled: bytes) -> bytes:
    """Returns what `spelled_out` gave with words in the place of its objects, as `"NaN"`."""
    return _SPELLED.sub(rb'"\1"', spelled) if _BEGIN in spelled else spelled


def _replaced(text: bytes, form: bytes) -> bytes:
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    found = False

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal found
        token = match[0]
        if token[:1] == b'"':
            return token
        found = True
        return form % token if b"%s" in form else form

    replaced = _TOKEN.sub(replace, text)
    return replaced if found else text
