"""Which source gives each row of a mixture, and which of its rows: arithmetic on integers, without I/O.

A mixture has lanes as an epoch of one split has: every lane gives its share to every global batch, and a worker reads
the lanes of its share and nothing else. Of the first k rows of a lane, a source of weight p gives p * k, rounded; how
many of them each of several sources gives is decided by halving the set of sources again and again. Where two sources
part, the lanes round at evenly spaced thresholds. So, by Hermite's identity, what they round up and down cancels out:
two sources are never further than one row from their proportions, whatever the number of steps, lanes and workers is
(half a row where the lanes share a batch evenly; of several turns that is true of the steps that they took together,
and within those a batch is off by a row or two more). Where more sources part, thresholds of the later partitions are
spread by Halton's sequence, and the distance stays a few rows. Nothing is summed up step by step, so any step is found
without the ones before it, and all numbers are exact.

The epochs of each source form an endless sequence. It is cut into rounds of as many whole batches as fit into an
epoch, and each lane reads its run of every round: what the lanes have read is, but for the round in which they are, a
piece of the sequence without a hole. A source with fewer examples than a batch is dealt row by row instead, so that
the lanes together read it in its order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardkit.reading.order import Int64s, OrderOptions, Worker, lane_shares

# One for each level of a tree over the sources, which halves their number: enough for a thousand sources.
_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


class SourceRows(NamedTuple):
    """Neighbours in the endless sequence of one source."""

    source: int
    start: int
    stop: int


class _Partition(NamedTuple):
    """Where the rows of a set of sources are dealt to its two halves."""

    left: _Partition | int
    right: _Partition | int
    left_weight: int
    weight: int
    level: int


class _Threshold(NamedTuple):
    """What is added before rounding down, a fraction between 0 and 1."""

    numerator: int
    denominator: int


class MixtureOrder:
    """The order of a mixture that never ends.

    Args:
        weights: Of each source, in any unit.
        num_examples: Of each source, at least 1.
        options: Checked by `check_options`; `shuffle` is without meaning here.
    """

    def __init__(self, weights: Sequence[int], num_examples: Sequence[int], options: OrderOptions) -> None:
        self._sizes = [int(size) for size in num_examples]
        self._num_turns = options.num_turns
        self._num_turn_lanes = options.num_lanes // options.num_turns
        turn_shares = lane_shares(options.global_batch_size, self._num_turn_lanes)
        shares = np.tile(turn_shares, options.num_turns)
        self._shares: list[int] = shares.tolist()
        self._is_forward: list[bool] = (np.cumsum(shares > 0) % 2 == 1).tolist()
        self._before: list[int] = (np.cumsum(shares) - shares).tolist()
        self._round = options.global_batch_size * options.num_turns
        by_weight = sorted(range(len(weights)), key=lambda i: -weights[i])
        self._root = _part(by_weight, weights, 0)
        depth = len(weights).bit_length()
        self._thresholds = [_thresholds(self._shares, _BASES[level % len(_BASES)]) for level in range(depth)]
        self._slots = _slots(shares) if min(self._sizes) < self._round else []
        # The counts before a step are those after the last one, so they are kept.
        self._counts = lru_cache(2 * options.num_lanes)(self._count)

    def rows(self, step: int, worker: Worker) -> list[SourceRows]:
        """Returns the rows of a worker's batch, in its order.

        Args:
            step: From 0.
            worker: The batches of all workers, one after the other, are the global batch.
        """
        number, turn = divmod(step, self._num_turns)
        lanes_each = self._num_turn_lanes // worker.num_workers
        first = turn * self._num_turn_lanes + worker.index * lanes_each
        found = []
        for lane in range(first, first + lanes_each):
            if self._shares[lane]:
                starts, stops = self._counts(lane, number), self._counts(lane, number + 1)
                for source, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                    found += [SourceRows(source, *run) for run in self._runs(source, lane, start, stop)]
        return found

    def num_read(self, num_steps: int) -> list[int]:
        """Returns how many rows of each source the first steps take."""
        numbers = [(num_steps + self._num_turns - 1 - turn) // self._num_turns for turn in range(self._num_turns)]
        lanes = range(len(self._shares))
        counts = [self._count(lane, numbers[lane // self._num_turn_lanes]) for lane in lanes]
        return [sum(of_source) for of_source in zip(*counts, strict=True)]

    def _count(self, lane: int, number: int) -> tuple[int, ...]:
        """Returns how many rows of each source a lane gives to its first batches."""
        counts = [0] * len(self._sizes)
        waiting: list[tuple[_Partition | int, int]] = [(self._root, number * self._shares[lane])]
        while waiting:
            node, count = waiting.pop()
            if isinstance(node, int):
                counts[node] = count
                continue
            threshold = self._thresholds[node.level][lane]
            scaled = count * node.left_weight * threshold.denominator + threshold.numerator * node.weight
            left = scaled // (node.weight * threshold.denominator)
            waiting += [(node.left, left), (node.right, count - left)]
        return tuple(counts)

    def _runs(self, source: int, lane: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields where rows of a lane, counted from its first, lie in the sequence of a source."""
        share, num_batches = self._shares[lane], self._sizes[source] // self._round
        if not num_batches:
            for row in range(start, stop):
                number, place = divmod(row, share)
                position = number * self._round + self._slots[lane][place]
                yield position, position + 1
            return
        length = num_batches * share
        while start < stop:
            number, place = divmod(start, length)
            end = min(stop, (number + 1) * length)
            # As in an epoch of one split, every second lane is read from its end.
            count = end - start
            offset = place if self._is_forward[lane] else length - place - count
            position = num_batches * (number * self._round + self._before[lane]) + offset
            yield position, position + count
            start = end


def integer_weights(weights: Sequence[float | Fraction]) -> list[int]:
    """Returns integers in the same proportions; a float stands for the decimal number that it is written as."""
    exact = [weight if isinstance(weight, Fraction) else Fraction(str(weight)) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))
    integers = [int(weight * common) for weight in exact]
    divisor = math.gcd(*integers)
    return [integer // divisor for integer in integers]


def _part(sources: Sequence[int], weights: Sequence[int], level: int) -> _Partition | int:
    if len(sources) == 1:
        return sources[0]
    left = sources[0::2]
    return _Partition(
        _part(left, weights, level + 1),
        _part(sources[1::2], weights, level + 1),
        sum(weights[i] for i in left),
        sum(weights[i] for i in sources),
        level,
    )


def _thresholds(shares: Sequence[int], base: int) -> list[_Threshold]:
    # Lanes of unequal shares are at different rows, so each kind of lane must be even in itself.
    thresholds = [_Threshold(1, 2)] * len(shares)
    for share in set(shares):
        lanes = [lane for lane, own in enumerate(shares) if own == share]
        ordered = sorted(range(len(lanes)), key=lambda i: _radical_inverse(i, base))
        for rank, i in enumerate(ordered):
            thresholds[lanes[i]] = _Threshold(2 * rank + 1, 2 * len(lanes))
    return thresholds


def _radical_inverse(number: int, base: int) -> Fraction:
    """Returns the digits of a number mirrored at the point (Halton 1960)."""
    value, scale = 0, 1
    while number:
        number, digit = divmod(number, base)
        value, scale = value * base + digit, scale * base
    return Fraction(value, scale)


def _slots(shares: Int64s) -> list[list[int]]:
    """Returns for each lane where the rows that it gives to one batch of each turn come among those of all lanes.

    They come in the order of time, if every lane gives its rows at an even pace.
    """
    ends = np.cumsum(shares)
    lanes = np.repeat(np.arange(len(shares)), shares)
    numbers = np.arange(ends[-1]) - (ends - shares)[lanes]
    ordered = np.lexsort((lanes, (2 * numbers + 1) / shares[lanes]))
    slots = np.empty(len(ordered), np.int64)
    slots[ordered] = np.arange(len(ordered))
    return [part.tolist() for part in np.split(slots, ends[:-1])]
