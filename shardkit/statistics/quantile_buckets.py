"""From counts of values, or of buckets of them, to quantiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shardkit.dataset.manifest import Quantiles

PERCENTS = (1, 5, 25, 50, 75, 95, 99)

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


def exact_quantiles(values: npt.NDArray[Any], counts: Counts) -> Quantiles | None:
    """Returns the quantiles of distinct numbers that occur so often, None of none."""
    if not len(values):
        return None
    order = np.argsort(values)
    sums = np.cumsum(counts[order])
    places = {name: order[np.searchsorted(sums, rank)] for name, rank in ranks_of(int(sums[-1])).items()}
    # Adding zero turns -0.0 into 0.0: which of the two comes first would be a matter of the sorting.
    return Quantiles(**{name: values[place].item() + 0 for name, place in places.items()})


class QuantileBuckets:
    """Occupied buckets of `quantiles` in the order of their values.

    Args:
        keys: Upper bits of float64 patterns.
        counts: How many values each bucket holds.
        dropped: How many lower bits were dropped, at least 0.
    """

    def __init__(self, keys: Keys, counts: Counts, dropped: int) -> None:
        sign_bit = np.uint64(1 << (63 - dropped))
        magnitudes = (keys & (sign_bit - np.uint64(1))).view(np.int64)
        is_negative = (keys & sign_bit) != 0
        signed = np.where(is_negative, -magnitudes, magnitudes)
        order = np.argsort(signed, kind="stable")
        self._signed = signed[order]
        self._counts = counts[order]
        self._sums = np.cumsum(self._counts)
        self._dropped = dropped

    def interpolated(self, rank: int, low: float, high: float) -> float:
        """Returns the value of a rank, counted from 1, as if the values of its bucket were evenly spread."""
        near, far, is_negative, share = self._find(rank)
        start, stop = (-far, -near) if is_negative else (near, far)
        start, stop = max(start, low), min(stop, high)
        return start + (stop - start) * share

    def nearest_integer(self, rank: int, low: int, high: int) -> int:
        """Returns the same, spread over the integers of the bucket."""
        near, far, is_negative, share = self._find(rank)
        first, last = math.ceil(near), max(math.ceil(far) - 1, 0)
        first, last = (-last, -first) if is_negative else (first, last)
        first, last = max(first, low), min(last, high)
        return first + round((last - first) * share)

    def _find(self, rank: int) -> tuple[float, float, bool, float]:
        """Returns the magnitudes at which the bucket begins and ends, its sign, and how far into it the rank is."""
        position = int(np.searchsorted(self._sums, rank))
        signed, count = int(self._signed[position]), int(self._counts[position])
        share = (rank - int(self._sums[position]) + count - 0.5) / count
        magnitude = abs(signed)
        if magnitude == 0:
            # Zeros, and numbers that are hardly more.
            return 0.0, 0.0, False, share
        patterns = np.array([magnitude << self._dropped, (magnitude + 1) << self._dropped], np.uint64)
        near, far = patterns.view(np.float64).tolist()
        return near, far, signed < 0, share


def ranks_of(num_values: int) -> dict[str, int]:
    """Returns the ranks of the quantiles by their names, counted from 1.

    A quantile is the least value that a share of the values does not exceed: one that occurs, not one between two.
    """
    return {f"p{percent:02}": max(1, -(-num_values * percent // 100)) for percent in PERCENTS}
