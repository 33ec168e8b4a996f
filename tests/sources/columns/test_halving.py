"""Bad rows are found by parsing ever smaller parts: all of them, in order, in few calls, and none that is good."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shardkit.sources.columns.halving import find_bad_rows, first_bad_row, parse_parts


class _BadRowError(Exception):
    def __init__(self, row: int | None) -> None:
        super().__init__(row)
        self.row = row


def parser_of(flags: list[bool], calls: list[tuple[int, int]], *, knows_row: bool):
    """Returns a parser that refuses ranges with a bad row, and notes each that it is asked for."""

    def parse(start: int, stop: int) -> list[int]:
        calls.append((start, stop))
        bad = [row for row in range(start, stop) if flags[row]]
        if bad:
            raise _BadRowError(bad[0] - start if knows_row else None)
        return list(range(start, stop))

    return parse


@given(st.lists(st.booleans(), max_size=200), st.booleans())
def test_all_bad_rows_are_found_and_the_others_are_parsed_once(flags, knows_row):
    parts = list(parse_parts(parser_of(flags, [], knows_row=knows_row), len(flags), _BadRowError))
    assert [start for start, _, found in parts if isinstance(found, _BadRowError)] == [
        row for row, is_bad in enumerate(flags) if is_bad
    ]
    parsed = [row for _, _, found in parts if not isinstance(found, _BadRowError) for row in found]
    assert parsed == [row for row, is_bad in enumerate(flags) if not is_bad]


@given(st.sets(st.integers(0, 999), max_size=12), st.booleans())
def test_few_bad_rows_cost_few_calls(rows, knows_row):
    flags, calls = [row in rows for row in range(1000)], []
    assert set(find_bad_rows(parser_of(flags, calls, knows_row=knows_row), len(flags), _BadRowError)) == rows
    assert len(calls) <= 1 + 4 * len(rows) * math.ceil(math.log2(1000))


def test_nothing_behind_the_first_error_is_parsed_before_it_is_given():
    calls: list[tuple[int, int]] = []
    parts = parse_parts(parser_of([row in (3, 90) for row in range(100)], calls, knows_row=False), 100, _BadRowError)
    first = next(start for start, _, found in parts if isinstance(found, _BadRowError))
    assert first == 3
    assert calls[-1] == (3, 4)


@given(st.lists(st.booleans(), min_size=1, max_size=100).filter(any))
def test_the_first_bad_row_is_found_by_what_fits(flags):
    assert first_bad_row(lambda start, stop: not any(flags[start:stop]), len(flags)) == flags.index(True)
