"""Which example comes when: arithmetic on integers, without I/O, clock or unseeded randomness.

An epoch is one sequence of all examples of a split. With shuffling, the blocks are permuted, and the examples within
each; without, it is the stored order. `num_lanes` lanes cut the sequence into runs that are read side by side: every
lane gives its share to every global batch, so a batch mixes that many blocks, and a worker reads the lanes of its share
and nothing else. Because a lane holds exactly what its steps take, all lanes, and so all workers, have the same number
of steps, whatever the numbers of examples, shards and workers are.

Nothing but (blocks, seed, epoch, global batch size, lanes) enters, so any number of workers that divides the lanes
gets the same global batches, and the example at any step is found without reading the ones before it.
"""

from __future__ import annotations

import operator
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.errors import UsageError
from shardkit.hashing import mix64, row_keys, stable_order
from shardkit.reading.length_buckets import BucketOrder

Int64s = npt.NDArray[np.int64]
Remainder = Literal["drop", "pad"]

# Divisible by 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 workers. Of ten classes sorted by class, 48 blocks leave one out of a
# batch with a chance of 6 %.
DEFAULT_NUM_LANES = 48


class OrderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides the order beside the data.

    Attributes:
        global_batch_size: Examples that all workers together take a step; 0 where `buckets` decide.
        seed: Any integer.
        shuffle: False gives the stored order.
        remainder: What becomes of examples that do not fill a batch: `drop` leaves them out of this epoch (others in
            the next, if shuffled), `pad` gives them in one more batch that is filled up and has a mask.
        num_lanes: Runs that are read side by side; without meaning unless shuffled.
        num_turns: Groups of lanes that give whole batches in turn, so that several processes of one worker can make
            batches side by side without reading the same blocks.
        buckets: See `shardkit.reading.bucketing`.
    """

    global_batch_size: int
    seed: int = 0
    shuffle: bool = True
    remainder: Remainder = "drop"
    num_lanes: int = DEFAULT_NUM_LANES
    num_turns: int = 1
    buckets: BucketOrder | None = None

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "seed", "num_lanes", "num_turns"):
            try:
                # NumPy's integers become Python's, which a state can hold.
                msgspec.structs.force_setattr(self, name, operator.index(getattr(self, name)))
            except TypeError:
                raise UsageError(
                    "there is no such order of reading",
                    why=f"{name} is {getattr(self, name)!r}",
                    next_step="Give a whole number",
                ) from None
        if self.remainder not in ("drop", "pad"):
            raise UsageError(
                "there is no such order of reading",
                why=f"remainder is {self.remainder!r}",
                next_step="Give 'drop' or 'pad'",
            )
        msgspec.structs.force_setattr(self, "shuffle", bool(self.shuffle))


class Worker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the processes that share an epoch.

    Attributes:
        index: From 0.
        num_workers: How many there are.
    """

    index: int = 0
    num_workers: int = 1


class Rows(NamedTuple):
    """Neighbours in the sequence that lie in one block.

    Attributes:
        place: What stands for the block: in `EpochOrder` its 0-based position in the epoch's order of blocks.
        start: Of the first row among the block's rows as the epoch orders them.
        stop: After the last.
    """

    place: Any
    start: int
    stop: int


def choose_num_lanes(num_workers: int, num_turns: int = 1) -> int:
    """Returns the default for each turn if the workers divide it, else its next multiple of their number."""
    return -(-DEFAULT_NUM_LANES // num_workers) * num_workers * num_turns


def check_options(options: OrderOptions, worker: Worker) -> None:
    """Checks that numbers fit together.

    Raises:
        UsageError: If they do not; names what would.
    """
    buckets = options.buckets
    lanes, num_workers = options.num_lanes, worker.num_workers
    # What the workers share evenly: a batch, or groups of which each gives as many rows to every batch.
    name, size = (
        ("global_batch_size", options.global_batch_size) if buckets is None else ("num_groups", buckets.num_groups)
    )
    numbers = {name: size, "num_lanes": lanes, "num_workers": num_workers, "num_turns": options.num_turns}
    if min(numbers.values()) < 1:
        raise UsageError(
            "there is no such order of reading",
            why=f"{', '.join(f'{name} is {number}' for name, number in numbers.items())}; all must be at least 1",
            next_step="Give numbers from 1",
        )
    if not 0 <= worker.index < num_workers:
        raise UsageError(
            "there is no such worker",
            why=f"worker_index is {worker.index} and there are {num_workers}",
            next_step=f"Give a worker_index from 0 to {num_workers - 1}",
        )
    if size % num_workers:
        raise UsageError(
            "the workers cannot share a batch evenly",
            why=f"{name} {size} is no multiple of the {num_workers} workers",
            next_step=f"Use {_nearest_multiple(size, num_workers)}",
        )
    num_readers = (num_workers if buckets is None else buckets.num_groups) * options.num_turns
    if options.shuffle and lanes % num_readers:
        readers = "processes that read" if buckets is None else "groups, counted once a turn"
        raise UsageError(
            "the workers cannot share the lanes evenly",
            why=f"num_lanes {lanes} is no multiple of the {num_readers} {readers}",
            next_step=f"Use num_lanes={_nearest_multiple(lanes, num_readers)}; it changes the order",
        )


class EpochSequence:
    """All examples of a split, block after block, in the order of an epoch.

    Attributes:
        blocks: Stored positions of the blocks that have examples, in the epoch's order.
        sizes: Examples of each of them.
        ends: Position in the sequence after the last example of each.
        num_examples: Of the split.

    Args:
        block_num_examples: Of all blocks of the split, in the stored order.
        options: Of which `seed` and `shuffle` count.
        epoch: Gives another order for the same seed.
    """

    def __init__(self, block_num_examples: Int64s, options: OrderOptions, epoch: int) -> None:
        self._shuffle = options.shuffle
        self._key = _epoch_key(options.seed, epoch)
        sizes = np.asarray(block_num_examples, np.int64)
        used = np.flatnonzero(sizes)
        self.blocks: Int64s = used[_permutation(len(used), self._key)] if options.shuffle else used
        self.sizes = sizes[self.blocks]
        self.ends: Int64s = np.cumsum(self.sizes)
        self.num_examples = int(sizes.sum())

    def block_order(self, place: int) -> Int64s | None:
        """Returns the stored positions of a block's rows in the epoch's order, None if it is the stored one."""
        if not self._shuffle:
            return None
        return _permutation(int(self.sizes[place]), mix64(self._key ^ np.uint64(self.blocks[place])))


class EpochOrder:
    """The order of one epoch of one split.

    Args:
        block_num_examples: Of all blocks of the split, in the stored order.
        options: Checked by `check_options`.
        epoch: Gives another order for the same seed.
    """

    def __init__(self, block_num_examples: Int64s, options: OrderOptions, epoch: int) -> None:
        self.global_batch_size = options.global_batch_size
        self._options = options
        sequence = EpochSequence(block_num_examples, options, epoch)
        self.blocks = sequence.blocks
        self.block_order = sequence.block_order
        self._sizes = sequence.sizes
        self._ends = sequence.ends
        self._firsts = self._ends - self._sizes
        self.num_examples = sequence.num_examples
        size = options.global_batch_size
        self._num_full, self._rest = divmod(self.num_examples, size)
        if options.remainder == "drop":
            self._rest = 0
        self.num_steps = self._num_full + bool(self._rest)
        num_lanes = options.num_lanes // options.num_turns if options.shuffle else 1
        self._shares, self._rest_shares = lane_shares(size, num_lanes), lane_shares(self._rest, num_lanes)
        turns = np.arange(options.num_turns if options.shuffle else 1)[:, None]
        num_full_steps = (self._num_full + options.num_turns - 1 - turns) // options.num_turns
        is_rest_turn = turns == self._num_full % options.num_turns
        held = (num_full_steps * self._shares + is_rest_turn * self._rest_shares).reshape(-1)
        self._lane_starts = (np.cumsum(held) - held).reshape(len(turns), num_lanes)

    def is_filled_up(self, step: int) -> bool:
        """Returns whether the global batch has fewer examples than rows."""
        return step == self._num_full

    def num_batch_examples(self, step: int, worker: Worker) -> int:
        """Returns how many examples, padding aside, a worker gets at a step."""
        starts, stops = self._runs(step, worker)
        return int((stops - starts).sum())

    def rows(self, step: int, worker: Worker) -> list[Rows]:
        """Returns where the rows of a worker's batch lie, in the batch's order.

        Args:
            step: From 0 to `num_steps` - 1.
            worker: The batches of all workers, one after the other, are the global batch.
        """
        starts, stops = self._runs(step, worker)
        places = np.searchsorted(self._ends, starts, side="right")
        firsts = self._firsts[places]
        if (stops - firsts <= self._sizes[places]).all():
            return list(map(Rows, places.tolist(), (starts - firsts).tolist(), (stops - firsts).tolist()))
        found = []
        in_block = zip(places.tolist(), (starts - firsts).tolist(), (stops - firsts).tolist(), strict=True)
        for place, start, stop in in_block:
            size = int(self._sizes[place])
            while stop > size:
                found.append(Rows(place, start, size))
                place, start, stop = place + 1, 0, stop - size
                size = int(self._sizes[place])
            found.append(Rows(place, start, stop))
        return found

    def _runs(self, step: int, worker: Worker) -> tuple[Int64s, Int64s]:
        """Returns first and last + 1 position in the sequence of each lane's part of a worker's batch."""
        shares = self._rest_shares if step == self._num_full else self._shares
        if not self._options.shuffle:
            first = step * self._options.global_batch_size
            cuts = first + int(shares[0]) * np.arange(worker.num_workers + 1) // worker.num_workers
            starts, stops = cuts[worker.index : worker.index + 1], cuts[worker.index + 1 : worker.index + 2]
        else:
            number, turn = divmod(step, self._options.num_turns)
            lanes_each = len(shares) // worker.num_workers
            mine = slice(worker.index * lanes_each, (worker.index + 1) * lanes_each)
            starts = self._lane_starts[turn, mine] + number * self._shares[mine]
            stops = starts + shares[mine]
        is_taken = stops > starts
        return starts[is_taken], stops[is_taken]


def lane_shares(total: int, num_lanes: int) -> Int64s:
    """Returns each lane's part of `total`; the sums of any equal runs of lanes that cut it evenly are equal."""
    return np.diff(total * np.arange(num_lanes + 1, dtype=np.int64) // num_lanes)


def _epoch_key(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    return row_keys(np.array([epoch % 2**64], np.uint64), seed)


def _permutation(count: int, key: npt.NDArray[np.uint64]) -> Int64s:
    # Not NumPy's generators: their streams may change from release to release, and with them the order of an epoch.
    return stable_order(mix64(mix64(np.arange(count, dtype=np.uint64)) ^ key))


def _nearest_multiple(number: int, factor: int) -> str:
    below, above = number // factor * factor, -(-number // factor) * factor
    return f"{below} or {above}" if below else f"{above}"
