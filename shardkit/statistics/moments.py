"""Count, extremes, mean and deviation of numbers, and lengths of values; mergeable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

_DENSE_RANGE = 65_536
_EXACT_FLOAT = 1 << 53
_PIECE = 32_768
_NUM_GUESSED = 256  # Values that tell where the mean is, from all over: rows are often sorted.
_FAR_SHARE = 0.5  # Share of the sum of squares: the loss by cancelling is one bit then.
_LOW_WORD = np.uint64(0xFFFF_FFFF)
_WRAP = (1 << 64) - 1


class CountedIntegers(NamedTuple):
    """Distinct integers as their two's complement, and how often each occurs."""

    values: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]


class Moments(msgspec.Struct, kw_only=True, array_like=True):
    """Count, extremes, mean and squared deviation of finite numbers.

    Attributes:
        total: Exact sum of integers; as text in a part, because MessagePack ends at 64 bits.
        running_mean: Of floats.
        deviation: Sum of squared differences from the mean.
    """

    is_integer: bool
    count: int = 0
    min: int | float | None = None
    max: int | float | None = None
    total_text: str = "0"
    running_mean: float = 0.0
    deviation: float = 0.0

    @property
    def total(self) -> int:
        """Exact sum of integers."""
        return int(self.total_text)

    def merge(self, other: Moments) -> None:
        """Adds other numbers."""
        if other.count == 0:
            return
        if self.count == 0:
            _copy_into(self, other)
            return
        count = self.count + other.count
        share = other.count / count
        delta = self._distance_to(other)
        self.deviation += other.deviation + delta * delta * self.count * share
        if self.is_integer:
            self.total_text = str(self.total + other.total)
        elif math.isfinite(delta):
            self.running_mean += delta * share
        else:
            self.running_mean = self.running_mean * (self.count / count) + other.running_mean * share
        self.min = _least(self.min, other.min)
        self.max = _greatest(self.max, other.max)
        self.count = count

    def finished_mean(self) -> float | None:
        """Returns the mean, None of no numbers."""
        if self.count == 0:
            return None
        return self.total / self.count if self.is_integer else self.running_mean

    def finished_std(self) -> float | None:
        """Returns the population's standard deviation, None of no numbers or where float64 cannot hold it."""
        std = math.sqrt(self.deviation / self.count) if self.count else math.inf
        return std if math.isfinite(std) else None

    def _distance_to(self, other: Moments) -> float:
        if self.is_integer:
            # Exact, then rounded once: nanosecond timestamps differ in digits that a float64 mean has lost.
            return (other.total * self.count - self.total * other.count) / (self.count * other.count)
        return other.running_mean - self.running_mean


class Lengths(msgspec.Struct, array_like=True):
    """Lengths of strings and bytes in bytes, of lists in values."""

    count: int = 0
    total: int = 0
    min: int | None = None
    max: int | None = None

    @property
    def mean(self) -> float | None:
        """The mean, None of no lengths."""
        return self.total / self.count if self.count else None

    def add(self, lengths: npt.NDArray[Any]) -> None:
        """Adds lengths."""
        if len(lengths):
            self.merge(Lengths(len(lengths), int(lengths.sum()), int(lengths.min()), int(lengths.max())))

    def merge(self, other: Lengths) -> None:
        """Adds other lengths."""
        self.count += other.count
        self.total += other.total
        self.min = _least(self.min, other.min)
        self.max = _greatest(self.max, other.max)


def moments_of_integers(values: npt.NDArray[Any]) -> tuple[Moments, CountedIntegers | None]:
    """Returns the moments of at least one integer, and the counts of each where they fell out on the way."""
    low, high = int(np.minimum.reduce(values)), int(np.maximum.reduce(values))
    counted = None
    if high - low < _DENSE_RANGE and high - low <= 4 * len(values):
        counted, total, deviation = _count_integers(values, low, high)
    elif high - low < _EXACT_FLOAT and max(abs(low), abs(high)) * len(values) < 1 << 63:
        # Neither the sum nor a difference from the mean can leave int64.
        values = values.view(np.int64) if values.dtype.itemsize == 8 else values
        total = int(np.add.reduce(values, dtype=np.int64))
        centre = total // len(values)
        squares = sum(_shifted_sums(piece, np.int64(centre))[1] for piece in _pieces(values))
        rest = total - centre * len(values)
        deviation = max(squares - rest * rest / len(values), 0.0)
    else:
        total, deviation = _sum_far_apart(values, low)
    moments = Moments(
        is_integer=True,
        count=len(values),
        min=low,
        max=high,
        total_text=str(total),
        deviation=deviation,
    )
    return moments, counted


def moments_of_floats(values: npt.NDArray[Any]) -> Moments | None:
    """Returns the moments of at least one float of any width, None if one of them is not finite.

    Sums that float64 cannot hold are handled here; callers may turn off NumPy's warnings of them.
    """
    count = len(values)
    # One pass around a guess of the mean; another one around the mean where the guess was too far from it.
    guessed = values[:: max(1, count // _NUM_GUESSED)]
    shift = float(np.add.reduce(guessed, dtype=np.float64)) / len(guessed)
    sums = _sums_of_floats(values, shift)
    if sums is None:
        return None
    if math.isfinite(sums.second) and sums.first / count * sums.first > sums.second * _FAR_SHARE:
        shift += sums.first / count
        sums = _sums_of_floats(values, shift) or sums
    low, high, first, second = sums
    if not math.isfinite(second):
        return _moments_of_huge(values, low, high)
    correction = first / count
    return Moments(
        is_integer=False,
        count=count,
        min=low,
        max=high,
        running_mean=min(max(shift + correction, low), high),
        deviation=max(second - correction * first, 0.0),
    )


class _Sums(NamedTuple):
    low: float
    high: float
    first: float
    second: float


def _sums_of_floats(values: npt.NDArray[Any], shift: float) -> _Sums | None:
    low, high, first, second = math.inf, -math.inf, 0.0, 0.0
    for piece in _pieces(values):
        # Nothing is least or greatest beside a NaN.
        lowest, highest = float(np.minimum.reduce(piece)), float(np.maximum.reduce(piece))
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            return None
        low, high = min(low, lowest), max(high, highest)
        sums = _shifted_sums(piece, np.float64(shift))
        first, second = first + sums[0], second + sums[1]
    # Adding zero turns -0.0 into 0.0: which of the two a minimum is would depend on the order of the rows.
    return _Sums(low + 0.0, high + 0.0, first, second)


def _pieces(values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    # Small enough to stay in the cache while they are looked at several times.
    return (values[start : start + _PIECE] for start in range(0, len(values), _PIECE))


def _shifted_sums(piece: npt.NDArray[Any], shift: Any) -> tuple[float, float]:
    # The sum of the differences from the shift, and that of their squares.
    # Integers are subtracted as such: their differences are exact where float64 cannot hold them.
    differences = np.empty(len(piece), np.float64)
    np.subtract(piece, shift, out=differences, casting="same_kind")
    first = float(np.add.reduce(differences))
    np.multiply(differences, differences, out=differences)
    return first, float(np.add.reduce(differences))


def _count_integers(values: npt.NDArray[Any], low: int, high: int) -> tuple[CountedIntegers, int, float]:
    base = 0
    if low < 0 or high >= _DENSE_RANGE:
        # Distances from the minimum fit uint64 whatever the type; wrapping makes the subtraction exact.
        base = low
        values = values.astype(np.uint64)
        values -= np.uint64(low & _WRAP)
    counts = np.bincount(values.view(np.int64) if values.dtype.itemsize == 8 else values)
    distinct = np.flatnonzero(counts != 0)  # NumPy searches truth values faster than numbers.
    counts = counts[distinct]
    total = int((distinct * counts).sum())
    num_values = len(values)
    differences = distinct - total / num_values
    deviation = float((differences * differences * counts).sum())
    counted = CountedIntegers(distinct.astype(np.uint64) + np.uint64(base & _WRAP), counts)
    return counted, total + base * num_values, deviation


def _sum_far_apart(values: npt.NDArray[Any], low: int) -> tuple[int, float]:
    distances = values.astype(np.uint64)
    distances -= np.uint64(low & _WRAP)
    total = (int((distances >> np.uint64(32)).sum()) << 32) + int((distances & _LOW_WORD).sum())
    differences = distances.astype(np.float64)
    differences -= total / len(values)
    differences *= differences
    return total + low * len(values), float(differences.sum())


def _moments_of_huge(values: npt.NDArray[Any], low: float, high: float) -> Moments:
    # Squares, perhaps even differences, are beyond float64.
    values = values.astype(np.float64, copy=False)
    count = len(values)
    mean = min(max(float((values / count).sum()), low), high)
    differences = values - mean
    correction = float(differences.sum()) / count
    deviation = float((differences * differences).sum()) - correction * correction * count
    if math.isfinite(correction):
        mean = min(max(mean + correction, low), high)
    # The difference of two infinities: such numbers have a deviation that float64 cannot hold.
    deviation = math.inf if math.isnan(deviation) else max(deviation, 0.0)
    return Moments(is_integer=False, count=count, min=low, max=high, running_mean=mean, deviation=deviation)


def _least(a: Any, b: Any) -> Any:
    return min(a, b) if a is not None and b is not None else b if a is None else a


def _greatest(a: Any, b: Any) -> Any:
    return max(a, b) if a is not None and b is not None else b if a is None else a


def _copy_into(target: Moments, source: Moments) -> None:
    for name in source.__struct_fields__:
        setattr(target, name, getattr(source, name))
