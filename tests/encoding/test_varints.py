"""Integers of seven bits a byte are read with their length, and refused where they do not end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.encoding.varints import VarintError, read_varint


def written(value: int) -> bytes:
    """Returns an integer as Protocol Buffers write it."""
    parts = []
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


@given(st.integers(0, 2**64 - 1), st.binary(max_size=4))
def test_integers_are_read_with_their_length(value, behind):
    data = written(value)
    assert read_varint(data + behind) == (value, len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 3, b"\x80" * 10 + b"\0"])
def test_integers_that_do_not_end_are_refused(data):
    with pytest.raises(VarintError):
        read_varint(data)


def test_no_more_is_read_than_an_integer_may_have():
    rest = iter(b"\x80\x80\x80\x80\x80\x01")
    with pytest.raises(VarintError):
        read_varint(rest, 5)
    assert list(rest) == [1]
