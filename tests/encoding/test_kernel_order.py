"""The shuffled order of rows: one permutation, by the kernel as by the reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.encoding import kernel_reference as reference

_kernel = pytest.importorskip("shardkit._kernel", reason="the kernel was not built here", exc_type=ImportError)


def mixed(value):
    """SplitMix64's finaliser in Python's own integers."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) % 2**64
    return value ^ value >> 31


@given(st.integers(0, 600) | st.sampled_from([1023, 1024, 1025]), st.integers(0, 2**64 - 1))
def test_rows_come_in_the_order_of_their_mixed_positions(count, key):
    expected = sorted(range(count), key=lambda row: mixed(mixed(row) ^ key))
    assert np.frombuffer(_kernel.permutation(count, key), np.int64).tolist() == expected
    assert reference.permutation(count, key).tolist() == expected


def test_many_rows_are_a_permutation():
    count = 300_000
    order = np.frombuffer(_kernel.permutation(count, 7), np.int64)
    assert (np.sort(order) == np.arange(count)).all()
    assert (order == reference.permutation(count, 7)).all()


@pytest.mark.parametrize("codec", [_kernel, reference])
@pytest.mark.parametrize("count", [-1, 2**32])
def test_numbers_that_no_block_has_are_refused(codec, count):
    with pytest.raises(ValueError, match="rows"):
        codec.permutation(count, 0)
