"""Every value of a column divided over the dataset splits by their fractions, exactly, over the whole input.

    first pass  every input split: the class of each row and a key that decides nothing else, in a few small files
    mark        the classes of all input splits are counted and their shares rounded; of each class, in the order of the
                keys, the first rows go to the first split, the next to the next
    extract     reads the inputs again and finds the split of every row in the order in which it comes

Classes with the same leading bits make a partition. As many partitions are read at a time as fit into memory; the keys
of one that does not fit are cut into ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.splits.apportion import Apportionment, apportion, deal, split_ends
from shardkit.conversion.splits.duplicates import (
    PARTITION_BITS,
    Digests,
    find_left_out,
    first_pass_path,
    other_rows,
    partition_ranges,
    partitions_of,
    read_words,
    row_digests,
)
from shardkit.features import Feature
from shardkit.hashing import UInt64s, assignment_draws, stable_order
from shardkit.sources.base import RowBatch
from shardkit.storage import files as storage

Int64s = npt.NDArray[np.int64]

_MARKED_ROWS = 1_000_000


class Classes(NamedTuple):
    """The classes of some rows.

    Attributes:
        digests: Of the classes; in a batch the same may occur twice.
        codes: The position of each row's class among them.
    """

    digests: Digests
    codes: Int64s


def classes_of(batch: pa.RecordBatch, feature: Feature, seed: int) -> Classes:
    """Returns the classes of the rows of a batch: equal values are equal, so are all nulls, all NaNs, and 0 and -0.

    Args:
        batch: Any columns.
        feature: Of the column that counts.
        seed: Decides the order of the digests.
    """
    column = batch.column(feature.name)
    if feature.is_scalar:
        # Arrow makes no dictionaries of half floats.
        is_half = pa.types.is_float16(column.type)
        encoded = (column.cast(pa.float32()) if is_half else column).dictionary_encode()
        codes = np.asarray(encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False), np.int64)
        null = pa.nulls(1 if encoded.indices.null_count else 0, column.type)
        column = pa.concat_arrays([encoded.dictionary.cast(column.type), null])
    else:
        codes = np.arange(len(column))
    values = pa.RecordBatch.from_arrays([column], names=[feature.name])
    digests = row_digests(values, (feature,))
    return Classes(np.stack([assignment_draws(digests[:, 0], seed), digests[:, 1]], axis=1), codes)


def merge_classes(parts: Sequence[Digests]) -> tuple[Digests, list[Int64s]]:
    """Returns the classes of all parts, each once and in order, and for each part the positions of its classes."""
    joined = np.concatenate([np.empty((0, 2), np.uint64), *parts])
    order = np.lexsort((joined[:, 1], joined[:, 0]))
    ordered = joined[order]
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    positions = np.empty(len(ordered), np.int64)
    positions[order] = np.cumsum(is_first) - 1
    ends = np.cumsum([len(p) for p in parts]).tolist()
    return ordered[is_first], [positions[end - len(p) : end] for p, end in zip(parts, ends, strict=True)]


class StrataWriter:
    """Takes the rows of one input split in order and stores their classes for `mark_strata`.

    Args:
        plan: A plan that stratifies.
    """

    def __init__(self, plan: Plan, input_split_index: int) -> None:
        self._seed = plan.recipe.seed
        self._feature = next(f for f in plan.row_features if f.name == plan.recipe.stratify)
        self._plan = plan
        self._index = input_split_index
        self._classes: list[Classes] = []
        self._keys: list[UInt64s] = [np.empty(0, np.uint64)]

    def add(self, rows: RowBatch) -> None:
        """Takes the rows of one batch."""
        self._classes.append(classes_of(rows.batch, self._feature, self._seed))
        self._keys.append(assignment_draws(rows.identities, self._seed))

    def store(self) -> None:
        """Stores all of them, by partition and key.

        Raises:
            OutOfSpaceError, UsageError, StorageError: If they cannot be stored.
        """
        digests, positions = merge_classes([c.digests for c in self._classes])
        found = [own[c.codes] for own, c in zip(positions, self._classes, strict=True)]
        codes, keys = np.concatenate([np.empty(0, np.int64), *found]), np.concatenate(self._keys)
        partitions = partitions_of(digests)
        order = stable_order(keys)
        # 16 bits are sorted by radix.
        order = order[np.argsort(partitions.astype(np.uint16)[codes[order]], kind="stable")]
        num_classes = np.bincount(partitions, minlength=1 << PARTITION_BITS)
        num_rows = np.bincount(partitions[codes], minlength=1 << PARTITION_BITS)
        write_whole(self._path("classes"), digests.astype("<u8").tobytes())
        write_whole(self._path("keys"), keys[order].astype("<u8").tobytes())
        write_whole(self._path("members"), np.stack([codes[order], order], axis=1).astype("<u8").tobytes())
        write_whole(self._path("ends"), np.cumsum([num_classes, num_rows], axis=1).astype("<u8").tobytes())

    def _path(self, what: str) -> Path:
        return first_pass_path(self._plan, self._index, what)


def mark_strata(plan: Plan, num_rows: Sequence[int], counting: Sequence[int]) -> None:
    """Stores for each input split where its rows go, but for those that are marked as left out.

    Args:
        plan: A plan that stratifies.
        num_rows: Rows of each input split.
        counting: The input splits whose rows count; those of others go anywhere.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If that cannot be stored.
    """
    strata = _Strata(plan, counting)
    num_classes_by_size: Counter[int] = Counter()
    for window in strata.windows():
        sizes, counts = np.unique(strata.count_rows(window), return_counts=True)
        num_classes_by_size.update(dict(zip(sizes.tolist(), counts.tolist(), strict=True)))
    del num_classes_by_size[0]
    apportionment = apportion(num_classes_by_size, [s.fraction for s in plan.recipe.splits])
    dtype = position_type(plan)
    for index, total in enumerate(num_rows):
        # Written whole, so that a full disk is an error here and nothing worse later.
        num_left = total - len(find_left_out(plan, index))
        write_whole(first_pass_path(plan, index, "strata"), bytes(num_left * dtype.itemsize))
    seen: Counter[int] = Counter()
    for window in strata.windows():
        ends = _ends_of(apportionment, strata.count_rows(window), seen)
        num_before = np.zeros(len(ends), np.int64)
        for members in strata.members(window, with_keys=True):
            positions = _positions_in(members, ends, num_before)
            for index, rows, own in members.by_split(positions):
                _store_positions(plan, index, rows, own.astype(dtype))


class StratumPositions:
    """The split of every row of one input split, in the order in which the rows come.

    Args:
        plan: A plan that stratifies.
        input_split_index: Which input split; it was marked.
    """

    def __init__(self, plan: Plan, input_split_index: int) -> None:
        self._plan = plan
        raw = first_pass_path(plan, input_split_index, "strata").read_bytes()
        self._positions = np.frombuffer(raw, position_type(plan))
        self._first = 0

    def take(self, num_rows: int) -> Int64s:
        """Returns the positions of the splits of the next rows.

        Raises:
            StorageError: If the first pass found another number of rows.
        """
        self._first += num_rows
        if self._first > len(self._positions):
            raise other_rows(self._plan)
        return self._positions[self._first - num_rows : self._first].astype(np.int64)


class _Window(NamedTuple):
    """Buckets that are worked at together: half-open, and per input split its classes' positions among theirs."""

    first: int
    stop: int
    num_classes: int
    codes: dict[int, Int64s]


class _Members(NamedTuple):
    """Rows of some input splits, one split after the other, each by key."""

    classes: Int64s
    keys: UInt64s
    rows: Int64s
    split_ends: tuple[tuple[int, int], ...]

    def by_split(self, values: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yields input split, rows, and the values of those rows."""
        first = 0
        for index, stop in self.split_ends:
            yield index, self.rows[first:stop], values[first:stop]
            first = stop


class _Strata:
    """What the first pass stored of the input splits that count."""

    def __init__(self, plan: Plan, counting: Sequence[int]) -> None:
        self._plan = plan
        num_partitions = 1 << PARTITION_BITS
        # By input split: where the classes and the rows of each partition start, and the end of all.
        self._starts = {
            i: np.pad(
                read_words(first_pass_path(plan, i, "ends"), 0, 2 * num_partitions).reshape(2, -1), ((0, 0), (1, 0))
            )
            for i in counting
        }

    def windows(self) -> Iterator[_Window]:
        """Yields all partitions, as many at a time as have few enough rows."""
        totals = sum((own[1, 1:].astype(np.int64) for own in self._starts.values()), np.zeros(1, np.int64))
        for first, stop in partition_ranges(totals, _MARKED_ROWS):
            found = [self._read(i, "classes", 0, first, stop).reshape(-1, 2) for i in self._starts]
            digests, codes = merge_classes(found)
            yield _Window(first, stop, len(digests), dict(zip(self._starts, codes, strict=True)))

    def count_rows(self, window: _Window) -> Int64s:
        """Returns how many rows each class of a window has."""
        counts = np.zeros(window.num_classes, np.int64)
        for members in self.members(window, with_keys=False):
            counts += np.bincount(members.classes, minlength=window.num_classes)
        return counts

    def members(self, window: _Window, *, with_keys: bool) -> Iterator[_Members]:
        """Yields the rows of a window that are no duplicates, by ascending keys, as many at a time as fit."""
        total = sum(int(own[1, window.stop] - own[1, window.first]) for own in self._starts.values())
        num_parts = -(-total // _MARKED_ROWS)
        for number in range(num_parts):
            bounds = tuple(2**64 * n // num_parts for n in (number, number + 1))
            parts = [self._part(i, window, bounds, with_keys) for i in self._starts]
            classes, keys, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
            ends = np.cumsum([len(part[0]) for part in parts]).tolist()
            yield _Members(classes, keys, rows, tuple(zip(self._starts, ends, strict=True)))

    def _part(
        self, index: int, window: _Window, bounds: tuple[int, ...], with_keys: bool
    ) -> tuple[Int64s, UInt64s, Int64s]:
        start, stop = (int(self._starts[index][1, b]) for b in (window.first, window.stop))
        if bounds != (0, 2**64) and start < stop:
            # More than one part is of one partition, in which keys ascend.
            keys = np.memmap(first_pass_path(self._plan, index, "keys"), "<u8", "r")[start:stop]
            low, high = (int(np.searchsorted(keys, np.uint64(b))) if b < 2**64 else len(keys) for b in bounds)
            start, stop = start + low, start + high
        members = read_words(first_pass_path(self._plan, index, "members"), 2 * start, 2 * stop).reshape(-1, 2)
        codes, rows = members[:, 0].astype(np.int64), members[:, 1].astype(np.int64)
        keys = (
            read_words(first_pass_path(self._plan, index, "keys"), start, stop) if with_keys else np.empty(0, np.uint64)
        )
        left_out = find_left_out(self._plan, index)
        places = np.searchsorted(left_out, rows)
        if len(left_out):
            stays = left_out[np.minimum(places, len(left_out) - 1)] != rows
            codes, rows, places = codes[stays], rows[stays], places[stays]
            keys = keys[stays] if with_keys else keys
        classes = window.codes[index][codes - int(self._starts[index][0, window.first])]
        return classes, keys, rows - places

    def _read(self, index: int, what: str, kind: int, first: int, stop: int) -> UInt64s:
        start, end = (2 * int(self._starts[index][kind, b]) for b in (first, stop))
        return read_words(first_pass_path(self._plan, index, what), start, end)


def _ends_of(apportionment: Apportionment, sizes: Int64s, seen: Counter[int]) -> Int64s:
    """Returns `split_ends` of the next classes, and counts them by size; those without rows get nothing."""
    ends = np.zeros((len(sizes), apportionment.least.shape[1]), np.int64)
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    ordered = sizes[order]
    found, firsts, counts = np.unique(ordered, return_index=True, return_counts=True)
    before = np.array([seen[size] for size in found.tolist()], np.int64)
    ranks = np.arange(len(ordered)) - np.repeat(firsts - before, counts)
    seen.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
    ends[order] = split_ends(apportionment, ordered, ranks)
    return ends


def _positions_in(members: _Members, ends: Int64s, num_before: Int64s) -> Int64s:
    """Returns the split of each row, and adds the rows to `num_before` by class; keys are above those of before."""
    order = stable_order(members.keys)
    order = order[np.argsort(members.classes[order], kind="stable")]
    counts = np.bincount(members.classes, minlength=len(ends))
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts - num_before, counts)
    positions = np.empty(len(order), np.int64)
    positions[order] = deal(ends, members.classes[order], ranks)
    num_before += counts
    return positions


def _store_positions(plan: Plan, index: int, rows: Int64s, positions: npt.NDArray[np.unsignedinteger]) -> None:
    if len(rows):
        path = first_pass_path(plan, index, "strata")
        with storage.translate_os_errors(path):
            stored = np.memmap(path, positions.dtype, "r+")
            stored[rows] = positions
            stored.flush()


def position_type(plan: Plan) -> np.dtype[np.unsignedinteger]:
    """Returns the type of the positions of dataset splits in a file."""
    return np.min_scalar_type(len(plan.recipe.splits) - 1).newbyteorder("<")
