"""Numbers counted one by one while few are distinct, by the upper bits of their float64 patterns beyond.

As few low bits are dropped as leave `max_keys` keys. The compiled table and the one in NumPy count the same.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.statistics.quantile_buckets import Counts, Keys

if HAS_KERNEL:
    from shardkit.encoding.kernel import _kernel

EXACT = -1
NUM_BUCKETS = 4_096

_PIECE = 32_768  # Its intermediate results stay in the cache.
_MAX_PENDING = 8_192

_FORMATS = {"f": "d", "i": "q", "u": "Q"}  # As the kernel knows them, by what NumPy calls the kind.

Kind = Literal["float64", "int64", "uint64"]


class KeyCounts(Protocol):
    """Counts of keys: of bit patterns of one kind, or of the upper bits of those of float64.

    Attributes:
        dropped: How many lower bits of float64 patterns are dropped, EXACT while nothing is; final after `entries`.
    """

    dropped: int

    def add(self, values: npt.NDArray[Any]) -> None:
        """Adds finite numbers whose type the kind can hold."""

    def add_keys(self, keys: Keys, counts: Counts, dropped: int) -> None:
        """Adds keys of which at most as many bits are dropped as here, and how often each occurs, at least once."""

    def drop_to(self, dropped: int) -> None:
        """Drops at least so many bits."""

    def entries(self) -> tuple[Keys, Counts]:
        """Returns the keys, ascending, and how often each occurs."""


def count_keys(kind: Kind) -> KeyCounts:
    """Returns counts of no values, to be added to.

    Args:
        kind: Type of the values while no bits are dropped; later they are float64.
    """
    return CompiledKeyCounts(kind) if HAS_KERNEL else NumpyKeyCounts(kind)


class CompiledKeyCounts:
    """Counts of keys in a hash table that the kernel fills.

    Args:
        kind: Type of the values while no bits are dropped.
    """

    def __init__(self, kind: Kind) -> None:
        self.dropped = EXACT
        self._kind = np.dtype(kind)
        self._num_keys = 0
        # Keys beside their counts; made when there is something to count.
        self._slots: npt.NDArray[np.uint64] | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """See `KeyCounts`."""
        if values.dtype == np.float32 and self._kind.kind == "f":
            self._count(np.ascontiguousarray(values), EXACT, None)
        else:
            self._count(np.ascontiguousarray(values, self._kind), EXACT, None)

    def add_keys(self, keys: Keys, counts: Counts, dropped: int) -> None:
        """See `KeyCounts`."""
        self._count(np.ascontiguousarray(keys), dropped, np.ascontiguousarray(counts))

    def drop_to(self, dropped: int) -> None:
        """See `KeyCounts`."""
        if dropped <= self.dropped:
            return
        keys, counts = self.entries()
        keys = coarser(keys, self.dropped, dropped, self._kind)
        self.dropped, self._num_keys, self._slots = dropped, 0, None
        if len(keys):
            self._count(keys, dropped, counts)

    def entries(self) -> tuple[Keys, Counts]:
        """See `KeyCounts`."""
        if self._slots is None:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        found = self._slots[self._slots[:, 1] != 0]
        found = found[np.argsort(found[:, 0])]
        return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1]).view(np.int64)

    def _count(self, values: npt.NDArray[Any], source: int, counts: Counts | None) -> None:
        if self._slots is None:
            self._slots = np.zeros((2 * NUM_BUCKETS, 2), np.uint64)
        self.dropped, self._num_keys = _kernel.count_keys(
            self._slots,
            _FORMATS[self._kind.kind],
            NUM_BUCKETS,
            self.dropped,
            self._num_keys,
            values,
            values.dtype == np.float32,
            source,
            counts,
        )


class NumpyKeyCounts:
    """Counts of keys in sorted arrays.

    Args:
        kind: Type of the values while no bits are dropped.
    """

    def __init__(self, kind: Kind) -> None:
        self.dropped = EXACT
        self._kind = np.dtype(kind)
        self._keys: Keys = np.empty(0, np.uint64)
        self._counts: Counts = np.empty(0, np.int64)
        self._pending: list[tuple[Keys, Counts]] = []
        self._num_pending = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """See `KeyCounts`."""
        for start in range(0, len(values), _PIECE):
            keys = np.ascontiguousarray(values[start : start + _PIECE], self._kind).view(np.uint64)
            self._append(*count_equal(coarser(keys, EXACT, self.dropped, self._kind)))

    def add_keys(self, keys: Keys, counts: Counts, dropped: int) -> None:
        """See `KeyCounts`."""
        self._append(coarser(keys, dropped, self.dropped, self._kind), counts)

    def drop_to(self, dropped: int) -> None:
        """See `KeyCounts`."""
        self._consolidate()
        if dropped > self.dropped:
            self._drop_to(dropped)

    def entries(self) -> tuple[Keys, Counts]:
        """See `KeyCounts`."""
        self._consolidate()
        return self._keys, self._counts

    def _append(self, keys: Keys, counts: Counts) -> None:
        self._pending.append((keys, counts))
        self._num_pending += len(keys)
        if self._num_pending > _MAX_PENDING:
            self._consolidate()

    def _consolidate(self) -> None:
        if not self._pending:
            return
        keys = np.concatenate([self._keys, *(k for k, _ in self._pending)])
        counts = np.concatenate([self._counts, *(c for _, c in self._pending)])
        self._pending, self._num_pending = [], 0
        if len(keys):
            self._keys, self._counts = add_up(keys, counts)
        if len(self._keys) > NUM_BUCKETS:
            self._drop_to(self._enough_dropped())

    def _enough_dropped(self) -> int:
        # The least number of bits that leaves NUM_BUCKETS keys.
        keys, dropped = self._keys, self.dropped
        if dropped == EXACT:
            keys, dropped = coarser(keys, EXACT, 0, self._kind), 0
            keys = keys if self._kind.kind == "f" else np.sort(keys)
        # Two neighbours differ until the highest bit of their difference is dropped.
        differences = keys[1:] ^ keys[:-1]
        # Clearing the bit below the highest keeps float64 from rounding up to the next power of two.
        differences &= ~(differences >> np.uint64(1))
        _, num_bits = np.frexp(differences.astype(np.float64))
        num_borders = np.cumsum(np.bincount(num_bits, minlength=66)[::-1])[::-1]
        return dropped + int(np.flatnonzero(num_borders[1:] < NUM_BUCKETS)[0])

    def _drop_to(self, dropped: int) -> None:
        if len(self._keys):
            keys = coarser(self._keys, self.dropped, dropped, self._kind)
            self._keys, self._counts = add_up(keys, self._counts)
        self.dropped = dropped


def coarser(keys: Keys, dropped: int, wanted: int, kind: np.dtype[Any]) -> Keys:
    """Returns keys of values of a kind with more bits dropped."""
    if dropped == wanted:
        return keys
    if dropped == EXACT:
        keys, dropped = keys.view(kind).astype(np.float64, copy=False).view(np.uint64), 0
    return keys >> np.uint64(wanted - dropped)


def count_equal(keys: Keys) -> tuple[Keys, Counts]:
    """Returns the distinct keys, ascending, and how often each occurs."""
    starts = _run_starts(keys)
    if len(starts) * 4 > len(keys):
        keys = np.sort(keys)
        starts = _run_starts(keys)
        return keys[starts], _run_lengths(starts, len(keys))
    # Sorted rows and repeated values: only one of a run needs to be sorted.
    return add_up(keys[starts], _run_lengths(starts, len(keys)))


def add_up(keys: Keys, counts: Counts) -> tuple[Keys, Counts]:
    """Returns the distinct keys, ascending, with the sums of their counts."""
    if not (keys[1:] >= keys[:-1]).all():
        order = np.argsort(keys)
        keys, counts = keys[order], counts[order]
    starts = _run_starts(keys)
    return (keys, counts) if len(starts) == len(keys) else (keys[starts], np.add.reduceat(counts, starts))


def _run_lengths(starts: npt.NDArray[np.int64], stop: int) -> Counts:
    # Several times as fast for few runs as np.diff with a value appended.
    lengths = np.empty(len(starts), np.int64)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = stop - starts[-1:]
    return lengths


def _run_starts(keys: Keys) -> npt.NDArray[np.int64]:
    is_start = np.empty(len(keys), bool)
    is_start[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=is_start[1:])
    return np.flatnonzero(is_start)
