"""Runs: encoded rows of one input split on local disk, sorted by (dataset split, key), with an index at the end.

A run holds about 16 MiB of framed records, so that its making needs bounded memory whatever the size of the input.
Any range of keys is one consecutive piece of the file.

    framed records | keys, 8 bytes each | framed sizes, 4 bytes each | index, msgpack | length of the index, 8 bytes
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.conversion.layout_math import GroupLayout, Int64s, block_bounds
from shardkit.encoding.kernel import BytesLike, gather
from shardkit.errors import StorageError
from shardkit.hashing import UInt64s, stable_order
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.units import KiB, MiB

RUN_BYTES = 16 * MiB
KEY_RANGE_BITS = 12
_WRITE_BYTES = 2 * MiB
_MAX_RUNS_BITS = 24
# The index of two dataset splits with all key ranges.
_USUAL_INDEX_BYTES = 256 * KiB
_REQUESTS = 16

_Result = TypeVar("_Result")


class _RunIndex(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    num_records: int
    num_bytes: int
    splits: bytes  # int64 per key range entry: position of the dataset split
    key_ranges: bytes  # int64
    num_examples: bytes  # int64
    sizes: bytes  # int64: framed bytes
    max_record_bytes: dict[int, int]


class RunEntries(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a run: one entry per dataset split and key range that it holds, in the order of the file.

    Attributes:
        num_examples, sizes: Records and framed bytes of the entry.
        max_record_bytes: The largest framed record, by position of the dataset split.
    """

    num_records: int
    num_bytes: int
    split_positions: Int64s
    key_ranges: Int64s
    num_examples: Int64s
    sizes: Int64s
    max_record_bytes: dict[int, int]


class Segment(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A consecutive piece of one run.

    Attributes:
        group: Position of the group that it is a part of.
        order: Position of the run among all runs: (input split << 24) + run.
        piece: Position among the pieces of the same run and group, where they travel apart.
        first_record, num_records: Records, counted from the start of the run.
        first_byte, num_bytes: Framed bytes, likewise.
        run_records, run_bytes: Totals of the run, to find its keys and sizes.
    """

    group: int
    order: int
    path: str
    first_record: int
    num_records: int
    first_byte: int
    num_bytes: int
    run_records: int
    run_bytes: int
    piece: int = 0


class LoadedSegments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, framed sizes and framed records of segments, in the order of the segments. `data` may be longer."""

    keys: UInt64s
    sizes: Int64s
    data: memoryview


def run_order(input_split_index: int, run_index: int) -> int:
    """Returns the position of a run among all runs."""
    return (input_split_index << _MAX_RUNS_BITS) + run_index


class EncodedPart(NamedTuple):
    """Some encoded rows of a run.

    Attributes:
        data: Framed records, one after the other.
        split_positions: Per record; the dataset split it belongs to.
        keys: Per record; ascending keys are the order within a dataset split.
    """

    data: bytes | memoryview
    sizes: Int64s
    split_positions: Int64s
    keys: UInt64s


def write_run(path: Path, parts: Sequence[EncodedPart], key_range: int | None) -> None:
    """Orders and stores encoded rows as one run, whole or not at all.

    Args:
        key_range: That of all rows, where the order is the source's; None takes the upper bits of the keys.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    sizes = np.concatenate([p.sizes for p in parts])
    starts = np.cumsum(sizes) - sizes
    split_positions, keys = np.concatenate([p.split_positions for p in parts]), np.concatenate([p.keys for p in parts])
    order = _final_order(split_positions, keys)
    starts, sizes, split_positions, keys = starts[order], sizes[order], split_positions[order], keys[order]
    key_ranges = _key_ranges_of(keys) if key_range is None else np.full(len(keys), key_range, dtype=np.int64)
    data: list[BytesLike] = [p.data for p in parts]
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        # Inside, so that the free space is measured before the cut-off file is removed.
        with storage.translate_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb", buffering=0) as file:
                for first, stop in block_bounds(sizes, _WRITE_BYTES):
                    write_all(file, gather(data, starts[first:stop], sizes[first:stop]))
                write_all(file, keys.astype("<u8").tobytes())
                write_all(file, sizes.astype("<u4").tobytes())
                index = msgspec.msgpack.encode(_index_of(split_positions, key_ranges, sizes))
                write_all(file, index + len(index).to_bytes(8, "little"))
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_all(file: io.RawIOBase, data: bytes | memoryview) -> None:
    """Writes all of `data`; unbuffered files take large pieces without another copy, but may take only a part."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def read_run_entries(path: str) -> RunEntries:
    """Returns the index of a run. Raises StorageError if it is in a store that kept failing."""
    index = msgspec.msgpack.decode(_read_index(path), type=_RunIndex)
    return RunEntries(
        num_records=index.num_records,
        num_bytes=index.num_bytes,
        split_positions=np.frombuffer(index.splits, dtype="<i8"),
        key_ranges=np.frombuffer(index.key_ranges, dtype="<i8"),
        num_examples=np.frombuffer(index.num_examples, dtype="<i8"),
        sizes=np.frombuffer(index.sizes, dtype="<i8"),
        max_record_bytes=index.max_record_bytes,
    )


def read_all_entries(paths: Sequence[str]) -> Iterator[RunEntries]:
    """Yields the indexes of runs, in order; those in a store are asked for several at a time.

    Raises:
        StorageError: If the store kept failing.
    """
    if not paths or storage.is_local(paths[0]):
        yield from map(read_run_entries, paths)
        return
    with worker_threads(_REQUESTS, "runs") as pool:
        for first in range(0, len(paths), 4 * _REQUESTS):
            yield from pool.map(read_run_entries, paths[first : first + 4 * _REQUESTS])


def find_segments(
    path: str, order: int, entries: RunEntries, split_position: int, groups: tuple[GroupLayout, ...]
) -> Iterator[Segment]:
    """Yields the parts of a run that groups of a dataset split need."""
    first_records = np.cumsum(entries.num_examples) - entries.num_examples
    first_bytes = np.cumsum(entries.sizes) - entries.sizes
    own = np.flatnonzero(entries.split_positions == split_position)
    key_ranges = entries.key_ranges[own]
    for position, group in enumerate(groups):
        start, stop = np.searchsorted(key_ranges, [group.first_key_range, group.stop_key_range])
        if start == stop:
            continue
        first, last = own[start], own[stop - 1]
        yield Segment(
            group=position,
            order=order,
            path=path,
            first_record=int(first_records[first]),
            num_records=int(entries.num_examples[first : last + 1].sum()),
            first_byte=int(first_bytes[first]),
            num_bytes=int(entries.sizes[first : last + 1].sum()),
            run_records=entries.num_records,
            run_bytes=entries.num_bytes,
        )


@contextlib.contextmanager
def loaded_segments(segments: Sequence[Segment], max_bytes: int | None = None) -> Iterator[LoadedSegments]:
    """Gives the records of segments, or the first records of about `max_bytes` of each, until the end of the block."""
    heads = _map_segments(lambda s: _load_head(s, max_bytes), segments)
    spans = list(itertools.accumulate((int(sizes.sum()) for _, sizes in heads), initial=0))
    buffer = _take_buffer(spans[-1])
    try:
        view = buffer.data
        targets = [view[first:stop] for first, stop in itertools.pairwise(spans)]
        _map_segments(lambda s, target: _read_pieces(s.path, ((s.first_byte, target),)), segments, targets)
        yield LoadedSegments(
            keys=np.concatenate([keys for keys, _ in heads]),
            sizes=np.concatenate([sizes for _, sizes in heads]),
            data=view,
        )
    finally:
        _spare_buffers.append(buffer)


# Groups are about equally large: their buffers go from one to the next, because fresh pages cost more than reading.
_spare_buffers: list[npt.NDArray[np.uint8]] = []


def _take_buffer(num_bytes: int) -> npt.NDArray[np.uint8]:
    try:
        buffer = _spare_buffers.pop()
    except IndexError:
        return np.empty(num_bytes, np.uint8)
    return buffer if len(buffer) >= num_bytes else np.empty(num_bytes, np.uint8)


def _load_head(segment: Segment, max_bytes: int | None) -> tuple[UInt64s, Int64s]:
    sizes_start = segment.run_bytes + 8 * segment.run_records
    keys, sizes = bytearray(8 * segment.num_records), bytearray(4 * segment.num_records)
    _read_pieces(
        segment.path,
        (
            (segment.run_bytes + 8 * segment.first_record, memoryview(keys)),
            (sizes_start + 4 * segment.first_record, memoryview(sizes)),
        ),
    )
    framed_sizes = np.frombuffer(sizes, dtype="<u4").astype(np.int64)
    if max_bytes is not None:
        framed_sizes = framed_sizes[: int(np.searchsorted(np.cumsum(framed_sizes), max_bytes)) + 1]
    return np.frombuffer(keys, dtype="<u8")[: len(framed_sizes)], framed_sizes


def _map_segments(function: Callable[..., _Result], segments: Sequence[Segment], *more: Sequence[Any]) -> list[_Result]:
    if not segments or storage.is_local(segments[0].path):
        return list(map(function, segments, *more))
    with worker_threads(_REQUESTS, "runs") as pool:
        return list(pool.map(function, segments, *more))


def _read_index(path: str) -> bytes:
    if storage.is_local(path):
        with Path(path).open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(end - 8)
            num_index_bytes = int.from_bytes(file.read(8), "little")
            file.seek(end - 8 - num_index_bytes)
            return file.read(num_index_bytes)
    num_bytes = storage.stat_file(path).num_bytes
    tail = storage.read_range(path, max(0, num_bytes - _USUAL_INDEX_BYTES), min(num_bytes, _USUAL_INDEX_BYTES))
    num_index_bytes = int.from_bytes(tail[-8:], "little")
    if num_index_bytes + 8 > len(tail):
        return storage.read_range(path, num_bytes - 8 - num_index_bytes, num_index_bytes)
    return tail[-8 - num_index_bytes : -8]


def _read_pieces(path: str, pieces: Sequence[tuple[int, memoryview]]) -> None:
    if not storage.is_local(path):
        for position, target in pieces:
            target[:] = storage.read_range(path, position, len(target))
        return
    # There are runs times groups of them, many small ones: a file object would take longer than reading does.
    handle = os.open(path, os.O_RDONLY)
    try:
        for position, target in pieces:
            os.lseek(handle, position, os.SEEK_SET)
            while target:
                count = os.readv(handle, [target])
                if not count:
                    raise StorageError("the spool is cut off", where=path, next_step="Run the same command again")
                target = target[count:]
    finally:
        os.close(handle)


def _key_ranges_of(keys: UInt64s) -> Int64s:
    return (keys >> np.uint64(64 - KEY_RANGE_BITS)).astype(np.int64)


def _final_order(split_positions: Int64s, keys: UInt64s) -> Int64s:
    """Returns the order by (dataset split, key); equal keys stay as they were."""
    order = stable_order(keys)
    if split_positions.any():
        # NumPy's stable sort of 16-bit numbers is a radix sort.
        order = order[np.argsort(split_positions[order].astype(np.int16), kind="stable")]
    return order


def _index_of(split_positions: Int64s, key_ranges: Int64s, sizes: Int64s) -> _RunIndex:
    changes = (np.diff(split_positions, prepend=-1) != 0) | (np.diff(key_ranges, prepend=-1) != 0)
    firsts = np.flatnonzero(changes)
    counts = np.diff(firsts, append=len(sizes))
    largest = {int(p): int(sizes[split_positions == p].max()) for p in np.unique(split_positions)}
    return _RunIndex(
        num_records=len(sizes),
        num_bytes=int(sizes.sum()),
        splits=split_positions[firsts].astype("<i8").tobytes(),
        key_ranges=key_ranges[firsts].astype("<i8").tobytes(),
        num_examples=counts.astype("<i8").tobytes(),
        sizes=np.add.reduceat(sizes, firsts).astype("<i8").tobytes(),
        max_record_bytes=largest,
    )
