"""The rows of an input split as every step of the conversion sees them, without those that no process survives."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.conversion.plan import Plan
from shardkit.conversion.rows.attempts import READING, TRANSFORMING, Attempt
from shardkit.conversion.rows.crash_records import CrashRecord, crashed_rows, load_crash_record, next_slice
from shardkit.conversion.rows.first_rows import part_of, read_split
from shardkit.conversion.rows.small_files import join_batches
from shardkit.errors import BadInputError, DamagedFileError, NarrowTypesError, UsageError
from shardkit.features import Features
from shardkit.messages import printable, shown
from shardkit.sources import source_of
from shardkit.sources.base import (
    MAX_RAW_BYTES,
    InputSplit,
    RejectedRow,
    RowBatch,
    place,
    read_together,
    reason_of,
    rejected_row,
)
from shardkit.sources.files.streams import read_head
from shardkit.sources.split_names import split_for_word
from shardkit.transforms.fetch.rows import fetched
from shardkit.transforms.pipeline import Applied, apply
from shardkit.transforms.row_origin import origin_of, place_of, raw_row
from shardkit.transforms.steps import empty_batch

_FIRST_ROWS = 1_024
_SLICE_SECONDS = 2.0  # Far below any time a row is given, so that slow rows are not taken for one that never ends.
_READ_TIMES = 10  # A batch from a slow store holds many rows.
_NO_PROCESS = "the row cannot be transformed"


def read_rows(plan: Plan, input_split: InputSplit, damage: dict[int, str]) -> Iterator[Applied]:
    """Yields the batches of one input split that hold, reject or filter rows, transformed.

    Args:
        damage: Takes why a file cannot be read, by its position, where it is one of several and bad rows are tolerated;
            none of its rows is then yielded.

    Raises:
        BadInputError: At the first row that does not fit, unless bad rows are tolerated.
        DamagedFileError: If the only file cannot be read, or any where bad rows are not tolerated.
    """
    crash_record = load_crash_record(plan, input_split.index)
    with Attempt(plan.work_dir, input_split.index) as attempt:
        transformer = _Transformer(plan, input_split, crash_record, attempt)
        for number, rows in enumerate(_fetched(plan, input_split, crash_record, attempt, damage)):
            if rows.batch.num_rows == 0 and not rows.rejected:
                continue
            applied = transformer.transform(number, rows)
            attempt.rest()
            applied = without_unknown_splits(plan, input_split, applied)
            if applied.rows.batch.num_rows or applied.rows.rejected or applied.num_filtered:
                yield applied


def _fetched(
    plan: Plan, split: InputSplit, crash_record: CrashRecord, attempt: Attempt, damage: dict[int, str]
) -> Iterator[RowBatch]:
    """Yields what is transformed: the rows as they are read, with what their web addresses give."""
    batches = _checked(plan, _read(plan, split, crash_record, plan.transforms.input_features, attempt, damage))
    options = plan.transforms.options
    return batches if options.fetch is None else fetched(batches, options, plan.files, split, plan.recipe.source)


def _checked(plan: Plan, batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
    for rows in batches:
        if plan.inferred:
            _refuse_narrow(plan, rows)
        yield rows


def _refuse_narrow(plan: Plan, rows: RowBatch) -> None:
    rounded = next((name for name, count in rows.num_rounded.items() if count and name in plan.inferred), None)
    rejected = next((row for row in rows.rejected if row.is_of_wider_type), None)
    if rejected is not None:
        where = ", ".join(filter(None, (printable(plan.files[rejected.file_index].name), rejected.position)))
        raise NarrowTypesError("a row does not fit the types of the first rows", where=where, why=rejected.reason)
    if rounded is not None:
        file = rows.file_indices if isinstance(rows.file_indices, int) else int(rows.file_indices[0])
        what = f"values of column {shown(rounded)} in {printable(plan.files[file].name)}"
        raise NarrowTypesError(what, why="they would be rounded")


def name_crashed(plan: Plan, input_split: InputSplit) -> Iterator[str]:
    """Yields a sentence for each file and row of an input split that no process survives; transforms nothing."""
    crash_record = load_crash_record(plan, input_split.index)
    files = crash_record.files if crash_record.damage is None else {input_split.file_start: crash_record.damage}
    for index, how in sorted(files.items()):
        yield f"{place(plan.files[index])}: the file cannot be read: its reader {how}"
    crashes = crashed_rows(crash_record)
    if not crashes:
        return
    with Attempt(plan.work_dir, input_split.index) as attempt:
        batches = _fetched(plan, input_split, crash_record, attempt, {})
        for number, rows in enumerate(batches):
            for crash in crashes:
                if crash.batch == number:
                    row = part_of(rows, crash.start, crash.stop)
                    origin = origin_of(row, 0, plan.files, input_split, plan.recipe.source)
                    yield f"{place_of(origin, plan.files)}: {_NO_PROCESS}: the process that tried {crash.how}"
            if number == crashes[-1].batch:
                return


def _read(
    plan: Plan,
    split: InputSplit,
    crash_record: CrashRecord,
    features: Features,
    attempt: Attempt,
    damage: dict[int, str],
) -> Iterator[RowBatch]:
    if split.parts:
        rows = None if crash_record.is_by_file or crash_record.files else _read_together(plan, split, features, attempt)
        if rows is not None:
            yield rows
            return
        yield from join_batches(_read_parts(plan, split, crash_record, features, attempt, damage))
        return
    seconds = plan.recipe.max_row_seconds
    if crash_record.damage is not None:
        raise DamagedFileError(
            "the file cannot be read",
            where=place(plan.files[split.file_start]),
            why=f"its reader {crash_record.damage}",
        )
    if not crash_record.is_by_file:
        batches = read_split(split, plan.files, features, plan.recipe.source)
        yield from _watched(batches, attempt, seconds * _READ_TIMES, -1)
        return
    for index in range(split.file_start, split.file_stop):
        if index in crash_record.files:
            yield _rejected_file(plan, index, crash_record.files[index], features)
            continue
        alone = msgspec.structs.replace(split, file_start=index, file_stop=index + 1)
        yield from _watched(read_split(alone, plan.files, features, plan.recipe.source), attempt, seconds, index)


def _read_together(plan: Plan, split: InputSplit, features: Features, attempt: Attempt) -> RowBatch | None:
    if any(part.max_rows for part in split.parts):
        return None
    source = source_of(plan.recipe.source)
    indices = [part.file_start for part in split.parts]
    attempt.begin(READING, plan.recipe.max_row_seconds * _READ_TIMES, 0)
    try:
        return read_together(source, indices, plan.files, features, plan.recipe.source)
    except (BadInputError, UsageError):
        return None  # Reading one after the other tells which.
    finally:
        attempt.rest()


def _read_parts(
    plan: Plan,
    split: InputSplit,
    crash_record: CrashRecord,
    features: Features,
    attempt: Attempt,
    damage: dict[int, str],
) -> Iterator[RowBatch]:
    for part in split.parts:
        rows = _read_part(plan, part, crash_record, features, attempt)
        if not plan.recipe.source.tolerates_bad_rows:
            yield from rows
            continue
        try:
            # The end of a file may tell that nothing of it counts.
            whole = list(rows)
        except DamagedFileError as error:
            damage[part.file_start] = reason_of(error)
            attempt.rest()
        else:
            yield from whole


def _read_part(
    plan: Plan, part: InputSplit, crash_record: CrashRecord, features: Features, attempt: Attempt
) -> Iterator[RowBatch]:
    index = part.file_start
    if index in crash_record.files:
        raise DamagedFileError(
            "the file cannot be read", where=place(plan.files[index]), why=f"its reader {crash_record.files[index]}"
        )
    batches = read_split(part, plan.files, features, plan.recipe.source)
    yield from _watched(batches, attempt, plan.recipe.max_row_seconds * _READ_TIMES, index)


def _watched(batches: Iterator[RowBatch], attempt: Attempt, seconds: float, file_index: int) -> Iterator[RowBatch]:
    number = 0
    while True:
        attempt.begin(READING, seconds, number, file_index=file_index)
        rows = next(batches, None)
        attempt.rest()
        if rows is None:
            return
        yield rows
        number += 1


class _Transformer:
    """Transforms the batches of one input split, so many rows at a time that an observer soon sees a step that never
    ends."""

    def __init__(self, plan: Plan, split: InputSplit, crash_record: CrashRecord, attempt: Attempt) -> None:
        self._plan = plan
        self._split = split
        self._crashes = crash_record.crashes
        self._attempt = attempt
        self._num_rows = _FIRST_ROWS

    def transform(self, number: int, rows: RowBatch) -> Applied:
        """Returns the rows of the batch of that number after all steps."""
        plan = self._plan
        if plan.transforms.options.changes_nothing:
            return apply(plan.transforms, rows, plan.files, self._split)
        parts: list[Applied] = []
        start, num_rows = 0, rows.batch.num_rows
        while start < num_rows or not parts:
            piece = next_slice(self._crashes, number, start, num_rows, self._num_rows)
            part = part_of(rows, piece.start, piece.stop)
            if piece.how is not None:
                parts.append(Applied(_without_row(plan, self._split, part, piece.how), {}))
            else:
                seconds = piece.seconds(plan.recipe.max_row_seconds)
                self._attempt.begin(TRANSFORMING, seconds, number, piece.start, piece.stop)
                began = time.monotonic()
                parts.append(apply(plan.transforms, part, plan.files, self._split))
                self._adjust(piece.stop - piece.start, time.monotonic() - began)
            start = piece.stop
        return parts[0] if len(parts) == 1 else _together(parts)

    def _adjust(self, num_rows: int, seconds: float) -> None:
        # So many rows took so long.
        if num_rows:
            affordable = int(num_rows * _SLICE_SECONDS / max(seconds, 1e-6))
            self._num_rows = max(1, min(affordable, 64 * self._num_rows))


def _together(parts: list[Applied]) -> Applied:
    # Statistics must not depend on the time of steps, so the parts of a batch become one batch again.
    num_rounded: Counter[str] = Counter()
    num_filtered: Counter[int] = Counter()
    rejected: list[RejectedRow] = []
    for part in parts:
        num_rounded.update(part.rows.num_rounded)
        num_filtered.update(part.num_filtered)
        rejected += part.rows.rejected
    indices = [part.rows.file_indices for part in parts]
    first = indices[0]
    joined = first if isinstance(first, int) else np.concatenate([i for i in indices if not isinstance(i, int)])
    batch = pa.concat_batches([part.rows.batch for part in parts])
    identities = np.concatenate([part.rows.identities for part in parts])
    return Applied(RowBatch(batch, identities, joined, dict(num_rounded), rejected), dict(num_filtered))


def _without_row(plan: Plan, split: InputSplit, part: RowBatch, how: str) -> RowBatch:
    origin = origin_of(part, 0, plan.files, split, plan.recipe.source)
    error = BadInputError(
        _NO_PROCESS,
        where=place_of(origin, plan.files),
        why=f"the process that tried {how}",
        next_step="Leave the row out with --on-bad-record skip or quarantine",
    )
    if not plan.recipe.source.tolerates_bad_rows:
        raise error
    row = rejected_row(
        error,
        file_index=origin.file_index,
        position=origin.position,
        first_byte=None,
        raw=raw_row(part.batch, 0),
    )
    indices = part.file_indices
    return RowBatch(
        empty_batch(plan.row_features),
        part.identities[:0],
        indices if isinstance(indices, int) else indices[:0],
        {},
        (*part.rejected, row),
    )


def _rejected_file(plan: Plan, index: int, how: str, features: Features) -> RowBatch:
    file = plan.files[index]
    error = BadInputError("the file cannot be read", where=place(file), why=f"its reader {how}")
    if not plan.recipe.source.tolerates_bad_rows:
        raise error
    raw = read_head(file, MAX_RAW_BYTES)
    row = rejected_row(error, file_index=index, position="", first_byte=None, raw=raw)
    return RowBatch(empty_batch(features), np.empty(0, np.uint64), index, {}, (row,))


def without_unknown_splits(plan: Plan, split: InputSplit, applied: Applied) -> Applied:
    """Returns the rows whose column names a split of the recipe or has a rank, the others as rejected rows.

    Raises:
        BadInputError: At the first other row, unless bad rows are tolerated.
    """
    recipe, rows = plan.recipe, applied.rows
    if rows.batch.num_rows == 0 or (recipe.split_column is None and recipe.split_by is None):
        return applied
    if recipe.split_column is not None:
        words, names = rows.batch.column(recipe.split_column).cast(pa.string()), {s.name for s in recipe.splits}
        known = [word for word in pc.unique(words).to_pylist() if split_for_word(word, names) is not None]
        found = pc.is_in(words, value_set=pa.array(known, words.type))
    else:
        found = pc.invert(pc.is_null(rows.batch.column(recipe.split_by), nan_is_null=True))
    is_known = np.asarray(found.to_numpy(zero_copy_only=False), bool)
    if is_known.all():
        return applied
    rejected = [_rejected(plan, split, rows, int(row)) for row in np.flatnonzero(~is_known)]
    indices = rows.file_indices
    return Applied(
        RowBatch(
            rows.batch.filter(pa.array(is_known)),
            rows.identities[is_known],
            indices if isinstance(indices, int) else indices[is_known],
            rows.num_rounded,
            (*rows.rejected, *rejected),
        ),
        applied.num_filtered,
    )


def _rejected(plan: Plan, split: InputSplit, rows: RowBatch, row: int) -> RejectedRow:
    name = plan.recipe.split_column or plan.recipe.split_by or ""
    word = rows.batch.column(name)[row].as_py()
    is_ranked = plan.recipe.split_by is not None
    origin = origin_of(rows, row, plan.files, split, plan.recipe.source)
    error = BadInputError(
        f"column {shown(name)} does not fit",
        where=place_of(origin, plan.files),
        why=f"{'null' if word is None else shown(word)} {'has no rank' if is_ranked else 'is no split'}",
        next_step="Leave such rows out with --on-bad-record skip or quarantine, which count them"
        if is_ranked
        else "Name every split with --split NAME, or leave the row out with --on-bad-record skip or quarantine",
    )
    if not plan.recipe.source.tolerates_bad_rows:
        raise error
    return rejected_row(
        error,
        file_index=origin.file_index,
        position=origin.position,
        first_byte=None,
        raw=raw_row(rows.batch, row),
    )
