"""Finds the rows that a parser refuses: what it cannot take is parsed again in smaller parts, down to single rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

_Parsed = TypeVar("_Parsed")
_Error = TypeVar("_Error", bound=Exception)


def parse_parts(
    parse: Callable[[int, int], _Parsed], num_rows: int, errors: type[_Error] | tuple[type[_Error], ...]
) -> Iterator[tuple[int, int, _Parsed | _Error]]:
    """Yields half-open ranges of rows, in order, each with its parsed rows, or with the error of the one row in it.

    Of `n` rows, `k` of them bad, about `k * log2(n / k)` parts are parsed. A caller that needs the first bad row alone
    stops at the first error.

    Args:
        parse: Parses the rows of a half-open range. An error that knows a row to blame has its position in the range as
            `row`; this only saves work.
        errors: What `parse` raises where a row is bad.
    """
    ranges = [(0, num_rows)]
    while ranges:
        start, stop = ranges.pop()
        try:
            found: _Parsed | _Error = parse(start, stop)
        except errors as error:
            if stop - start > 1:
                ranges += reversed(_smaller_parts(start, stop, getattr(error, "row", None)))
                continue
            found = error
        yield start, stop, found


def find_bad_rows(
    parse: Callable[[int, int], object], num_rows: int, errors: type[_Error] | tuple[type[_Error], ...]
) -> dict[int, _Error]:
    """Returns the error of each bad row by its position, in order; the arguments are those of `parse_parts`."""
    parts = parse_parts(parse, num_rows, errors)
    return {start: found for start, _, found in parts if isinstance(found, errors)}


def first_bad_row(fits: Callable[[int, int], bool], num_rows: int) -> int:
    """Returns the first bad row of some of which at least one is bad.

    Args:
        fits: Whether all rows of a half-open range are good.
    """
    good, bad = 0, num_rows
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(good, middle) else (good, middle)
    return good


def _smaller_parts(start: int, stop: int, row: int | None) -> list[tuple[int, int]]:
    # The part behind a known row is halved too, because many bad rows would make the work quadratic.
    behind = start if row is None else start + row + 1
    cuts = sorted({start, behind - (row is not None), behind, (behind + stop) // 2, stop})
    return list(itertools.pairwise(cuts))
