"""The first pass over the inputs, which only some conversions need: it finds all that depends on all rows.

first pass  every input split is read, and what the options need of its rows is stored
mark        of all input splits together: which rows are left out, and where the others go
extract     reads the inputs again
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import xxhash

from shardkit.conversion.plan import Plan, input_versions, write_whole
from shardkit.conversion.progress import InputTicker, Progress
from shardkit.conversion.rows.crash_records import load_crash_record
from shardkit.conversion.rows.isolation import load_or_run
from shardkit.conversion.rows.read_rows import read_rows
from shardkit.conversion.splits.duplicates import (
    Digests,
    first_pass_path,
    mark_duplicates,
    other_rows,
    row_digests,
    store_digests,
)
from shardkit.conversion.splits.ranks import mark_sample, mark_sorted, sample_draws, sort_keys, store_keys
from shardkit.conversion.splits.stratify import StrataWriter, mark_strata
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import DamagedFileError, StorageError
from shardkit.hashing import UInt64s
from shardkit.sources.base import InputSplit, RowBatch
from shardkit.transforms.pipeline import Applied

_MARKS = ("duplicates", "unsampled", "strata")


class FirstPassResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one input split; the digests of its rows are beside it.

    Attributes:
        is_damaged: Whether the file cannot be read at all; its rows then count for nothing.
        crash_record: What was known of rows that no process survives: where more is, rows are left out that were not.
        num_rows: Rows that were neither filtered nor rejected.
    """

    input_split_index: int
    versions: tuple[str, ...]
    is_damaged: bool
    crash_record: str
    num_rows: int


def run_first_pass(plan: Plan, input_split_index: int, progress: Progress | None = None) -> FirstPassResult:
    """Reads the rows of one input split for the first time; does nothing if that was done before.

    Raises:
        BadInputError: At the first row that does not fit, unless bad rows are tolerated.
        OutOfSpaceError, UsageError, StorageError: If the digests cannot be stored.
    """
    found, origin = load_or_run(
        plan,
        input_split_index,
        "survey",
        find_first_pass,
        lambda: run_first_pass_here(plan, input_split_index, progress),
    )
    if progress is not None and origin != "here":
        num_bytes = plan.input_splits[input_split_index].num_bytes
        progress.add(
            num_first_pass_rows=found.num_rows,
            num_first_pass_bytes=num_bytes,
            num_kept_first_pass_bytes=num_bytes if origin == "kept" else 0,
        )
    return found


def run_first_pass_here(plan: Plan, input_split_index: int, progress: Progress | None = None) -> FirstPassResult:
    """Reads the rows of one input split for the first time in this process, whatever became of others that tried.

    Raises:
        BadInputError: At the first row that does not fit, unless bad rows are tolerated.
        OutOfSpaceError, UsageError, StorageError: If the digests cannot be stored.
    """
    input_split = plan.input_splits[input_split_index]
    notes = _Notes(plan, input_split_index)
    crash_record = _crash_record_digest(plan, input_split_index)
    is_damaged = False
    ticker = ticker_of(plan, input_split, progress, is_first_pass=True)
    try:
        # Files that are damaged tell so when they are read again.
        for rows, _ in counted_rows(plan, input_split, {}, ticker):
            notes.add(rows)
    except DamagedFileError:
        if not plan.recipe.source.tolerates_bad_rows or input_split.file_stop - input_split.file_start != 1:
            raise
        is_damaged = True
    notes.store()
    first_pass = FirstPassResult(
        input_split_index=input_split_index,
        versions=input_versions(plan, input_split),
        is_damaged=is_damaged,
        crash_record=crash_record,
        num_rows=notes.num_rows,
    )
    write_whole(first_pass_path(plan, input_split_index, "msgpack"), msgspec.msgpack.encode(first_pass))
    if ticker is not None:
        ticker.end()
    return first_pass


def ticker_of(
    plan: Plan, input_split: InputSplit, progress: Progress | None, *, is_first_pass: bool = False
) -> InputTicker | None:
    """Returns the counter of an input split that is being read, None where progress is not counted."""
    if progress is None:
        return None
    is_compressed = plan.files[input_split.file_start].compression is not None
    return progress.reading(input_split.num_bytes, is_compressed=is_compressed, is_first_pass=is_first_pass)


def spool_is_gone(plan: Plan) -> StorageError:
    """Returns the error of a file of the work folder that was there and is not."""
    return StorageError(
        "a part of the spool has gone",
        where=plan.work_dir,
        state="Nothing was committed",
        next_step="Run the same command again",
    )


def find_first_pass(plan: Plan, input_split_index: int) -> FirstPassResult | None:
    """Returns the result of an earlier run, None if none holds any more."""
    path = first_pass_path(plan, input_split_index, "msgpack")
    try:
        first_pass = msgspec.msgpack.decode(path.read_bytes(), type=FirstPassResult)
    except (FileNotFoundError, *DECODE_ERRORS):
        return None
    if first_pass.versions != input_versions(plan, plan.input_splits[input_split_index]):
        return None
    return first_pass if first_pass.crash_record == _crash_record_digest(plan, input_split_index) else None


def check_same_rows(plan: Plan, input_split_index: int, num_rows: int) -> None:
    """Checks that an input split gave as many rows as in the first pass, if there was one.

    Raises:
        StorageError: If it gave more or less, so that what was marked are other rows.
    """
    if not plan.recipe.reads_twice:
        return
    first_pass = find_first_pass(plan, input_split_index)
    if first_pass is None or first_pass.num_rows != num_rows:
        raise other_rows(plan)


def mark_rows(plan: Plan) -> None:
    """Stores the fate of the rows of each input split, from the rows of all. Damaged files do not count.

    Raises:
        StorageError: If the first pass of an input split has gone.
        OutOfSpaceError, UsageError: If there is no room.
    """
    found = [find_first_pass(plan, s.index) for s in plan.input_splits]
    first_pass = [part for part in found if part is not None]
    if len(first_pass) < len(found):
        raise spool_is_gone(plan)
    damaged = {plan.input_splits[part.input_split_index].file_start for part in first_pass if part.is_damaged}
    counting = [s.index for s in plan.input_splits if s.file_stop - s.file_start != 1 or s.file_start not in damaged]
    if plan.recipe.dedup is not None:
        mark_duplicates(plan, counting)
    num_rows = [part.num_rows for part in first_pass]
    if plan.recipe.sample is not None:
        mark_sample(plan, num_rows, counting)
    if plan.recipe.stratify is not None:
        mark_strata(plan, num_rows, counting)
    if plan.recipe.split_by is not None:
        mark_sorted(plan, num_rows, counting)


def mark_names(input_split_index: int) -> list[str]:
    """Returns the files with the fate of the rows of an input split, relative to the work folder."""
    return [f"survey/{input_split_index}.{what}" for what in _MARKS]


def marks_digest(plan: Plan, input_split_index: int) -> str:
    """Returns a digest of the first pass's decisions on the rows of an input split; empty without a first pass."""
    if not plan.recipe.reads_twice:
        return ""
    digest = xxhash.xxh3_128()
    for what in _MARKS:
        path = first_pass_path(plan, input_split_index, what)
        raw = path.read_bytes() if path.exists() else b"missing"
        digest.update(f"{what} {len(raw)} ".encode() + raw)
    return digest.hexdigest()


def _crash_record_digest(plan: Plan, input_split_index: int) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(load_crash_record(plan, input_split_index)))


class _Notes:
    """What is kept of the rows of one input split."""

    def __init__(self, plan: Plan, input_split_index: int) -> None:
        self._plan = plan
        self._index = input_split_index
        self._digests: list[Digests] = [np.empty((0, 2), np.uint64)]
        self._strata = StrataWriter(plan, input_split_index) if plan.recipe.stratify is not None else None
        self._draws: list[UInt64s] = []
        self._values: list[UInt64s] = []
        self.num_rows = 0

    def add(self, rows: RowBatch) -> None:
        self.num_rows += rows.batch.num_rows
        if rows.batch.num_rows == 0:
            return
        if self._plan.recipe.dedup is not None:
            self._digests.append(row_digests(rows.batch, self._plan.row_features, self._plan.recipe.dedup))
        if self._strata is not None:
            self._strata.add(rows)
        if self._plan.recipe.sample is not None:
            self._draws.append(sample_draws(rows.identities, self._plan.recipe.seed))
        if (name := self._plan.recipe.split_by) is not None:
            feature = next(f for f in self._plan.row_features if f.name == name)
            self._values.append(sort_keys(rows.batch.column(name), feature))

    def store(self) -> None:
        if self._plan.recipe.dedup is not None:
            store_digests(self._plan, self._index, np.concatenate(self._digests))
        if self._strata is not None:
            self._strata.store()
        if self._plan.recipe.sample is not None:
            store_keys(self._plan, self._index, "draws", self._draws)
        if self._plan.recipe.split_by is not None:
            store_keys(self._plan, self._index, "values", self._values)


def counted_rows(
    plan: Plan, input_split: InputSplit, damage: dict[int, str], ticker: InputTicker | None
) -> Iterator[Applied]:
    """Yields what `read_rows` does, and counts each batch when the caller is done with it."""
    for applied in read_rows(plan, input_split, damage):
        yield applied
        if ticker is not None:
            rows = applied.rows
            num_rows = rows.batch.num_rows + len(rows.rejected) + sum(applied.num_filtered.values())
            ticker.tick(num_rows, rows.batch.nbytes, len(rows.rejected))
