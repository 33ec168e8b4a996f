"""How many rows of each class go to which dataset split: arithmetic without I/O, clock or randomness.

A class is all rows with one value of a column; its share of a split is a fraction of its rows, seldom whole. Shares are
rounded so that

- every class has, in every split, its share rounded down or up: a share that is whole is met exactly;
- the totals of the splits are their shares of all rows, rounded by the largest remainders;
- of all such roundings, classes of one size are together nearest to their shares. A thousand classes of one row each
  are so dealt out like one class of a thousand rows.

That all three can be had is the integrality of flows (controlled rounding; Cox 1987). With more than four splits the
second may be out of reach; totals are then as near to it as the first allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_NO_GAIN = 1e-9


class Apportionment(NamedTuple):
    """What classes get, by their size: G sizes, k splits.

    Attributes:
        sizes: Ascending, shape (G,).
        num_classes: Classes of each size, shape (G,).
        least: Rows that each class of a size gets in each split at least, shape (G, k).
        more_ends: How many classes of a size get one row more in this split or in one before it, shape (G, k).
    """

    sizes: Int64s
    num_classes: Int64s
    least: Int64s
    more_ends: Int64s


def apportion(num_classes_by_size: Mapping[int, int], fractions: Sequence[float]) -> Apportionment:
    """Returns the rounded shares of all classes.

    Args:
        num_classes_by_size: How many classes have how many rows; sizes from 1.
        fractions: Of the splits, as written: 0.1 is a tenth. Brought to the sum of 1 where they miss it.
    """
    written = [Fraction(repr(f)) for f in fractions]
    parts = [f / sum(written) for f in written]
    sizes = sorted(num_classes_by_size)
    num_classes = [num_classes_by_size[n] for n in sizes]
    least = [[floor(n * part) for part in parts] for n in sizes]
    # The exact shares of the rows above the least, for all classes of one size together.
    rests = [
        [m * (n * part - down) for part, down in zip(parts, row, strict=True)]
        for n, m, row in zip(sizes, num_classes, least, strict=True)
    ]
    more = np.array([largest_remainders(row) for row in rests], dtype=np.int64).reshape(-1, len(parts))
    off = np.array(
        [[float(y - q) for y, q in zip(*pair, strict=True)] for pair in zip(more.tolist(), rests, strict=True)]
    ).reshape(-1, len(parts))
    caps = np.array([[m if q else 0 for q in row] for m, row in zip(num_classes, rests, strict=True)], dtype=np.int64)
    counts, least_rows = np.array(num_classes, dtype=np.int64), np.array(least, dtype=np.int64).reshape(-1, len(parts))
    num_rows = sum(n * m for n, m in num_classes_by_size.items())
    totals = np.array(largest_remainders([num_rows * part for part in parts]), dtype=np.int64)
    _meet_totals(more, off, caps.reshape(-1, len(parts)), totals - counts @ least_rows)
    return Apportionment(np.array(sizes, dtype=np.int64), counts, least_rows, np.cumsum(more, axis=1))


def largest_remainders(shares: Sequence[Fraction]) -> list[int]:
    """Returns whole numbers next to the shares with the same sum, which is whole; of equal remainders the first."""
    rounded = [floor(share) for share in shares]
    num_left = int(sum(shares)) - sum(rounded)
    for i in sorted(range(len(shares)), key=lambda i: rounded[i] - shares[i])[:num_left]:
        rounded[i] += 1
    return rounded


def split_ends(apportionment: Apportionment, sizes: Int64s, ranks: Int64s) -> Int64s:
    """Returns for each class where its rows for each split end, if its rows are in the order of the splits.

    Args:
        sizes: Rows of each class, shape (n,).
        ranks: The place of each class among all classes of its size, from 0.

    Returns:
        Running sums of the rows per split, shape (n, k).
    """
    group = np.searchsorted(apportionment.sizes, sizes)
    counts = apportionment.least[group]
    num_left = sizes - counts.sum(axis=1)
    # The extra rows of the splits lie one split after the other around the classes, so no class gets two of one split.
    for turn in range(int(num_left.max(initial=0))):
        own = np.flatnonzero(num_left > turn)
        place = ranks[own] + turn * apportionment.num_classes[group[own]]
        counts[own, (apportionment.more_ends[group[own]] <= place[:, None]).sum(axis=1)] += 1
    return np.cumsum(counts, axis=1)


def deal(ends: Int64s, classes: Int64s, ranks: Int64s) -> Int64s:
    """Returns the position of the split of each row.

    Args:
        ends: Of each class, see `split_ends`.
        ranks: The place of each row in its class, from 0.
    """
    positions = np.zeros(len(classes), dtype=np.int64)
    for position in range(ends.shape[1] - 1):
        positions += ranks >= ends[classes, position]
    return positions


def _meet_totals(more: Int64s, off: Floats, caps: Int64s, wanted: Int64s) -> None:
    """Moves extra rows between splits, at the least cost, until the sums are as wanted or nothing can be moved.

    Args:
        more: Extra rows by size and split; changed in place.
        off: What they are above the exact rest of the shares; changed likewise.
        caps: What they may be at most.
    """
    excess = more.sum(axis=0) - wanted
    while (excess > 0).any():
        path = _cheapest_path(more, off, caps, excess)
        if not path:
            return
        for group, source, target in path:
            for position, step in ((source, -1), (target, 1)):
                more[group, position] += step
                off[group, position] += step
                excess[position] += step


def _cheapest_path(more: Int64s, off: Floats, caps: Int64s, excess: Int64s) -> list[tuple[int, int, int]]:
    # Successive shortest paths, by Bellman and Ford, over the splits: the cost is the growth of the sum of off**2.
    num_splits = len(excess)
    giving = np.where(more > 0, 1 - 2 * off, np.inf)
    taking = np.where(more < caps, 1 + 2 * off, np.inf)
    edges = []
    for source in range(num_splits):
        costs = giving[:, source, None] + taking
        groups = costs.argmin(axis=0).tolist()
        edges += [(float(costs[g, target]), g, source, target) for target, g in enumerate(groups) if target != source]
    distance = [0.0 if e > 0 else np.inf for e in excess.tolist()]
    before: dict[int, tuple[int, int, int]] = {}
    for _ in range(num_splits):
        for cost, group, source, target in edges:
            if distance[source] + cost < distance[target] - _NO_GAIN:
                distance[target] = distance[source] + cost
                before[target] = (group, source, target)
    last = min((p for p in range(num_splits) if excess[p] < 0), key=lambda p: distance[p])
    path: list[tuple[int, int, int]] = []
    while np.isfinite(distance[last]) and last in before and len(path) < num_splits:
        path.insert(0, before[last])
        last = before[last][1]
    return path
