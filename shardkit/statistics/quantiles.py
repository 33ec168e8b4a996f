"""Quantiles of numbers in one pass: exact while few values are distinct, with a bounded relative error beyond.

Up to NUM_BUCKETS distinct values are counted one by one. Beyond, a value is counted in the bucket of the upper bits of
its float64 pattern: buckets are of one width between two powers of two and twice as wide beyond the next, as in HDR
histograms (Tene 2012) and DDSketch (Masson, Rim and Lee 2019). As few low bits are dropped as leave NUM_BUCKETS
buckets occupied. That number of bits only grows when values are added, so it is a function of the set of values alone,
and with it every count: however rows are dealt to parts, and in whatever order parts are merged, the result is the
same to the bit. A KLL or t-digest sketch would be smaller, but depends on chance or on the order of the rows.

The ranks are exact: an estimate is in the same bucket as the value of that rank. With `s` bits dropped a bucket is
at most 2**(s - 52) of its values wide (for those below 2**-1022: of 2**-1022).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.dataset.manifest import Quantiles
from shardkit.errors import DamageError
from shardkit.statistics.key_counts import EXACT, Kind, count_keys
from shardkit.statistics.quantile_buckets import Counts, Keys, QuantileBuckets, exact_quantiles, ranks_of

_NUM_SMALL = 1_024
_MANTISSA_BITS = 52
_WIDTHS = (1, 2, 4, 8)


class QuantilesPart(msgspec.Struct, array_like=True):
    """A sketch as it crosses a process border.

    Attributes:
        num_dropped_bits: Of the float64 pattern; -1 where every value is counted exactly.
        num_keys: Buckets, or distinct values.
        keys: Differences from one to the next, ascending, as little-endian integers of equal width.
        counts: How many values each holds, likewise.
    """

    num_dropped_bits: int
    num_keys: int
    keys: bytes
    counts: bytes


class QuantileSketch:
    """Counts of numbers by value or bucket.

    Args:
        kind: Type of the values while they are counted exactly; later they are float64.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = np.dtype(kind)
        self._counted = count_keys(kind)
        self._small: Counts | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Adds finite numbers whose type the kind can hold."""
        if len(values):
            self._counted.add(values)

    def add_lengths(self, lengths: npt.NDArray[Any], greatest: int) -> None:
        """Adds integers from 0 to the greatest."""
        if greatest >= _NUM_SMALL:
            self.add(lengths)
            return
        counts = np.bincount(lengths, minlength=_NUM_SMALL)
        self._small = counts if self._small is None else self._small + counts

    def add_counted(self, values: npt.NDArray[Any], counts: Counts) -> None:
        """Adds distinct numbers of the kind and how often each occurs."""
        keys = np.ascontiguousarray(values, self._kind).view(np.uint64)
        self._counted.add_keys(keys, counts, EXACT)

    def merge(self, part: QuantilesPart) -> None:
        """Adds the values of another sketch of the same kind. Raises DamageError if the part contradicts itself."""
        keys = np.cumsum(_unpack(part.keys, part.num_keys), dtype=np.uint64)
        counts = _unpack(part.counts, part.num_keys).view(np.int64)
        dropped = part.num_dropped_bits
        if not EXACT <= dropped <= _MANTISSA_BITS:
            raise DamageError("a part of the statistics cannot be read", why=f"{dropped} bits")
        if (counts < 1).any() or int(keys.max(initial=0)) >> (64 - max(dropped, 0)):
            raise DamageError("a part of the statistics cannot be read", why="a key or a count is out of range")
        if dropped > self._counted.dropped:
            self._counted.drop_to(dropped)
        self._counted.add_keys(keys, counts, dropped)

    def to_part(self) -> QuantilesPart:
        """Returns the counts, the same for the same values."""
        keys, counts = self._entries()
        differences = np.diff(keys, prepend=np.uint64(0))
        return QuantilesPart(self._counted.dropped, len(keys), _pack(differences), _pack(counts.view(np.uint64)))

    def finish(self, low: float | None, high: float | None) -> Quantiles | None:
        """Returns the quantiles, None of no values.

        Args:
            low: The least value, which keeps estimates in range; None of no values.
            high: The greatest.
        """
        keys, counts = self._entries()
        dropped = self._counted.dropped
        if not len(keys) or low is None or high is None:
            return None
        if dropped == EXACT:
            return exact_quantiles(keys.view(self._kind), counts)
        buckets = QuantileBuckets(keys, counts, dropped)
        estimate: Any = buckets.nearest_integer if self._kind.kind in "iu" else buckets.interpolated
        ranks = ranks_of(int(counts.sum()))
        found = {name: min(max(estimate(rank, low, high), low), high) for name, rank in ranks.items()}
        return Quantiles(**found, relative_error=2.0 ** (dropped - _MANTISSA_BITS))

    def _entries(self) -> tuple[Keys, Counts]:
        if self._small is not None:
            small, self._small = self._small, None
            values = np.flatnonzero(small)
            self.add_counted(values, small[values])
        return self._counted.entries()


def _pack(numbers: Keys) -> bytes:
    most = int(numbers.max(initial=0))
    width = next(w for w in _WIDTHS if most < 1 << (8 * w))
    return numbers.astype(f"<u{width}").tobytes()


def _unpack(raw: bytes, num_numbers: int) -> Keys:
    width = len(raw) // num_numbers if num_numbers > 0 else 0
    if len(raw) != width * num_numbers or (width not in _WIDTHS and num_numbers):
        raise DamageError("a part of the statistics cannot be read", why=f"{len(raw)} bytes of {num_numbers} numbers")
    return np.frombuffer(raw, f"<u{width or 1}").astype(np.uint64)
