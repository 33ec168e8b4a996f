"""Which example comes when: arithmetic on integers, without I/O, clock or unseeded randomness.

An epoch is one sequence of all examples of a split. With shuffling, the blocks are permuted, and the examples within
each; without, it is the stored order. `num_lanes` lanes cut the sequence into runs that are read side by side: every
lane gives its share to every global batch, so a batch mixes that many blocks, and a worker reads the lanes of its share
and nothing else. Because a lane holds exactly what its steps take, all lanes, and so all workers, have the same number
of steps, whatever the numbers of examples, shards and workers are. Every second lane is read from its end: then two
lanes that meet within a block are there at the same time, both at first or both at last, and it is loaded once. The
price: at both ends of an epoch a batch mixes about half as many blocks as there are lanes.

Nothing but (blocks, seed, epoch, global batch size, lanes) enters, so any number of workers that divides the lanes
gets the same global batches, and the example at any step is found without reading the ones before it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.encoding.kernel import permutation
from shardkit.errors import UsageError
from shardkit.hashing import mix64, row_keys
from shardkit.reading.length_buckets import MAX_BATCH_EXAMPLES, BucketOrder

Int64s = npt.NDArray[np.int64]
Remainder = Literal["drop", "pad"]

# Divisible by 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 workers. Of ten classes sorted by class, 48 blocks leave one out of a
# batch with a chance of 6 %.
DEFAULT_NUM_LANES = 48
# Each takes a few dozen bytes and is looked at in every step.
MAX_NUM_LANES = 2**20

# A few dozen calls of NumPy take as long for one step as for so many; where there are many lanes, for fewer.
_STEPS_AT_ONCE = 32
_RUNS_AT_ONCE = _STEPS_AT_ONCE * DEFAULT_NUM_LANES


class OrderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides the order beside the data.

    Attributes:
        global_batch_size: Examples that all workers together take a step; 0 where the tokens of `buckets` decide.
        seed: Any integer.
        shuffle: False gives the stored order.
        remainder: What becomes of examples that do not fill a batch: `drop` leaves them out of this epoch (others in
            the next, if shuffled), `pad` gives them in one more batch that is filled up and has a mask.
        num_lanes: Runs that are read side by side; without meaning unless shuffled.
        num_turns: Groups of lanes that give whole batches in turn, so that several processes of one worker can make
            batches side by side without reading the same blocks.
        buckets: See `bucket_order`.
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
            # NumPy's integers become Python's, which a state can hold.
            msgspec.structs.force_setattr(self, name, _whole("order of reading", name, getattr(self, name)))
        if self.remainder not in ("drop", "pad"):
            raise UsageError(
                "there is no such order of reading",
                why=f"remainder is {self.remainder!r}",
                next_step="Give 'drop' or 'pad'",
            )
        if not isinstance(self.shuffle, (bool, np.bool_)):
            raise UsageError(
                "there is no such order of reading",
                why=f"shuffle is {self.shuffle!r}",
                next_step="Give True or False",
            )
        msgspec.structs.force_setattr(self, "shuffle", bool(self.shuffle))


class Worker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the processes that share an epoch."""

    index: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "index", _whole("worker", "worker_index", self.index))
        msgspec.structs.force_setattr(self, "num_workers", _whole("worker", "num_workers", self.num_workers))


Rows = tuple[Any, int, int]
"""Neighbours in the sequence that lie in one block: what stands for the block, in `EpochOrder` its 0-based position in
the epoch's order of blocks; the first row among the block's rows as the epoch orders them; the one after the last. A
batch has dozens, and a class takes seven times as long."""


class _Found(NamedTuple):
    """Where the rows of some steps are."""

    first: int
    worker: Worker
    rows: list[list[Rows]]


def choose_num_lanes(num_workers: int, num_turns: int = 1) -> int:
    """Returns the default for each turn if the workers divide it, else its next multiple of their number."""
    return -(-DEFAULT_NUM_LANES // num_workers) * num_workers * _whole("order of reading", "num_turns", num_turns)


def check_options(options: OrderOptions, worker: Worker) -> None:
    """Checks that numbers fit together. Raises UsageError if they do not; names what would."""
    buckets = options.buckets
    lanes, num_workers = options.num_lanes, worker.num_workers
    # The workers share a batch evenly, or groups of which each gives as many rows to every batch.
    name, size = (
        ("global_batch_size", options.global_batch_size) if buckets is None else ("num_groups", buckets.num_groups)
    )
    numbers = {name: size, "num_lanes": lanes, "num_workers": num_workers, "num_turns": options.num_turns}
    has_one_size = buckets is not None and buckets.tokens_per_batch is None
    if has_one_size:
        numbers["global_batch_size"] = options.global_batch_size
    largest = dict.fromkeys(numbers, MAX_NUM_LANES)
    if buckets is None:
        largest[name] = MAX_BATCH_EXAMPLES
    _check_range(numbers, largest)
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
    if has_one_size and options.global_batch_size % size:
        raise UsageError(
            "the groups cannot share a batch evenly",
            why=f"global_batch_size {options.global_batch_size} is no multiple of the {size} groups",
            next_step=f"Use {_nearest_multiple(options.global_batch_size, size)}, or a num_groups that divides it",
        )
    num_readers = (num_workers if buckets is None else buckets.num_groups) * options.num_turns
    if options.shuffle and lanes % num_readers:
        readers = "processes that read" if buckets is None else "groups, counted once a turn"
        raise UsageError(
            "the workers cannot share the lanes evenly",
            why=f"num_lanes {lanes} is no multiple of the {num_readers} {readers}",
            next_step=f"Use num_lanes={_nearest_multiple(lanes, num_readers)}; it changes the order",
        )


def _check_range(numbers: dict[str, int], largest: dict[str, int]) -> None:
    if min(numbers.values()) < 1:
        raise UsageError(
            "there is no such order of reading",
            why=f"{', '.join(f'{name} is {number}' for name, number in numbers.items())}; all must be at least 1",
            next_step="Give numbers from 1",
        )
    too_large = [
        f"{name} is {number:,} and can be {largest[name]:,} at most"
        for name, number in numbers.items()
        if number > largest[name]
    ]
    if too_large:
        why = ", ".join(too_large)
        raise UsageError("there is no such order of reading", why=why, next_step="Give smaller numbers")


def _whole(what: str, name: str, number: Any) -> int:
    """Returns an integer of any kind as one of Python. Raises UsageError if it is none."""
    try:
        return operator.index(number)
    except TypeError:
        raise UsageError(
            f"there is no such {what}", why=f"{name} is {number!r}", next_step="Give a whole number"
        ) from None


def check_counts(**counts: object) -> None:
    """Checks that numbers are whole and from 0 on. Raises UsageError if one is not; names all."""
    given = {name: operator.index(n) if hasattr(n, "__index__") else -1 for name, n in counts.items()}
    if min(given.values()) < 0:
        raise UsageError(
            "batches cannot be read",
            why=", ".join(f"{name} is {n!r}" for name, n in counts.items())
            + "; all must be whole, none may be negative",
            next_step="Give whole numbers from 0",
        )


def check_turn(turn: int, num_turns: int) -> None:
    """Checks that there is such a turn, or raises `UsageError`."""
    check_counts(turn=turn)
    if turn >= num_turns:
        raise UsageError(
            "there is no such turn",
            why=f"turn is {turn} and there are {num_turns}",
            next_step=f"Give a turn from 0 to {num_turns - 1}",
        )


class EpochSequence:
    """All examples of a split, block after block, in the order of an epoch.

    Attributes:
        blocks: Stored positions of the blocks that have examples, in the epoch's order.
        ends: Position in the sequence after the last example of each.

    Args:
        block_num_examples: Of all blocks of the split, in the stored order.
        options: Of which `seed` and `shuffle` count.
        epoch: Gives another order for the same seed.
    """

    def __init__(self, block_num_examples: Int64s, options: OrderOptions, epoch: int) -> None:
        # Not NumPy's generators: their streams may change from release to release, and with them the order of an epoch.
        key = row_keys(np.array([epoch % 2**64], np.uint64), options.seed)
        sizes = np.asarray(block_num_examples, np.int64)
        used = np.flatnonzero(sizes)
        self.blocks: Int64s = used[permutation(len(used), int(key[0]))] if options.shuffle else used
        self._block_keys = mix64(key ^ self.blocks.astype(np.uint64)) if options.shuffle else None
        self.sizes = sizes[self.blocks]
        self.ends: Int64s = np.cumsum(self.sizes)
        self.num_examples = int(sizes.sum())

    def block_order(self, place: int) -> Int64s | None:
        """Returns the stored positions of a block's rows in the epoch's order, None if it is the stored one."""
        if self._block_keys is None:
            return None
        return permutation(int(self.sizes[place]), int(self._block_keys[place]))


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
        # Lanes without a share are not between those that meet.
        self._is_forward = np.cumsum(self._shares > 0) % 2 == 1
        self._lane_stops = np.cumsum(held).reshape(len(turns), num_lanes)
        self._lane_starts = self._lane_stops - held.reshape(len(turns), num_lanes)
        self._found: _Found | None = None

    def is_filled_up(self, step: int) -> bool:
        """Returns whether the global batch has fewer examples than rows."""
        return step == self._num_full

    def rows(self, step: int, worker: Worker) -> list[Rows]:
        """Returns where the rows of a worker's batch are, in the batch's order.

        Args:
            step: From 0 to `num_steps` - 1.
            worker: The batches of all workers, one after the other, are the global batch.
        """
        num_at_once = max(1, min(_STEPS_AT_ONCE, _RUNS_AT_ONCE // len(self._shares)))
        first = step // num_at_once * num_at_once
        found = self._found
        if found is None or found.first != first or found.worker != worker:
            steps = np.arange(first, min(first + num_at_once, self.num_steps))
            found = self._found = _Found(first, worker, self._rows_of(steps, worker))
        return found.rows[step - first]

    def _rows_of(self, steps: Int64s, worker: Worker) -> list[list[Rows]]:
        starts, stops = self._runs(steps, worker)
        is_taken = stops > starts
        ends = np.cumsum(is_taken.sum(1)).tolist()
        starts, stops = starts[is_taken], stops[is_taken]
        places = np.searchsorted(self._ends, starts, side="right")
        firsts = self._firsts[places]
        parts = zip(places.tolist(), (starts - firsts).tolist(), (stops - firsts).tolist(), strict=True)
        rows: list[Rows] = list(parts)
        found = [rows[start:end] for start, end in pairwise([0, *ends])]
        goes_on = np.flatnonzero(stops - firsts > self._sizes[places])
        # Backwards, so that the positions of earlier rows stay valid.
        for i, step in zip(
            goes_on.tolist()[::-1], np.searchsorted(ends, goes_on, side="right").tolist()[::-1], strict=True
        ):
            at = i - (ends[step - 1] if step else 0)
            found[step][at : at + 1] = self._parts(rows[i])
        return found

    def _parts(self, rows: Rows) -> Iterator[Rows]:
        """Yields rows that may go on in the blocks behind theirs, block by block."""
        place, start, stop = rows
        while stop > (size := int(self._sizes[place])):
            yield place, start, size
            place, start, stop = place + 1, 0, stop - size
        yield place, start, stop

    def _runs(self, steps: Int64s, worker: Worker) -> tuple[Int64s, Int64s]:
        """Returns first and last + 1 position in the sequence of each lane's part of a worker's batches `[step, lane]`.

        Some parts may be empty.
        """
        is_rest = (steps == self._num_full)[:, None]
        if not self._options.shuffle:
            sizes = np.where(is_rest, self._rest, self._options.global_batch_size)
            first = steps[:, None] * self._options.global_batch_size
            cuts = first + sizes * np.arange(worker.index, worker.index + 2) // worker.num_workers
            return cuts[:, :1], cuts[:, 1:]
        number, turn = np.divmod(steps, self._options.num_turns)
        lanes_each = len(self._shares) // worker.num_workers
        mine = slice(worker.index * lanes_each, (worker.index + 1) * lanes_each)
        shares = np.where(is_rest, self._rest_shares[mine], self._shares[mine])
        taken = number[:, None] * self._shares[mine]
        from_end = self._lane_stops[turn, mine] - taken - shares
        starts = np.where(self._is_forward[mine], self._lane_starts[turn, mine] + taken, from_end)
        return starts, starts + shares


def lane_shares(total: int, num_lanes: int) -> Int64s:
    """Returns each lane's part of `total`; the sums of any equal runs of lanes that cut it evenly are equal."""
    return np.diff(total * np.arange(num_lanes + 1, dtype=np.int64) // num_lanes)


def _nearest_multiple(number: int, factor: int) -> str:
    below, above = number // factor * factor, -(-number // factor) * factor
    return f"{below} or {above}" if below else f"{above}"
