"""Rounded shares: whole shares are met exactly, every class is within one row, totals are the best there are."""

from collections import Counter
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardkit.conversion.splits.apportion import apportion, deal, largest_remainders, split_ends

shares = st.lists(st.integers(1, 1000), min_size=2, max_size=4).map(lambda parts: [p / sum(parts) for p in parts])
tenths = st.sampled_from([[0.8, 0.2], [0.7, 0.2, 0.1], [0.5, 0.5], [0.9, 0.05, 0.05], [0.25] * 4, [1 / 3] * 3])
class_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def counts_of(sizes, fractions):
    """Returns what each class gets in each split."""
    sizes = np.array(sizes, dtype=np.int64)
    seen: Counter[int] = Counter()
    ranks = []
    for size in sizes.tolist():
        ranks.append(seen[size])
        seen[size] += 1
    ends = split_ends(apportion(Counter(sizes.tolist()), fractions), sizes, np.array(ranks, dtype=np.int64))
    return np.diff(ends, axis=1, prepend=0)


def exact(fractions):
    parts = [Fraction(repr(f)) for f in fractions]
    return [p / sum(parts) for p in parts]


@given(class_sizes, shares | tenths)
@example([1] * 10, [0.7, 0.2, 0.1])
@example([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [0.9, 0.1])
def test_every_class_is_within_a_row_and_the_totals_are_rounded(sizes, fractions):
    counts = counts_of(sizes, fractions)
    parts = exact(fractions)
    assert counts.sum(axis=1).tolist() == sizes
    for size, row in zip(sizes, counts.tolist(), strict=True):
        for part, count in zip(parts, row, strict=True):
            assert floor(size * part) <= count <= ceil(size * part)
    assert counts.sum(axis=0).tolist() == largest_remainders([sum(sizes) * p for p in parts])


@given(class_sizes, st.lists(st.integers(1, 30), min_size=5, max_size=9))
def test_with_many_splits_the_totals_are_within_a_row(sizes, parts):
    fractions = [p / sum(parts) for p in parts]
    counts = counts_of(sizes, fractions)
    for size, row in zip(sizes, counts.tolist(), strict=True):
        assert sum(row) == size
        assert all(floor(size * p) <= c <= ceil(size * p) for p, c in zip(exact(fractions), row, strict=True))
    off = [abs(total - sum(sizes) * p) for total, p in zip(counts.sum(axis=0).tolist(), exact(fractions), strict=True)]
    assert max(off) < 1


@given(st.integers(1, 10**9), tenths)
def test_one_class_gets_the_largest_remainders(size, fractions):
    assert counts_of([size], fractions).tolist() == [largest_remainders([size * p for p in exact(fractions)])]


@given(st.integers(1, 400), st.integers(1, 9), tenths)
def test_classes_of_one_size_are_dealt_out_like_one(num_classes, size, fractions):
    counts = counts_of([size] * num_classes, fractions)
    assert counts.sum(axis=0).tolist() == largest_remainders([num_classes * size * p for p in exact(fractions)])


def test_the_remainders_of_classes_stay_where_the_totals_allow_it():
    # 10.4 and 2.6, 5.6 and 1.4: rounded one by one they already add up to 16 and 4.
    assert counts_of([13, 7], [0.8, 0.2]).tolist() == [[10, 3], [6, 1]]
    # One by one each would be 3 and 2; together they are 5 and 5.
    assert sorted(counts_of([5, 5], [0.5, 0.5]).tolist()) == [[2, 3], [3, 2]]


def test_remainders_that_all_point_one_way_do_not_add_up():
    counts = counts_of(list(range(4, 40_004, 10)), [0.9, 0.1])
    assert counts.sum(axis=0).tolist() == [71_996_400, 7_999_600]


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.3, 0.7])
def test_fractions_are_meant_as_they_are_written(fraction):
    counts = counts_of([10] * 50, [1 - fraction if fraction != 0.7 else 0.3, fraction])
    assert set(map(tuple, counts.tolist())) == {(10 - round(10 * fraction), round(10 * fraction))}


@given(class_sizes, tenths, st.randoms(use_true_random=False))
def test_rows_are_dealt_out_as_counted(sizes, fractions, random):
    counts = counts_of(sizes, fractions)
    rows = [(c, r) for c, size in enumerate(sizes) for r in range(size)]
    random.shuffle(rows)
    classes, ranks = (np.array(v, dtype=np.int64) for v in zip(*rows, strict=True))
    positions = deal(np.cumsum(counts, axis=1), classes, ranks)
    found = np.zeros_like(counts)
    np.add.at(found, (classes, positions), 1)
    assert (found == counts).all()
