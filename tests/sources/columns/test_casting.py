"""Columns fit their features exactly, or the first row that does not is named."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.features import make_feature
from shardkit.sources.columns.casting import BadValueError, cast_column, count_rounded


def fit(column, *feature, **settings):
    declared = make_feature("a", *feature, **settings)
    cast = cast_column(column, declared)
    assert cast.column.type == declared.arrow_type
    cast.column.validate(full=True)
    return cast.column.to_pylist()


@pytest.mark.parametrize(
    ("column", "feature", "expected"),
    [
        (pa.array([1, None]), ("int8",), [1, None]),
        (pa.array([1, 0]), ("bool",), [True, False]),
        (pa.array([1, None]), ("string",), ["1", None]),
        (pa.array(["1.5", " 2 "]), ("float32",), [1.5, 2.0]),
        (pa.array(["2020-01-31"]).cast(pa.large_string()), ("date",), [np.datetime64("2020-01-31").astype(object)]),
        (pa.array(["x", "y"]).dictionary_encode(), ("string",), ["x", "y"]),
        (pa.array([["x"], None, []], pa.list_view(pa.string())), ("string", (None,)), [["x"], None, []]),
        (pa.array([["x"], None], pa.large_list(pa.string())), ("string", (1,)), [["x"], None]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), ("float64", (None,)), [[1, 2], None, [3, 4]]),
        (pa.array([[9, 9], None, [3, 4]], pa.list_(pa.int8(), 2)).slice(1), ("int64", (2,)), [None, [3, 4]]),
        (pa.array([[0], [1, 2], None, [], [3]]).slice(1), ("int32", (None,)), [[1, 2], None, [], [3]]),
        (pa.nulls(2), ("string",), [None, None]),
        (pa.nulls(2), ("float32", (2,)), [None, None]),
    ],
)
def test_columns_become_what_is_declared(column, feature, expected):
    assert fit(column, *feature, nullable=True) == expected


@pytest.mark.parametrize(
    ("column", "feature", "row", "got"),
    [
        (pa.array([1, 2, 2**40, -(2**40)]), ("int32",), 2, str(2**40)),
        (pa.array([1, 2, None]), ("int64",), 2, "null"),
        (pa.array([1.0, 2.5]), ("int64",), 1, "2.5"),
        (pa.array([1, 2]), ("bool",), 1, "2"),
        (pa.array(["1", "x"]), ("int64",), 1, "'x'"),
        (pa.array([2**53, 2**53 + 1]), ("float64",), 1, str(2**53 + 1)),
        (pa.array([b"x", b"\xff"]), ("string",), 1, "b'\\xff', which is not UTF-8 at byte 0"),
        (pa.array([[1], [], [2, 2**40]]), ("int32", (None,)), 2, str(2**40)),
        (pa.array([[1], [2, None]]), ("int64", (None,)), 1, "null"),
        (pa.array([[1, 2], [3]]), ("int64", (2,)), 1, "1 values"),
    ],
)
def test_the_first_row_that_does_not_fit_is_named(column, feature, row, got):
    with pytest.raises(BadValueError) as caught:
        fit(column, *feature)
    assert (caught.value.row, caught.value.got) == (row, got)


@pytest.mark.parametrize(
    ("column", "feature"),
    [(pa.array([1.5]), ("date",)), (pa.array([1]), ("int64", (1,))), (pa.array([[[1]]]), ("int8", (None,)))],
)
def test_types_that_never_fit_are_refused(column, feature):
    with pytest.raises(UsageError, match="'a'"):
        fit(column, *feature)


def test_vocabularies_count_names_before_numbers():
    assert fit(pa.array(["dog", "cat"]), "int64", vocabulary=("cat", "dog")) == [1, 0]
    assert fit(pa.array(["1", "0"]), "int8", vocabulary=("cat", "dog")) == [1, 0]
    assert fit(pa.array(["7", "3"]), "int64", vocabulary=("3", "7")) == [1, 0]
    with pytest.raises(BadValueError):
        fit(pa.array(["0"]), "int64", vocabulary=("3", "7"))
    with pytest.raises(BadValueError):
        fit(pa.array([-1]), "int64", vocabulary=("3", "7"))


@given(st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(-25, 25)), min_size=1, max_size=50))
def test_rounding_is_counted_by_digits(decimals):
    numbers = [float(f"{mantissa}e{exponent}") for mantissa, exponent in decimals]

    def is_rounded(number: float) -> bool:
        digits = len(Decimal(repr(number)).normalize().as_tuple().digits)
        return float(np.float32(number)) != number and digits > 6

    assert count_rounded(np.array(numbers), "float32") == sum(map(is_rounded, numbers))


def test_nothing_that_a_float_holds_is_rounded():
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 2.0**-149, 2.0**127, 0.1, 16777216.0])
    assert count_rounded(values, "float32") == 0
    assert count_rounded(np.array([1e-46, 1e-40, 16777217.0]), "float32") == 3
