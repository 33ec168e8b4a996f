"""Arithmetic of the layout: how many shards, where each is cut, which key ranges make a group. No I/O, no clock.

Within a dataset split all records are in one order; a record's place in the split is the sum of the framed bytes
before it. Shard i takes the records that start in `[cuts[i], cuts[i + 1])`. With cuts at equal distances every shard
is less than one record away from equal bytes.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.errors import UsageError
from shardkit.units import MiB, format_size

MIN_GROUP_BYTES = 8 * MiB
MAX_GROUP_BYTES = 24 * MiB
# Each run has at most so many pieces: with more, pieces would be tiny, and the runner holds a line for each.
MAX_GROUPS = 1024
MAX_SHARDS = 1_000_000
GROUPS_A_UNIT = 4
# The work under the interpreter's lock is small enough for this many threads.
MAX_THREADS = 4

Int64s = npt.NDArray[np.int64]


class KeyRangeTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What the key ranges of one dataset split hold, in ascending order of the key ranges.

    Attributes:
        key_ranges: Numbers of the key ranges that are not empty.
        num_bytes: Framed bytes per key range.
        max_record_bytes: The largest framed record of the split.
    """

    key_ranges: Int64s
    num_examples: Int64s
    num_bytes: Int64s
    max_record_bytes: int


class GroupLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Consecutive key ranges that one worker orders and writes in one go.

    Attributes:
        first_key_range, stop_key_range: Half-open range.
        num_bytes: Framed bytes.
    """

    first_key_range: int
    stop_key_range: int
    first_byte: int
    num_bytes: int
    num_examples: int


class SplitLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dataset split, laid out before a byte of it is written.

    Attributes:
        num_bytes: Framed bytes.
        cuts: Where each shard starts in the split, and `num_bytes` at the end: `num_shards + 1` ascending numbers.
        groups: In order, covering the split.
    """

    name: str
    num_examples: int
    num_bytes: int
    cuts: tuple[int, ...]
    groups: tuple[GroupLayout, ...]

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.cuts) - 1


class WriteUnit(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive shards that one worker writes, and the groups that hold their records; both half-open ranges.

    The first and the last group may hold records of neighbours too; those are read and left out.
    """

    first_shard: int
    stop_shard: int
    first_group: int
    stop_group: int


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All dataset splits that hold rows, and notes about the sizes."""

    splits: tuple[SplitLayout, ...]
    notes: tuple[str, ...] = ()


def choose_group_bytes(num_bytes: int, *, shuffle: bool) -> int:
    """Returns the size of the groups of all splits together: no core waits long for the last one.

    Args:
        num_bytes: Framed bytes of all splits.
        shuffle: Whether every run has a piece of every group.
    """
    wanted = max(MIN_GROUP_BYTES, min(num_bytes // 32, MAX_GROUP_BYTES))
    return max(wanted, -(-num_bytes // MAX_GROUPS)) if shuffle else wanted


def form_groups(totals: KeyRangeTotals, group_bytes: int) -> tuple[GroupLayout, ...]:
    """Returns consecutive key ranges merged into groups of at most `group_bytes`; a larger one is a group alone."""
    groups: list[GroupLayout] = []
    start, first_byte = 0, 0
    ends = np.cumsum(totals.num_bytes)
    while start < len(totals.key_ranges):
        stop = max(int(np.searchsorted(ends, first_byte + group_bytes, side="right")), start + 1)
        num_bytes = int(ends[stop - 1]) - first_byte
        groups.append(
            GroupLayout(
                first_key_range=int(totals.key_ranges[start]),
                stop_key_range=int(totals.key_ranges[stop - 1]) + 1,
                first_byte=first_byte,
                num_bytes=num_bytes,
                num_examples=int(totals.num_examples[start:stop].sum()),
            )
        )
        first_byte += num_bytes
        start = stop
    return tuple(groups)


def write_units(split: SplitLayout) -> tuple[WriteUnit, ...]:
    """Returns the units of a split: whole shards, and enough of them that shared groups hardly count."""
    ends = [g.first_byte + g.num_bytes for g in split.groups]
    min_bytes = GROUPS_A_UNIT * max(g.num_bytes for g in split.groups)
    units: list[WriteUnit] = []
    first = 0
    while first < split.num_shards:
        stop = bisect.bisect_left(split.cuts, split.cuts[first] + min_bytes, first + 1, split.num_shards)
        units.append(
            WriteUnit(
                first_shard=first,
                stop_shard=stop,
                first_group=bisect.bisect_right(ends, split.cuts[first]),
                stop_group=bisect.bisect_left(ends, split.cuts[stop]) + 1,
            )
        )
        first = stop
    return tuple(units)


def count_shards(
    *, num_examples: int, num_bytes: int, compressed_fraction: float, shard_bytes: int, max_record_bytes: int
) -> int:
    """Returns how many shards come nearest to `shard_bytes` of compressed size each.

    Args:
        num_bytes: Framed bytes of the split.
        compressed_fraction: Expected size on disk of one framed byte.
        max_record_bytes: The largest framed record; a shard holds at least that much, so that none is empty.
    """
    nearest = max(1, round(num_bytes * compressed_fraction / shard_bytes))
    return min(nearest, max(1, num_bytes // max_record_bytes), num_examples, MAX_SHARDS)


def even_cuts(num_bytes: int, num_shards: int) -> tuple[int, ...]:
    """Returns `num_shards + 1` cuts at equal distances, rounded up to whole bytes."""
    return tuple(-(-num_bytes * i // num_shards) for i in range(num_shards + 1))


def needs_exact_cuts(num_bytes: int, num_shards: int, max_record_bytes: int) -> bool:
    """Whether even cuts could leave a shard without a record, because a record is longer than a shard."""
    return num_bytes // num_shards < max_record_bytes


def exact_cuts(starts: Int64s, num_bytes: int, num_shards: int) -> tuple[int, ...]:
    """Returns cuts on starts of records, as near to even as gives every shard a record.

    Args:
        starts: Where each record starts in the split, ascending from 0.
        num_bytes: Framed bytes of the split.
        num_shards: At most the number of records.
    """
    num_examples = len(starts)
    firsts = np.searchsorted(starts, np.array(even_cuts(num_bytes, num_shards)[:-1], dtype=np.int64), side="left")
    ranks = np.arange(num_shards)
    firsts = np.maximum.accumulate(firsts - ranks) + ranks
    firsts = np.minimum(firsts, num_examples - num_shards + ranks)
    return (*(int(starts[i]) for i in firsts), num_bytes)


def check_num_shards(split: str, num_shards: int, num_examples: int) -> None:
    """Checks that every shard can have a record. Raises UsageError if there are more shards than examples."""
    if num_shards > num_examples:
        raise UsageError(
            f"split {split!r} cannot fill {num_shards} shards",
            why=f"it has {num_examples} examples",
            next_step=f"Use --num-shards {num_examples} or less",
        )


def describe_shard_size(
    split: str, *, num_bytes: int, num_shards: int, compressed_fraction: float, shard_bytes: int
) -> str | None:
    """Returns a note where the wanted shard size is missed by more than 5 %, None where it is met."""
    expected = num_bytes * compressed_fraction / num_shards
    if abs(expected / shard_bytes - 1) <= 0.05:
        return None
    total = format_size(num_bytes * compressed_fraction)
    reason = (
        "is too little data for" if num_shards == 1 and expected < shard_bytes else "does not divide into shards of"
    )
    shards = "1 shard" if num_shards == 1 else f"{num_shards} even shards"
    return (
        f"split {split!r}: {total} {reason} {format_size(shard_bytes)}; it becomes {shards} of {format_size(expected)}"
    )


def shard_of_starts(starts: Int64s, cuts: Sequence[int]) -> Int64s:
    """Returns the index of the shard that each record belongs to."""
    return np.searchsorted(np.array(cuts[:-1], dtype=np.int64), starts, side="right").astype(np.int64) - 1


def block_bounds(sizes: Int64s, block_bytes: int) -> list[tuple[int, int]]:
    """Returns half-open ranges of records, one a block, each of about `block_bytes` framed bytes.

    A block takes the records that start in one stretch of `block_bytes`; no block is empty.
    """
    starts = np.cumsum(sizes) - sizes
    firsts = np.flatnonzero(np.diff(starts // block_bytes, prepend=-1))
    return list(zip(firsts.tolist(), [*firsts[1:].tolist(), len(sizes)], strict=True))


def shard_file_name(split: str, shard_index: int, num_shards: int, suffix: str) -> str:
    """Returns a name such as `train-00003-of-00016.tfrecord.gz`."""
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}{suffix}"


def deal_workers(num_workers: int) -> tuple[int, int]:
    """Returns how many processes of how many threads each do `num_workers` pieces of work at the same time.

    As few processes as can be: each imports everything again.
    """
    num_threads = next(n for n in range(min(MAX_THREADS, num_workers), 0, -1) if num_workers % n == 0)
    return num_workers // num_threads, num_threads
