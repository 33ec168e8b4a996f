"""Which example comes when if batches are of similar length: arithmetic on integers, without I/O.

The examples of an epoch are in the sequence of `EpochSequence`. Sorted by bucket, and within it along the sequence,
each has a rank: those of one bucket and block are neighbours.
`num_lanes` lanes cut the sequence into equal runs, and the lanes are dealt to groups, once for each turn. Every group
walks its lanes side by side, one row of each after the other, and puts each row at the end of its bucket's queue. When
all groups hold enough of a bucket, each gives the same number of rows, and that is the bucket's next batch: the batches
are in the order in which the slowest group meets their last row. A worker reads the lanes of its groups.

At the end every group is left with rows that did not make a batch. Those of all groups are put together and dealt
evenly once more. What does not fill a batch even so goes into the next bucket's (see `goes_up`), so that in the whole
epoch less than one batch is left out, or is filled up: one of the longest, which has the fewest rows. Hence the number
of batches is that of the data, whatever the seed, the epoch and the turns are.

Where every batch has the same rows, what would be left out is known before: it is the end of the sequence, not the
longest examples, and an epoch has as many batches as without buckets.

It takes 4 bytes an example, and about three times as much while it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardkit.reading.length_buckets import NO_BUCKET, goes_up
from shardkit.reading.order import EpochSequence, Int64s, OrderOptions, Remainder, Rows, Worker

Uint8s = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]


class Part(NamedTuple):
    """The rows of one block that are in one bucket.

    Attributes:
        place: Of the block in the epoch's order of blocks.
        is_last: Whether no later step of this reader needs any of them.
    """

    place: int
    bucket: int
    is_last: bool


class BucketedOrder:
    """The order of one epoch of one split in batches of similar length.

    Args:
        block_num_examples: Of all blocks of the split, in the stored order.
        bucket_of: Of each example of the split, in the stored order; `NO_BUCKET` leaves it out.
        num_rows: Of each bucket's batches, multiples of the groups.
        options: With buckets; checked by `check_options`.
        epoch: Gives another order for the same seed.
    """

    def __init__(
        self,
        block_num_examples: Int64s,
        bucket_of: Uint8s,
        num_rows: tuple[int, ...],
        options: OrderOptions,
        epoch: int,
    ) -> None:
        if options.buckets is None:
            raise ValueError("there are no buckets")
        self.sequence = EpochSequence(block_num_examples, options, epoch)
        self._num_groups = options.buckets.num_groups
        self._num_turns = options.num_turns
        self._bucket_of = bucket_of
        self._stored_ends = np.cumsum(np.asarray(block_num_examples, np.int64))
        self._num_rows = np.asarray(num_rows, np.int64)
        self._group_rows = self._num_rows // self._num_groups
        is_one_size = options.global_batch_size > 0
        codes = self._codes()
        self._used_stop = _used_stop(codes, options) if is_one_size else len(codes)
        codes[self._used_stop :] = NO_BUCKET
        num_buckets = len(num_rows)
        self._part_sizes = _part_sizes(codes, self.sequence.ends, num_buckets)
        ends = np.cumsum(self._part_sizes)
        self._part_starts = ends - self._part_sizes.reshape(-1)
        num_lanes = options.num_lanes if options.shuffle else self._num_groups * self._num_turns
        num_lanes_each = num_lanes // (self._num_groups * self._num_turns)
        queues = _queues(codes[: self._used_stop], num_buckets, num_lanes_each, num_lanes)
        self._ranks, self._starts, times = self._in_queues(queues, num_buckets)
        self._is_up = goes_up(tuple(self._part_sizes.sum(axis=1).tolist()), num_rows, always=is_one_size)
        self._plan_steps(times, options.remainder)

    def num_rows(self, step: int) -> int:
        """Returns the rows of the global batch at a step."""
        return int(self._num_rows[self.buckets[step]])

    def is_filled_up(self, step: int) -> bool:
        """Returns whether the global batch has fewer examples than rows."""
        return step >= self._num_regular and sum(map(len, self._shares(step, Worker()))) < self.num_rows(step)

    def rows(self, step: int, worker: Worker, last_steps: Int32s | None = None) -> list[Rows]:
        """Returns where the rows of a worker's batch are: places are `Part`, rows counted among those of the part.

        Args:
            step: From 0 to `num_steps` - 1.
            worker: The batches of all workers, one after the other, are the global batch.
            last_steps: What `last_steps` returned; without it no part is said to be the last.
        """
        # Sorted, so that a lane's rows are one run.
        ranks = np.concatenate([np.sort(ranks) for ranks in self._shares(step, worker)])
        parts = np.searchsorted(self._part_starts, ranks, side="right") - 1
        in_part = ranks - self._part_starts[parts]
        is_first = np.append(True, (parts[1:] != parts[:-1]) | (in_part[1:] != in_part[:-1] + 1))[: len(ranks)]
        firsts = np.flatnonzero(is_first)
        counts = np.diff(firsts, append=len(ranks)).tolist()
        buckets, places = np.divmod(parts[firsts], max(1, len(self.sequence.blocks)))
        is_last = np.zeros(len(firsts), np.bool_) if last_steps is None else last_steps[places, buckets] == step
        found = map(Part, places.tolist(), buckets.tolist(), is_last.tolist())
        starts = in_part[firsts].tolist()
        return [(part, start, start + count) for part, start, count in zip(found, starts, counts, strict=True)]

    def last_steps(self, worker: Worker, turn: int) -> Int32s:
        """Returns the last step at which a worker's reader of a turn needs a part, -1 for never: `[place, bucket]`."""
        last = np.full(self._part_sizes.size, -1, np.int32)
        # Every rank's part: found by one look-up, where a search takes twenty.
        parts = np.repeat(np.arange(last.size, dtype=np.int32), self._part_sizes.reshape(-1))
        each = self._num_groups // worker.num_workers
        regular = np.arange(turn, self._num_regular, self._num_turns, dtype=np.int32)
        for bucket, size in enumerate(self._group_rows.tolist()):
            steps = regular[self.buckets[regular] == bucket].repeat(size)
            for group in range(worker.index * each, (worker.index + 1) * each):
                start = int(self._starts[turn, group, bucket])
                np.maximum.at(last, parts[self._ranks[start : start + len(steps)]], steps)
        for step in range(self._num_regular, self.num_steps):
            if step % self._num_turns == turn:
                for ranks in self._shares(step, worker):
                    last[parts[ranks]] = step
        return last.reshape(self._part_sizes.shape).T

    def part_rows(self, place: int) -> list[Int64s]:
        """Returns for each bucket the positions of its rows among the rows of a block, as the epoch orders them."""
        codes = self._block_codes(place)
        first = int(self.sequence.ends[place] - self.sequence.sizes[place])
        codes = codes[: max(0, self._used_stop - first)]
        return [np.flatnonzero(codes == bucket) for bucket in range(len(self._num_rows))]

    def _block_codes(self, place: int) -> Uint8s:
        stop = int(self._stored_ends[self.sequence.blocks[place]])
        stored = self._bucket_of[stop - int(self.sequence.sizes[place]) : stop]
        order = self.sequence.block_order(place)
        return stored if order is None else stored[order]

    def _codes(self) -> Uint8s:
        """Returns the bucket of each example in the order of the sequence."""
        codes = [self._block_codes(place) for place in range(len(self.sequence.blocks))]
        return np.concatenate([np.zeros(0, np.uint8), *codes])

    def _in_queues(self, queues: Iterator[_Queue], num_buckets: int) -> tuple[Any, Int64s, list[list[Int64s]]]:
        """Returns the ranks of all queues, where each begins `[turn, group, bucket + 1]`, and when batches are full.

        When: of each turn and bucket, how far the slowest group has walked.
        """
        shape = (self._num_turns, self._num_groups, num_buckets + 1)
        starts = np.zeros(shape, np.int64)
        all_ranks, first = [], 0
        times: list[list[Int64s]] = []
        for number, (ranks, walked, counts) in enumerate(queues):
            turn, group = divmod(number, self._num_groups)
            ends = np.cumsum(counts)
            starts[turn, group] = first + np.append(0, ends)
            fulls = []
            for bucket, size in enumerate(self._group_rows.tolist()):
                fulls.append(walked[ends[bucket] - counts[bucket] : ends[bucket]][size - 1 :: size])
            if group == 0:
                times.append(fulls)
            else:
                pairs = zip(times[turn], fulls, strict=True)
                times[turn] = [np.maximum(a[: len(b)], b[: len(a)]) for a, b in pairs]
            all_ranks.append(ranks)
            first += len(ranks)
        return np.concatenate(all_ranks), starts, times

    def _plan_steps(self, times: list[list[Int64s]], remainder: Remainder) -> None:
        """Sets which batch of which bucket comes at each step: those of the turns first, then those of the rest."""
        turns = [_in_time(fulls) for fulls in times]
        num_rounds = min(len(buckets) for buckets, _ in turns)
        buckets = np.stack([buckets[:num_rounds] for buckets, _ in turns], axis=1).reshape(-1)
        numbers = np.stack([numbers[:num_rounds] for _, numbers in turns], axis=1).reshape(-1)
        self._num_regular = len(buckets)
        self._rests: list[Any] = []
        num_full, num_left = [], []
        carried = self._ranks[:0]
        for bucket, size in enumerate(self._num_rows.tolist()):
            rest = np.concatenate([carried, self._left_over(bucket, buckets)])
            num_full.append(len(rest) // size)
            carried = rest[num_full[-1] * size :] if self._is_up[bucket] else rest[:0]
            self._rests.append(rest[: len(rest) - len(carried)])
            num_left.append(len(self._rests[-1]) - num_full[-1] * size)
        rest_buckets, rest_numbers = _spread(np.array(num_full), np.array(num_left) > 0, pads=remainder == "pad")
        self.buckets: Uint8s = np.concatenate([buckets, rest_buckets]).astype(np.uint8)
        self._numbers = np.concatenate([numbers, rest_numbers])
        self.num_steps = len(self.buckets)

    def _left_over(self, bucket: int, regular: Int64s) -> Any:
        """Returns the ranks of a bucket that are in no regular batch, group after group."""
        found = [self._ranks[:0]]
        for group in range(self._num_groups):
            for turn in range(self._num_turns):
                num_batches = int((regular[turn :: self._num_turns] == bucket).sum())
                start, stop = self._starts[turn, group, bucket : bucket + 2].tolist()
                found.append(self._ranks[start + num_batches * int(self._group_rows[bucket]) : stop])
        return np.concatenate(found)

    def _shares(self, step: int, worker: Worker) -> Iterator[Int64s]:
        """Yields the ranks that each group of a worker gives to a batch."""
        bucket, number = int(self.buckets[step]), int(self._numbers[step])
        size = int(self._group_rows[bucket])
        each = self._num_groups // worker.num_workers
        for group in range(worker.index * each, (worker.index + 1) * each):
            if step < self._num_regular:
                start = int(self._starts[step % self._num_turns, group, bucket]) + number * size
                yield self._ranks[start : start + size].astype(np.int64)
                continue
            rest = self._rests[bucket]
            num_full = len(rest) // int(self._num_rows[bucket])
            if number < num_full:
                # Each group's batches are neighbours of the rest, so that most rows come from its lanes.
                start = (group * num_full + number) * size
                stop = start + size
            else:
                first = num_full * int(self._num_rows[bucket])
                start = first + (len(rest) - first) * group // self._num_groups
                stop = first + (len(rest) - first) * (group + 1) // self._num_groups
            yield rest[start:stop].astype(np.int64)


class _Queue(NamedTuple):
    """The rows of one group in one turn, by bucket, in the order in which it meets them.

    Attributes:
        ranks: Of the rows, bucket after bucket.
        walked: Of each row how many rows the group had met before.
    """

    ranks: npt.NDArray[Any]
    walked: Int64s
    counts: Int64s


def _used_stop(codes: Uint8s, options: OrderOptions) -> int:
    """Returns where in the sequence that begins which fills no batch of the one size that all have."""
    used = np.flatnonzero(codes != NO_BUCKET)
    num_used = len(used) // options.global_batch_size * options.global_batch_size
    return int(used[num_used]) if options.remainder == "drop" and num_used < len(used) else len(codes)


def _queues(codes: Uint8s, num_buckets: int, num_lanes_each: int, num_lanes: int) -> Iterator[_Queue]:
    """Yields the queues of all groups, turn after turn."""
    dtype = np.uint32 if len(codes) < 2**32 else np.uint64
    ranks = np.zeros(len(codes), dtype)
    num_ranked = 0
    for bucket in range(num_buckets):
        found = np.flatnonzero(codes == bucket)
        ranks[found] = np.arange(num_ranked, num_ranked + len(found), dtype=dtype)
        num_ranked += len(found)
    cuts = len(codes) * np.arange(num_lanes + 1, dtype=np.int64) // num_lanes
    for first in range(0, num_lanes, num_lanes_each):
        walk = _side_by_side(
            cuts[first : first + num_lanes_each + 1], np.arange(first, first + num_lanes_each) % 2 == 0
        )
        met = codes[walk]
        order = np.argsort(met, kind="stable")
        counts = np.bincount(met, minlength=NO_BUCKET + 1)[:num_buckets]
        order = order[: counts.sum()]
        yield _Queue(ranks[walk[order]], order, counts)


def _side_by_side(cuts: Int64s, is_forward: npt.NDArray[np.bool_]) -> Int64s:
    """Returns the positions of some runs, the first of each, then the second of each; sizes differ by at most one.

    Args:
        cuts: Where the runs start, and where the last one ends.
        is_forward: False for those that are read from their end.
    """
    sizes = np.diff(cuts)
    num_each = int(sizes.min())
    firsts, steps = np.where(is_forward, cuts[:-1], cuts[1:] - 1), np.where(is_forward, 1, -1)
    even = (firsts + steps * np.arange(num_each)[:, None]).reshape(-1)
    return np.concatenate([even, (firsts + steps * num_each)[sizes > num_each]])


def _in_time(fulls: list[Int64s]) -> tuple[Int64s, Int64s]:
    """Returns bucket and number in the bucket of batches in the order in which they are full."""
    counts = [len(full) for full in fulls]
    buckets = np.repeat(np.arange(len(fulls)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    order = np.lexsort((buckets, np.concatenate(fulls)))
    return buckets[order], numbers[order]


def _part_sizes(codes: Uint8s, ends: Int64s, num_buckets: int) -> Int64s:
    """Returns how many rows of each bucket each block has: `[bucket, place]`."""
    sizes = np.zeros((num_buckets, len(ends)), np.int64)
    for place, (first, stop) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
        sizes[:, place] = np.bincount(codes[first:stop], minlength=NO_BUCKET + 1)[:num_buckets]
    return sizes


def _spread(num_full: Int64s, is_left: npt.NDArray[np.bool_], *, pads: bool) -> tuple[Int64s, Int64s]:
    """Returns bucket and number of the last batches, those of each bucket spread evenly; filled up ones come last."""
    counts = num_full + is_left if pads else num_full
    buckets = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(buckets)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = (2 * numbers + 1) / (2 * np.maximum(1, num_full[buckets]))
    order = np.lexsort((buckets, np.where(numbers < num_full[buckets], places, np.inf)))
    return buckets[order], numbers[order]
