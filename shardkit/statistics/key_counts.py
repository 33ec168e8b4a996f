"""Numbers counted one by one while few are distinct, by the upper bits of their float64 patterns beyond.

As few low bits are dropped as leave `max_keys` keys. The compiled table and the one in NumPy count the same.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.statistics.quantile_buckets import Counts, Keys

if HAS_KERNEL:
    from shardkit.encoding.kernel import _kernel

EXACT = -1
NUM_BUCKETS = 4_096

_PIECE = 32_768  # Its intermediate results stay in the cache.

_FORMATS = {"f": "d", "i": "q", "u": "Q"}  # As the kernel knows them, by what NumPy calls the kind.

Kind = Literal["float64", "int64", "uint64"]


class KeyCounts:
    """Counts of keys in sorted arrays: of bit patterns of one kind, or of the upper bits of those of float64.

    Args:
        kind: Type of the values while no bits are dropped; later they are float64.

    Attributes:
        dropped: How many lower bits of float64 patterns are dropped, EXACT while nothing is.
    """

    def __init__(self, kind: Kind) -> None:
        self.dropped = EXACT
        self._kind = np.dtype(kind)
        self._clear()

    def add(self, values: npt.NDArray[Any]) -> None:
        """Adds finite numbers whose type the kind can hold."""
        is_taken = values.dtype == np.float32 and self._kind.kind == "f"
        self._count(np.ascontiguousarray(values, None if is_taken else self._kind), EXACT, None)

    def add_keys(self, keys: Keys, counts: Counts, dropped: int) -> None:
        """Adds keys of which at most as many bits are dropped as here, and how often each occurs, at least once."""
        self._count(np.ascontiguousarray(keys), dropped, np.ascontiguousarray(counts))

    def drop_to(self, dropped: int) -> None:
        """Drops at least so many bits."""
        if dropped <= self.dropped:
            return
        keys, counts = self.entries()
        keys = coarser(keys, self.dropped, dropped, self._kind)
        self.dropped = dropped
        self._clear()
        if len(keys):
            self._count(keys, dropped, counts)

    def entries(self) -> tuple[Keys, Counts]:
        """Returns the keys, ascending, and how often each occurs."""
        return self._entries

    def _clear(self) -> None:
        self._entries: tuple[Keys, Counts] = np.empty(0, np.uint64), np.empty(0, np.int64)

    def _count(self, values: npt.NDArray[Any], source: int, counts: Counts | None) -> None:
        for start in range(0, len(values), _PIECE):
            piece = slice(start, start + _PIECE)
            if counts is None:
                keys = values[piece].astype(self._kind, copy=False).view(np.uint64)
                found = count_equal(coarser(keys, EXACT, self.dropped, self._kind))
            else:
                found = coarser(values[piece], source, self.dropped, self._kind), counts[piece]
            before = self._entries
            self._entries = add_up(np.concatenate([before[0], found[0]]), np.concatenate([before[1], found[1]]))
            if len(self._entries[0]) > NUM_BUCKETS:
                self.drop_to(self._enough_dropped(self._entries[0]))

    def _enough_dropped(self, keys: Keys) -> int:
        # The least number of bits that leaves NUM_BUCKETS keys.
        dropped = self.dropped
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


class CompiledKeyCounts(KeyCounts):
    """The same in a hash table that the kernel fills."""

    def entries(self) -> tuple[Keys, Counts]:
        """See `KeyCounts`."""
        if self._slots is None:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        found = self._slots[self._slots[:, 1] != 0]
        found = found[np.argsort(found[:, 0])]
        return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1]).view(np.int64)

    def _clear(self) -> None:
        self._num_keys = 0
        # Keys beside their counts; made when there is something to count.
        self._slots: npt.NDArray[np.uint64] | None = None

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


def count_keys(kind: Kind) -> KeyCounts:
    """Returns counts of no values, to be added to.

    Args:
        kind: Type of the values while no bits are dropped; later they are float64.
    """
    return CompiledKeyCounts(kind) if HAS_KERNEL else KeyCounts(kind)


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
