"""The input splits that hold the first rows of the inputs, where no more are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import msgspec

from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources import source_of
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, row_identities
from shardkit.sources.split_names import split_of


class FirstRows(NamedTuple):
    """Which parts of the inputs hold the first rows.

    Attributes:
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
        limited = msgspec.structs.replace(split, max_rows=wanted)
        for rows in read_split(limited, files, features, options):
            num_rows += rows.batch.num_rows
            if num_rows == wanted and isinstance(rows.file_indices, int):
                return limited, wanted
            if num_rows == wanted and not isinstance(rows.file_indices, int):
                # A file is a row.
                return msgspec.structs.replace(split, file_stop=int(rows.file_indices[-1]) + 1), wanted
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


def read_split(
    split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
) -> Iterator[RowBatch]:
    """Yields the rows of an input split as its source reads them, up to its last row that counts.

    Raises:
        BadInputError: At the first row that does not fit and counts, unless bad rows are tolerated.
        DamagedFileError: If the file cannot be trusted.
    """
    source = source_of(options)
    if not split.max_rows:
        yield from source.read(split, files, features, options)
        return
    num_left, num_before = split.max_rows, 0
    tolerant = msgspec.structs.replace(options, tolerates_bad_rows=True)
    for rows in source.read(split, files, features, tolerant):
        part = rows if rows.batch.num_rows < num_left else _up_to(rows, num_left, num_before, split, files)
        if part.rejected and not options.tolerates_bad_rows:
            # Reading names the first of them.
            for _ in source.read(split, files, features, options):
                pass
        yield part
        num_left -= part.batch.num_rows
        num_before += rows.batch.num_rows + len(rows.rejected)
        if num_left == 0:
            return


def _up_to(rows: RowBatch, stop: int, num_before: int, split: InputSplit, files: tuple[RawFile, ...]) -> RowBatch:
    """Returns the first rows of a batch, and the rejected ones that are before the last of them.

    Args:
        stop: How many rows, at least 1.
        num_before: Rows of the split before the batch, rejected ones too.
    """
    kept = part_of(rows, 0, stop)
    if not isinstance(kept.file_indices, int):
        last = int(kept.file_indices[-1])
        return kept._replace(rejected=[row for row in rows.rejected if row.file_index <= last])
    # The identities of rows count up, those of rejected ones too.
    first = row_identities(files[split.file_start], split.start, num_before, 1)
    num_rejected = int(kept.identities[-1] - first[0]) + 1 - stop
    ordered = sorted(rows.rejected, key=lambda row: row.first_byte or 0)
    return kept._replace(rejected=ordered[: max(0, num_rejected)])


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
