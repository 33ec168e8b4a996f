"""Footers and headers of pages whose numbers make no sense are damage, found at once."""

from __future__ import annotations

import pytest

from shardkit.encoding.parquet_footer import RowGroup, parse_page_header, parse_row_groups

_STOP = b"\0"
# Headers of fields and lists: the number or the size, then the type. 5 are int32, 6 int64, 7 doubles, 9 lists.
_LIST_OF_GROUPS = 4 << 4 | 9


@pytest.mark.parametrize(
    ("footer", "why"),
    [
        (b"\x19\xf7" + b"\xff" * 5 + b"\x01" + _STOP, "ends too early"),
        (b"\x19" * 200 + _STOP, "nested too deeply"),
        (bytes([_LIST_OF_GROUPS, 1 << 4 | 5, 2]) + _STOP, "values of another type"),
        (b"\x1d" + _STOP, "unknown type 13"),
        (b"\x16" + b"\xff" * 20 + _STOP, "too long"),
        (b"", "ends too early"),
    ],
)
def test_a_footer_that_makes_no_sense_is_damage(footer, why):
    with pytest.raises(ValueError, match=why):
        parse_row_groups(footer)


def test_a_number_of_another_type_is_passed_over_as_arrow_does():
    group = bytes([2 << 4 | 6, 20, 1 << 4 | 5, 14]) + _STOP
    footer = bytes([_LIST_OF_GROUPS, 1 << 4 | 12]) + group + _STOP
    assert parse_row_groups(footer) == (RowGroup(0, 10, ()),)


def test_a_header_of_a_page_that_goes_on_says_so():
    header = bytes([2 << 4 | 5, 20, 1 << 4 | 5, 14]) + _STOP
    assert parse_page_header(header + b"x") == ((7, 10, 0), len(header))
    for stop in range(len(header)):
        with pytest.raises(IndexError):
            parse_page_header(header[:stop])
