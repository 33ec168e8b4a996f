"""The keys of JSON objects as they stand in the text, for decoders keep only the last of those that are the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np

from shardkit.sources.json.json_strings import are_escaped
from shardkit.sources.text.blocks import Positions, as_array

OBJECTS = msgspec.json.Decoder(dict[str, Any])

_SPACES = b" \t\r\n"
_NUM_STEPS = 8


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
    if num_written == count_keys(OBJECTS.decode(line)):
        return None
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        repeated.extend(k for k in keys if keys.count(k) > 1)

    json.loads(line, object_pairs_hook=look)
    return repeated[0] if repeated else None


def with_last_values(line: bytes) -> bytes:
    """Returns an object with only the last value of each key, numbers as they were written.

    Args:
        line: A valid object.
    """
    return msgspec.json.encode(json.loads(line, parse_int=_as_written, parse_float=_as_written))


def count_keys(row: dict[str, Any]) -> int:
    """Returns the number of keys of an object and of those inside it; lists hold none in what fits."""
    return len(row) + sum([count_keys(value) for value in row.values() if type(value) is dict])


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


def _skip_spaces_back(data: bytes, stop: int) -> int:
    # Where the white space begins that stands before `stop`.
    step = 64
    while stop > 0:
        piece = data[max(0, stop - step) : stop]
        kept = len(piece.rstrip(_SPACES))
        if kept:
            return stop - len(piece) + kept
        stop, step = stop - len(piece), 4 * step
    return 0
