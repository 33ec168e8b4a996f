"""Where the strings of JSON texts are, found in whole blocks at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardkit.sources.text.blocks import Positions

Flags = npt.NDArray[np.bool_]

_QUOTE, _BACKSLASH = 0x22, 0x5C


def are_escaped(values: npt.NDArray[np.uint8], quotes: Positions) -> Flags:
    """Returns which quotes are part of a string, because an odd number of backslashes stands before them."""
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
