"""Small files, several of which are read in one go: the fixed cost of a file is paid once for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RejectedRow, RowBatch, choose_split_bytes
from shardkit.units import KiB

# So many keep all cores busy.
_ENOUGH_GROUPS = 16
_MIN_BYTES = 256 * KiB
SMALL_SHARE = 4
_MIN_FILES, _MAX_FILES = 64, 4096
_USUAL_EXPANSION = 4


def group_small_files(splits: Sequence[InputSplit], files: Sequence[RawFile]) -> tuple[InputSplit, ...]:
    """Returns input splits, with neighbours that are a small file each put together.

    The identity of a row does not depend on that. What is in one archive is not put together with what does not.
    """
    num_splits = Counter(s.file_start for s in splits)
    wanted, max_files = small_file_limits(sum(s.num_bytes for s in splits), len(splits))
    groups: list[list[InputSplit]] = []
    num_bytes = wanted
    for split in splits:
        size = split.num_bytes * (1 if files[split.file_start].compression is None else _USUAL_EXPANSION)
        is_small = num_splits[split.file_start] == 1 and _is_whole_file(split) and size * SMALL_SHARE <= wanted
        if is_small and num_bytes < wanted and len(groups[-1]) < max_files and _are_near(groups[-1][-1], split, files):
            groups[-1].append(split)
            num_bytes += size
        else:
            groups.append([split])
            num_bytes = size if is_small else wanted
    return tuple(_together(index, group) for index, group in enumerate(groups))


def small_file_limits(num_bytes: int, num_splits: int) -> tuple[int, int]:
    """Returns how many bytes of small files, and how many of them at most, are worked at in one go."""
    wanted = min(choose_split_bytes(num_bytes), max(num_bytes // _ENOUGH_GROUPS, _MIN_BYTES))
    return wanted, max(_MIN_FILES, min(num_splits // 32, _MAX_FILES))


def _is_whole_file(split: InputSplit) -> bool:
    return split.file_stop - split.file_start == 1 and split.start == 0 and split.row_start == split.row_stop == 0


def _are_near(split: InputSplit, other: InputSplit, files: Sequence[RawFile]) -> bool:
    file, next_file = files[split.file_start], files[other.file_start]
    if file.member is None and next_file.member is None:
        # Empty files between them have no splits.
        return split.file_stop <= other.file_start
    return file.member is not None and next_file.member is not None and file.path == next_file.path


def _together(index: int, group: Sequence[InputSplit]) -> InputSplit:
    if len(group) == 1:
        return msgspec.structs.replace(group[0], index=index)
    return InputSplit(
        index=index,
        file_start=group[0].file_start,
        file_stop=group[-1].file_stop,
        num_bytes=sum(s.num_bytes for s in group),
        parts=tuple(msgspec.structs.replace(s, index=index) for s in group),
    )


def join_batches(batches: Iterator[RowBatch], batch_bytes: int = BATCH_BYTES) -> Iterator[RowBatch]:
    """Yields the rows of many small batches in batches of about `batch_bytes`."""
    held: list[RowBatch] = []
    num_bytes = 0
    for rows in batches:
        if num_bytes and num_bytes + rows.batch.nbytes > batch_bytes:
            yield _join(held)
            held, num_bytes = [], 0
        held.append(rows)
        num_bytes += rows.batch.nbytes
    if held:
        yield _join(held)


def _join(held: list[RowBatch]) -> RowBatch:
    if len(held) == 1:
        return held[0]
    num_rounded: Counter[str] = Counter()
    for rows in held:
        num_rounded.update(rows.num_rounded)
    rejected: tuple[RejectedRow, ...] = tuple(chain.from_iterable(rows.rejected for rows in held))
    return RowBatch(
        pa.concat_batches([rows.batch for rows in held]),
        np.concatenate([rows.identities for rows in held]),
        np.concatenate([_file_indices(rows) for rows in held]),
        dict(num_rounded),
        rejected,
    )


def _file_indices(rows: RowBatch) -> npt.NDArray[np.int64]:
    if isinstance(rows.file_indices, int):
        return np.full(rows.batch.num_rows, rows.file_indices, np.int64)
    return rows.file_indices
