"""Exact removal of duplicates over the whole input, before anything is written.

    first pass  every input split: 128 bits a row (XXH3 of its encoded columns), sorted, in one small file
    mark        a range of digests at a time, over all input splits: of equal rows the first of the inputs survives
    extract     reads the inputs again and leaves out what was marked

Reading twice keeps everything else as it is: statistics, layout and shards only ever see rows that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardkit.conversion.plan import Plan, write_whole
from shardkit.encoding.encoder import encode_batch
from shardkit.errors import StorageError
from shardkit.features import Feature, Features
from shardkit.hashing import UInt64s

Digests = npt.NDArray[np.uint64]  # Two columns: upper and lower half.
PARTITION_BITS = 12
_COMPARED_ROWS = 11_000_000


def row_digests(batch: pa.RecordBatch, features: Features, names: Sequence[str] = ()) -> Digests:
    """Returns 128 bits for each row of a batch, equal for rows that are equal in the named columns.

    Nulls equal nulls, NaNs equal NaNs, and 0.0 equals -0.0.

    Args:
        batch: Columns in the order of the features.
        names: Columns that count; none stands for all.
    """
    chosen = tuple(f for f in features if not names or f.name in names)
    columns = [with_equal_bits(batch.column(f.name), f) for f in chosen]
    encoded = encode_batch(pa.RecordBatch.from_arrays(columns, names=[f.name for f in chosen]), chosen)
    view, ends = memoryview(encoded.data), np.cumsum(encoded.sizes).tolist()
    digest = xxhash.xxh3_128_digest
    # The frame of a record is a function of its content, so it may be digested too.
    joined = b"".join([digest(view[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)])
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def store_digests(plan: Plan, input_split_index: int, digests: Digests) -> None:
    """Stores the digests of the rows of one input split, sorted, with the number of each one's row.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If they cannot be stored.
    """
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    digests = digests[order]
    ends = np.cumsum(np.bincount(partitions_of(digests), minlength=1 << PARTITION_BITS))
    write_whole(first_pass_path(plan, input_split_index, "digests"), digests.astype("<u8").tobytes())
    write_whole(first_pass_path(plan, input_split_index, "rows"), order.astype("<u8").tobytes())
    write_whole(first_pass_path(plan, input_split_index, "digest-ends"), ends.astype("<u8").tobytes())


def mark_duplicates(plan: Plan, counting: Sequence[int]) -> None:
    """Compares the digests of all input splits and stores, for each, which rows are duplicates of earlier ones.

    Args:
        plan: A plan that removes duplicates.
        counting: The input splits whose rows count; those of others are no duplicates, and nothing is one of them.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If that cannot be stored.
    """
    paths = [first_pass_path(plan, index, "digest-ends") for index in counting]
    ends = np.array([read_words(p, 0, 1 << PARTITION_BITS) for p in paths], np.int64).reshape(len(counting), -1)
    marked: dict[int, list[npt.NDArray[np.uint64]]] = {s.index: [] for s in plan.input_splits}
    for first, stop in partition_ranges(ends.sum(axis=0), _COMPARED_ROWS):
        for index, rows in _duplicates_of(plan, counting, ends, first, stop):
            marked[index].append(rows)
    for index, found in marked.items():
        rows = np.sort(np.concatenate([np.empty(0, np.uint64), *found]))
        write_whole(first_pass_path(plan, index, "duplicates"), rows.astype("<u8").tobytes())


def find_duplicates(plan: Plan, input_split_index: int) -> npt.NDArray[np.int64]:
    """Returns the ascending 0-based numbers of rows of an input split that are duplicates."""
    return np.empty(0, np.int64) if plan.recipe.dedup is None else _marked(plan, input_split_index, "duplicates")


def find_unsampled(plan: Plan, input_split_index: int) -> npt.NDArray[np.int64]:
    """Returns the ascending 0-based numbers of rows of an input split that a sample leaves out."""
    return np.empty(0, np.int64) if plan.recipe.sample is None else _marked(plan, input_split_index, "unsampled")


def find_left_out(plan: Plan, input_split_index: int) -> npt.NDArray[np.int64]:
    """Returns the ascending numbers of rows of an input split that are duplicates or not in the sample."""
    return np.union1d(find_duplicates(plan, input_split_index), find_unsampled(plan, input_split_index))


def partition_ranges(ends: npt.NDArray[np.int64], max_rows: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of whole partitions, half-open: of at most so many rows, or of one partition that has more.

    Args:
        ends: How many rows are in each partition or before.
        max_rows: That are worked at together.
    """
    first, before = 0, 0
    for stop in range(1, len(ends) + 1):
        if stop == len(ends) or int(ends[stop]) - before > max_rows:
            yield first, stop
            first, before = stop, int(ends[stop - 1])


def partitions_of(digests: Digests) -> npt.NDArray[np.int64]:
    """Returns the number of the partition of each digest; ascending digests have ascending partitions."""
    return (digests[:, 0] >> np.uint64(64 - PARTITION_BITS)).astype(np.int64)


def first_pass_path(plan: Plan, input_split_index: int, what: str) -> Path:
    """Returns the place of something that is known of an input split before it is extracted."""
    return plan.work_path("survey", f"{input_split_index}.{what}")


def other_rows(plan: Plan) -> StorageError:
    """Returns the error about rows that are not those of the first pass."""
    return StorageError(
        "the inputs gave other rows when they were read again",
        where=plan.work_dir,
        why="some options read them twice; a step does not repeat itself, or a row was left out only now",
        state="Nothing was committed",
        next_step="Run the same command again",
    )


def read_words(path: Path, start: int, stop: int) -> UInt64s:
    """Returns the 64-bit numbers `[start, stop)` of a file."""
    return np.fromfile(path, "<u8", stop - start, offset=8 * start)


def _duplicates_of(
    plan: Plan, counting: Sequence[int], ends: npt.NDArray[np.int64], first: int, stop: int
) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
    digests: list[Digests] = [np.empty((0, 2), np.uint64)]
    rows: list[npt.NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    splits: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    for index, own_ends in zip(counting, ends, strict=True):
        start, end = (int(own_ends[i - 1]) if i else 0 for i in (first, stop))
        digests.append(read_words(first_pass_path(plan, index, "digests"), start * 2, end * 2).reshape(-1, 2))
        rows.append(read_words(first_pass_path(plan, index, "rows"), start, end))
        splits.append(np.full(end - start, index, np.int64))
    all_digests, all_rows, all_splits = np.concatenate(digests), np.concatenate(rows), np.concatenate(splits)
    order = np.lexsort((all_rows, all_splits, all_digests[:, 1], all_digests[:, 0]))
    ordered = all_digests[order]
    is_repeated = np.zeros(len(order), dtype=bool)
    is_repeated[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    repeated = order[is_repeated]
    for index in np.unique(all_splits[repeated]).tolist():
        yield index, all_rows[repeated[all_splits[repeated] == index]]


def _marked(plan: Plan, input_split_index: int, what: str) -> npt.NDArray[np.int64]:
    return np.frombuffer(first_pass_path(plan, input_split_index, what).read_bytes(), "<u8").astype(np.int64)


def with_equal_bits(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns a column in which 0.0 and -0.0, and all NaNs, are the same; the column itself where they are.

    Args:
        column: Of the feature's Arrow type.
    """
    if not pa.types.is_floating(feature.value_type):
        return column
    if feature.is_scalar:
        return _one_zero_one_nan(column)
    values = column.values
    equal = _one_zero_one_nan(values)
    if equal is values:
        return column
    buffers = column.buffers()[: 2 if pa.types.is_list(column.type) else 1]
    return pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset, children=[equal])


def _one_zero_one_nan(values: pa.Array) -> pa.Array:
    # Nulls come as NaN.
    numbers = values.to_numpy(zero_copy_only=False)
    is_nan = np.isnan(numbers)
    is_negative_zero = (numbers == 0) & np.signbit(numbers)
    if not (is_nan.any() or is_negative_zero.any()):
        return values
    numbers = np.where(is_nan, np.array(np.nan, numbers.dtype), numbers)
    numbers[is_negative_zero] = 0
    is_null = np.asarray(values.is_null()) if values.null_count else None
    return pa.array(numbers, values.type, mask=is_null, from_pandas=False)
