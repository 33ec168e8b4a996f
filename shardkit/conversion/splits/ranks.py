"""Rows by their rank among the rows of all inputs: a sample of a given size, and splits along a sorted column.

    first pass  every input split: a 64-bit number for each row, in the order of the rows
    mark        the numbers at the wanted ranks are searched over all input splits
    extract     reads the inputs again

A sample is the rows with the smallest draws. Splits along a column are cut where its values have the wanted ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.splits.duplicates import find_duplicates, find_left_out, first_pass_path, read_words
from shardkit.conversion.splits.stratify import position_type
from shardkit.errors import UsageError
from shardkit.features import Feature
from shardkit.hashing import UInt64s, assignment_draws, row_keys
from shardkit.messages import shown
from shardkit.units import format_count

Int64s = npt.NDArray[np.int64]

_SIGN = np.uint64(1 << 63)


def sample_draws(identities: UInt64s, seed: int) -> UInt64s:
    """Returns a draw for each row that decides neither its split nor its place in the order."""
    return assignment_draws(row_keys(identities, seed), ~seed)


def sort_keys(column: pa.Array, feature: Feature) -> UInt64s:
    """Returns a number for each value of a column without nulls, ascending as the values are.

    Args:
        column: Of the feature's Arrow type.
        feature: Of numbers or times.
    """
    if pa.types.is_floating(feature.value_type):
        bits = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        raw = np.ascontiguousarray(bits).view(np.uint64)
        return np.where(raw >= _SIGN, ~raw, raw | _SIGN)
    if feature.dtype == "uint64":
        return np.asarray(column.to_numpy(zero_copy_only=False), np.uint64)
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64).view(np.uint64) ^ _SIGN


def store_keys(plan: Plan, input_split_index: int, what: str, keys: Sequence[UInt64s]) -> None:
    """Stores the numbers of the rows of one input split.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If they cannot be stored.
    """
    joined = np.concatenate([np.empty(0, np.uint64), *keys])
    write_whole(first_pass_path(plan, input_split_index, what), joined.astype("<u8").tobytes())


def mark_sample(plan: Plan, num_rows: Sequence[int], counting: Sequence[int]) -> None:
    """Stores for each input split which rows are not in the sample, but for those that are marked as duplicates.

    Args:
        num_rows: Rows of each input split.
        counting: The input splits whose rows count.
    """
    kept = {index: _without(find_duplicates(plan, index), num_rows[index]) for index in counting}
    ranked = _Ranked(plan, "draws", kept)
    largest = ranked.value_at(min(plan.recipe.sample or 0, ranked.num_rows))
    for index in range(len(num_rows)):
        rows = kept.get(index, np.empty(0, np.int64))
        left_out = rows[ranked.keys(index)[rows] > np.uint64(largest)] if len(rows) else rows
        write_whole(first_pass_path(plan, index, "unsampled"), left_out.astype("<u8").tobytes())


def mark_sorted(plan: Plan, num_rows: Sequence[int], counting: Sequence[int]) -> None:
    """Stores the split of each row that stays, by the rank of its value; equal values fall into one split.

    Args:
        num_rows: Rows of each input split.
        counting: The input splits whose rows count.

    Raises:
        UsageError: If a split would have no rows.
    """
    kept = {index: _without(find_left_out(plan, index), num_rows[index]) for index in range(len(num_rows))}
    ranked = _Ranked(plan, "values", {index: kept[index] for index in counting})
    bounds = _bounds(plan, ranked) if ranked.num_rows else []
    for index, rows in kept.items():
        positions = np.searchsorted(np.array(bounds, np.uint64), ranked.keys(index)[rows], side="left")
        write_whole(first_pass_path(plan, index, "strata"), positions.astype(position_type(plan)).tobytes())


def _bounds(plan: Plan, ranked: _Ranked) -> list[int]:
    """Returns the largest value of each split but the last. Raises UsageError if a split would have no rows."""
    shares = [Fraction(repr(share.fraction)) for share in plan.recipe.splits]
    ends = [sum(shares[: i + 1], Fraction(0)) / sum(shares) for i in range(len(shares) - 1)]
    bounds = [ranked.bound_near(round(end * ranked.num_rows)) for end in ends]
    taken = [0, *map(ranked.count_to, bounds), ranked.num_rows]
    for share, (before, after) in zip(plan.recipe.splits, pairwise(taken), strict=True):
        if after <= before:
            raise UsageError(
                f"--split-by {shown(plan.recipe.split_by or '')} leaves the split {share.name!r} without rows",
                why=f"rows with equal values stay together, and there are {format_count(ranked.num_rows)} rows",
                state="Nothing was committed",
                next_step="Give other shares, or split by a column with more values",
            )
    return bounds


def _without(left_out: Int64s, num_rows: int) -> Int64s:
    return np.delete(np.arange(num_rows), left_out)


class _Ranked:
    """The numbers of the rows that count, over all input splits, of which only counts are held at a time.

    Args:
        rows: By input split, the rows that count.
    """

    def __init__(self, plan: Plan, what: str, rows: dict[int, Int64s]) -> None:
        self._plan, self._what = plan, what
        self.num_rows = sum(map(len, rows.values()))
        self._sorted: list[Path] = []
        for index, own in rows.items():
            path = first_pass_path(plan, index, f"{what}-sorted")
            write_whole(path, np.sort(self.keys(index)[own]).astype("<u8").tobytes())
            if len(own):
                self._sorted.append(path)

    def keys(self, index: int) -> UInt64s:
        """Returns the numbers of all rows of an input split."""
        path: Path = first_pass_path(self._plan, index, self._what)
        return read_words(path, 0, path.stat().st_size // 8)

    def count_to(self, value: int) -> int:
        """Returns how many numbers are at most a value."""
        if value < 0:
            return 0
        # One file at a time is mapped: a process may map only so many.
        return sum(int(np.searchsorted(np.memmap(p, "<u8", "r"), np.uint64(value), side="right")) for p in self._sorted)

    def bound_near(self, rank: int) -> int:
        """Returns the value up to which there are about so many numbers: equal ones stay together."""
        value = self.value_at(min(max(rank, 1), self.num_rows))
        is_nearer_below = rank - self.count_to(value - 1) < self.count_to(value) - rank
        return value - 1 if is_nearer_below else value

    def value_at(self, rank: int) -> int:
        """Returns the number with a rank, counted from 1."""
        low, high = 0, 2**64 - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.count_to(middle) >= rank else (middle + 1, high)
        return low
