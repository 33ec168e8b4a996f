"""Exact removal of duplicates over the whole input, before anything is written.

    digest      every input split: 128 bits a row (XXH3 of its encoded columns), sorted, in one small file
    compare     a range of digests at a time, over all input splits: of equal rows the first of the inputs survives
    extract     reads the inputs again and leaves out what was marked

Reading twice keeps everything else as it is: statistics, layout and shards only ever see rows that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.rows import input_versions, read_rows
from shardkit.encoder import encode_batch
from shardkit.errors import DamagedFileError, StorageError
from shardkit.features import Features
from shardkit.units import MiB

Digests = npt.NDArray[np.uint64]  # Two columns: upper and lower half.
_BUCKET_BITS = 12
_COMPARED_BYTES = 256 * MiB
_DIGEST_BYTES = 16
_ROW_BYTES = _DIGEST_BYTES + 8


class Digested(msgspec.Struct, frozen=True, kw_only=True):
    """The digests of one input split, which lie beside it: sorted, with the 0-based number of each one's row.

    Attributes:
        input_split_index: Which input split.
        versions: Versions of the files that were read.
        is_damaged: Whether the file cannot be read at all; its rows then count for nothing.
        bucket_ends: Per range of digests, in ascending order: how many rows lie in it or before.
    """

    input_split_index: int
    versions: tuple[str, ...]
    is_damaged: bool
    bucket_ends: bytes


def row_digests(batch: pa.RecordBatch, features: Features, names: Sequence[str] = ()) -> Digests:
    """Returns 128 bits for each row of a batch, equal for rows that are equal in the named columns.

    Args:
        batch: Columns in the order of the features.
        features: Of the batch.
        names: Columns that count; none stands for all.
    """
    chosen = tuple(f for f in features if not names or f.name in names)
    encoded = encode_batch(batch.select([f.name for f in chosen]), chosen)
    view, ends = memoryview(encoded.data), np.cumsum(encoded.sizes).tolist()
    digest = xxhash.xxh3_128_digest
    # The frame of a record is a function of its content, so it may be digested too.
    joined = b"".join([digest(view[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)])
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def digest_split(plan: Plan, input_split_index: int) -> Digested:
    """Digests the rows of one input split; does nothing if that was done before.

    Raises:
        BadInputError: At the first row that does not fit, unless bad rows are tolerated.
        OutOfSpaceError, UsageError, StorageError: If the digests cannot be stored.
    """
    found = find_digested(plan, input_split_index)
    if found is not None:
        return found
    input_split = plan.input_splits[input_split_index]
    parts: list[Digests] = [np.empty((0, 2), dtype=np.uint64)]
    is_damaged = False
    try:
        read = (rows.batch for rows, _ in read_rows(plan, input_split) if rows.batch.num_rows)
        parts.extend(row_digests(batch, plan.features, plan.recipe.dedup or ()) for batch in read)
    except DamagedFileError:
        if not plan.recipe.source.tolerates_bad_rows or input_split.file_stop - input_split.file_start != 1:
            raise
        parts, is_damaged = parts[:1], True
    digests = np.concatenate(parts)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    digests = digests[order]
    counts = np.bincount(_buckets_of(digests), minlength=1 << _BUCKET_BITS)
    digested = Digested(
        input_split_index=input_split_index,
        versions=input_versions(plan, input_split),
        is_damaged=is_damaged,
        bucket_ends=np.cumsum(counts).astype("<i8").tobytes(),
    )
    write_whole(_path(plan, input_split_index, "digests"), digests.astype("<u8").tobytes())
    write_whole(_path(plan, input_split_index, "rows"), order.astype("<u8").tobytes())
    write_whole(_path(plan, input_split_index, "msgpack"), msgspec.msgpack.encode(digested))
    return digested


def find_digested(plan: Plan, input_split_index: int) -> Digested | None:
    """Returns what an earlier run left, None if it left nothing that still holds."""
    path = _path(plan, input_split_index, "msgpack")
    try:
        digested = msgspec.msgpack.decode(path.read_bytes(), type=Digested)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    is_current = digested.versions == input_versions(plan, plan.input_splits[input_split_index])
    return digested if is_current else None


def mark_duplicates(plan: Plan) -> None:
    """Compares the digests of all input splits and stores, for each, which rows are duplicates of earlier ones.

    Raises:
        StorageError: If the digests of an input split have gone.
    """
    all_ends = []
    for input_split in plan.input_splits:
        digested = find_digested(plan, input_split.index)
        if digested is None:
            raise StorageError(
                "a part of the spool has gone",
                where=plan.work_dir,
                state="Nothing was committed",
                next_step="Run the same command again",
            )
        all_ends.append(np.frombuffer(digested.bucket_ends, "<i8"))
    damaged = _damaged_files(plan)
    ends = np.array(all_ends).reshape(len(plan.input_splits), -1)
    marked: dict[int, list[npt.NDArray[np.uint64]]] = {s.index: [] for s in plan.input_splits}
    for first, stop in _bucket_ranges(ends.sum(axis=0)):
        for index, rows in _duplicates_of(plan, ends, first, stop, damaged):
            marked[index].append(rows)
    for index, found in marked.items():
        rows = np.sort(np.concatenate([np.empty(0, np.uint64), *found]))
        write_whole(_path(plan, index, "marks"), rows.astype("<u8").tobytes())


def find_duplicates(plan: Plan, input_split_index: int) -> npt.NDArray[np.int64]:
    """Returns the ascending 0-based numbers of rows of an input split that are duplicates."""
    if plan.recipe.dedup is None:
        return np.empty(0, np.int64)
    return np.frombuffer(_path(plan, input_split_index, "marks").read_bytes(), "<u8").astype(np.int64)


def duplicates_digest(plan: Plan, input_split_index: int) -> str:
    """Returns what changes when other rows of an input split are duplicates."""
    if plan.recipe.dedup is None:
        return ""
    try:
        return xxhash.xxh3_128_hexdigest(_path(plan, input_split_index, "marks").read_bytes())
    except FileNotFoundError:
        return "missing"


def _damaged_files(plan: Plan) -> set[int]:
    found = set()
    for input_split in plan.input_splits:
        digested = find_digested(plan, input_split.index)
        if digested is not None and digested.is_damaged:
            found.add(input_split.file_start)
    return found


def _duplicates_of(
    plan: Plan, ends: npt.NDArray[np.int64], first: int, stop: int, damaged: set[int]
) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
    digests: list[Digests] = []
    rows: list[npt.NDArray[np.uint64]] = []
    splits: list[npt.NDArray[np.int64]] = []
    for input_split in plan.input_splits:
        if input_split.file_start in damaged and input_split.file_stop - input_split.file_start == 1:
            continue
        start, end = (int(ends[input_split.index, i - 1]) if i else 0 for i in (first, stop))
        found = _read(_path(plan, input_split.index, "digests"), start * 2, end * 2)
        digests.append(found.reshape(-1, 2))
        rows.append(_read(_path(plan, input_split.index, "rows"), start, end))
        splits.append(np.full(end - start, input_split.index, np.int64))
    if not digests:
        return
    all_digests, all_rows, all_splits = np.concatenate(digests), np.concatenate(rows), np.concatenate(splits)
    order = np.lexsort((all_rows, all_splits, all_digests[:, 1], all_digests[:, 0]))
    ordered = all_digests[order]
    is_repeated = np.zeros(len(order), dtype=bool)
    is_repeated[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    repeated = order[is_repeated]
    for index in np.unique(all_splits[repeated]).tolist():
        yield index, all_rows[repeated[all_splits[repeated] == index]]


def _bucket_ranges(ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    # Ranges of whole buckets whose digests fit into memory together.
    first, before = 0, 0
    for stop in range(1, len(ends) + 1):
        if stop == len(ends) or (int(ends[stop]) - before) * _ROW_BYTES > _COMPARED_BYTES:
            yield first, stop
            first, before = stop, int(ends[stop - 1])


def _buckets_of(digests: Digests) -> npt.NDArray[np.int64]:
    return (digests[:, 0] >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _path(plan: Plan, input_split_index: int, what: str) -> Path:
    return plan.work_path("dedup", f"{input_split_index}.{what}")


def _read(path: Path, start: int, stop: int) -> npt.NDArray[np.uint64]:
    return np.fromfile(path, "<u8", stop - start, offset=8 * start)
