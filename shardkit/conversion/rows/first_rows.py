"""The input splits that hold the first rows of the inputs, where no more are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from shardkit.features import Features
from shardkit.sources import source_for
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions


def splits_of_first_rows(
    splits: Sequence[InputSplit],
    files: tuple[RawFile, ...],
    features: Features,
    options: SourceOptions,
    limit: int,
) -> tuple[InputSplit, ...]:
    """Returns the input splits with the first rows that fit; the last one says how many of its rows count.

    These rows are read to be counted.

    Args:
        splits: Of all inputs, in order.
        files: What they read.
        features: What the source gives.
        options: How the files are read.
        limit: How many rows are wanted.

    Raises:
        BadInputError: At a row that does not fit, unless bad rows are tolerated.
    """
    source = source_for(options.format or "")
    kept: list[InputSplit] = []
    for split in splits:
        num_rows = 0
        for batch in source.read(split, files, features, options):
            num_rows += batch.batch.num_rows
            if num_rows >= limit:
                return (*kept, msgspec.structs.replace(split, max_rows=limit))
        limit -= num_rows
        kept.append(split)
    return tuple(kept)


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
