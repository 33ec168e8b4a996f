"""The input splits that hold the first rows of the inputs, where no more are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import msgspec

from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources import source_for
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions
from shardkit.sources.split_names import split_of


class FirstRows(NamedTuple):
    """Which parts of the inputs hold the first rows.

    Attributes:
        files: Those that are read.
        input_splits: Of these files; the last one of a file may say how many of its rows count.
    """

    files: tuple[RawFile, ...]
    input_splits: tuple[InputSplit, ...]


def find_first_rows(
    splits: Sequence[InputSplit],
    files: tuple[RawFile, ...],
    features: Features,
    options: SourceOptions,
    limit: int,
    *,
    is_by_file: bool,
) -> FirstRows:
    """Returns the input splits with the first rows that fit. These rows are read to be counted.

    Args:
        splits: Of all inputs, in order.
        files: What they read.
        features: What the source gives.
        options: How the files are read.
        limit: How many rows are wanted.
        is_by_file: Whether files tell the dataset splits; so many rows of each are wanted then.

    Raises:
        BadInputError: At a row that does not fit, unless bad rows are tolerated.
    """
    num_left: dict[str | None, int] = {}
    kept: list[InputSplit] = []
    for split in chain.from_iterable(_cut_by_split(split, files) for split in splits) if is_by_file else splits:
        name = split_of(files[split.file_start]) if is_by_file else None
        wanted = num_left.setdefault(name, limit)
        if wanted > 0:
            found, num_rows = _first_of(split, files, features, options, wanted)
            num_left[name] -= num_rows
            kept.append(found)
    used = sorted({index for split in kept for index in range(split.file_start, split.file_stop)})
    place_of = {index: place for place, index in enumerate(used)}
    renamed = (
        msgspec.structs.replace(
            split, index=index, file_start=place_of[split.file_start], file_stop=place_of[split.file_stop - 1] + 1
        )
        for index, split in enumerate(kept)
    )
    return FirstRows(tuple(files[index] for index in used), tuple(renamed))


def _first_of(
    split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions, wanted: int
) -> tuple[InputSplit, int]:
    num_rows = 0
    try:
        for rows in source_for(options.format or "").read(split, files, features, options):
            num_before, num_rows = num_rows, num_rows + rows.batch.num_rows
            if num_rows >= wanted and isinstance(rows.file_indices, int):
                return msgspec.structs.replace(split, max_rows=wanted), wanted
            if num_rows >= wanted and not isinstance(rows.file_indices, int):
                # A file is a row.
                stop = int(rows.file_indices[wanted - num_before - 1]) + 1
                return msgspec.structs.replace(split, file_stop=stop), wanted
    except DamagedFileError:
        # It is rejected as a whole when it is read again.
        if not options.tolerates_bad_rows:
            raise
        num_rows = 0
    return split, num_rows


def _cut_by_split(split: InputSplit, files: tuple[RawFile, ...]) -> Iterator[InputSplit]:
    """Yields parts of an input split whose files are all of one dataset split."""
    if split.file_stop - split.file_start == 1:
        yield split
        return
    for _, group in groupby(range(split.file_start, split.file_stop), key=lambda index: split_of(files[index])):
        indices = list(group)
        yield msgspec.structs.replace(
            split,
            file_start=indices[0],
            file_stop=indices[-1] + 1,
            num_bytes=sum(files[index].num_bytes for index in indices),
        )


def first_rows(batches: Iterator[RowBatch], max_rows: int) -> Iterator[RowBatch]:
    """Yields batches up to so many rows; 0 stands for all."""
    num_left = max_rows
    for rows in batches:
        if max_rows and rows.batch.num_rows >= num_left:
            yield part_of(rows, 0, num_left)
            return
        yield rows
        num_left -= rows.batch.num_rows


def part_of(rows: RowBatch, start: int, stop: int) -> RowBatch:
    """Returns some rows of a batch; what is known of all rows goes to the first part."""
    if start == 0 and stop == rows.batch.num_rows:
        return rows
    indices = rows.file_indices
    return RowBatch(
        rows.batch.slice(start, stop - start),
        rows.identities[start:stop],
        indices if isinstance(indices, int) else indices[start:stop],
        {} if start else rows.num_rounded,
        () if start else rows.rejected,
    )
