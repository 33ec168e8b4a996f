"""Extract: one input split becomes runs in the spool, statistics and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.conversion.exchange import fetch, fetch_folder
from shardkit.conversion.extract.first_pass import (
    check_same_rows,
    counted_rows,
    mark_names,
    marks_digest,
    spool_is_gone,
    ticker_of,
)
from shardkit.conversion.extract.packing import Packer
from shardkit.conversion.extract.runs import RUN_BYTES, EncodedPart, run_order, write_run
from shardkit.conversion.extracted import Extracted, run_names, statistics_name
from shardkit.conversion.plan import Plan, input_versions, write_whole
from shardkit.conversion.progress import InputTicker, Progress
from shardkit.conversion.rows.bad_rows import Quarantine
from shardkit.conversion.rows.isolation import load_or_run
from shardkit.conversion.splits.assign import assign_rows
from shardkit.conversion.splits.duplicates import find_duplicates, find_unsampled
from shardkit.conversion.splits.stratify import StratumPositions
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.encoder import encode_batch
from shardkit.errors import DamagedFileError
from shardkit.hashing import row_keys
from shardkit.sources.base import InputSplit, RowBatch, reason_of
from shardkit.statistics.collector import StatisticsCollector

_STATISTICS_AT_ONCE = 16


def extract_split(plan: Plan, input_split_index: int, progress: Progress | None = None) -> Extracted:
    """Reads one input split and leaves its rows as runs in the spool; does nothing if that was done before.

    Raises:
        BadInputError: At the first row that does not fit.
        OutOfSpaceError, UsageError, StorageError: If the spool cannot be written.
    """
    done, origin = load_or_run(
        plan, input_split_index, "extract", find_extracted, lambda: extract_here(plan, input_split_index, progress)
    )
    if progress is not None and origin != "here":
        num_bytes = plan.input_splits[input_split_index].num_bytes
        progress.add(
            num_rows=sum(done.rows_by_file.values()),
            num_input_bytes=num_bytes,
            num_rejected=sum(done.rejected_by_file.values()),
            num_kept_input_bytes=num_bytes if origin == "kept" else 0,
        )
    return done


def extract_here(plan: Plan, input_split_index: int, progress: Progress | None = None) -> Extracted:
    """Reads one input split in this process, whatever became of others that tried.

    Raises:
        BadInputError: At the first row that does not fit.
        OutOfSpaceError, UsageError, StorageError: If the spool cannot be written.
    """
    input_split = plan.input_splits[input_split_index]
    ticker = ticker_of(plan, input_split, progress)
    try:
        extracted = _extract(plan, input_split, ticker)
    except DamagedFileError as error:
        if not plan.recipe.source.tolerates_bad_rows or input_split.file_stop - input_split.file_start != 1:
            raise
        extracted = _nothing(plan, input_split, damage={input_split.file_start: reason_of(error)})
    write_whole(plan.work_path("extract", f"{input_split_index}.msgpack"), msgspec.msgpack.encode(extracted))
    if ticker is not None:
        ticker.end()
    return extracted


def fetch_extracted(plan: Plan) -> None:
    """Brings the files that `load_extracted` reads, where workers share no disk.

    Raises:
        StorageError: If the store kept failing.
    """
    fetch_folder(plan, "extract", ".msgpack")
    if plan.recipe.reads_twice:
        fetch(plan, [name for s in plan.input_splits for name in mark_names(s.index)])


def load_extracted(plan: Plan) -> list[Extracted]:
    """Returns the results of all input splits. None of them has rows of a damaged file.

    Raises:
        StorageError: If a part of the spool has gone.
    """
    found = []
    for input_split in plan.input_splits:
        extracted = find_extracted(plan, input_split.index)
        if extracted is None:
            raise spool_is_gone(plan)
        found.append(extracted)
    damaged = {file_index for part in found for file_index in part.damage}
    return [
        part if part.damage or s.file_start not in damaged or s.file_stop - s.file_start != 1 else _nothing(plan, s)
        for s, part in zip(plan.input_splits, found, strict=True)
    ]


def forget_unfetched(plan: Plan, extracted: Sequence[Extracted]) -> None:
    """Forgets input splits with rejected rows if rows are fetched: what a server refused, it may give another time."""
    if plan.transforms.options.fetch is not None:
        for part in extracted:
            if part.rejected_by_file:
                plan.work_path("extract", f"{part.input_split_index}.msgpack").unlink(missing_ok=True)


def statistics_parts(plan: Plan, extracted: Sequence[Extracted], position: int) -> Iterator[bytes]:
    """Yields the counts of each input split for the rows of one dataset split, in the order of the inputs.

    They are many and large: no more than a few are held at a time.

    Args:
        position: Of the dataset split in the recipe.

    Raises:
        StorageError: If the store kept failing, or a part of the spool has gone.
    """
    ordered = sorted(extracted, key=lambda e: e.input_split_index)
    names = [statistics_name(e.input_split_index) for e in ordered if e.has_statistics]
    for first in range(0, len(names), _STATISTICS_AT_ONCE):
        some = names[first : first + _STATISTICS_AT_ONCE]
        fetch(plan, some)
        for name in some:
            path = plan.work_path(name)
            try:
                yield msgspec.msgpack.decode(path.read_bytes(), type=list[bytes])[position]
            except FileNotFoundError as error:
                raise spool_is_gone(plan) from error
            if plan.exchange is not None:
                path.unlink()


def _extract(plan: Plan, input_split: InputSplit, ticker: InputTicker | None) -> Extracted:
    rows_by_file: Counter[int] = Counter()
    filtered_by_file: Counter[int] = Counter()
    rejected_by_file: Counter[int] = Counter()
    quarantine = Quarantine(plan, input_split.index)
    accepted = _Accepted(plan, input_split)
    left_out = _LeftOut(plan, input_split)
    is_marked = plan.recipe.stratify is not None or plan.recipe.split_by is not None
    strata = StratumPositions(plan, input_split.index) if is_marked else None
    damage: dict[int, str] = {}
    for all_rows, num_filtered in counted_rows(plan, input_split, damage, ticker):
        _count_rows(all_rows, rows_by_file)
        filtered_by_file.update(num_filtered)
        rows = left_out.without(all_rows)
        rejected_by_file.update(row.file_index for row in rows.rejected)
        quarantine.add(rows.rejected)
        if rows.batch.num_rows == 0:
            continue
        split_positions = assign_rows(rows, plan.row_features, plan.recipe, plan.files, strata)
        accepted.add(rows, split_positions)
    check_same_rows(plan, input_split.index, left_out.num_rows)
    accepted.end()
    quarantine.close()
    rows_by_file.update(filtered_by_file)
    rows_by_file.update(rejected_by_file)
    return Extracted(
        input_split_index=input_split.index,
        versions=input_versions(plan, input_split),
        num_runs=accepted.writer.num_runs,
        rows_by_file=dict(rows_by_file),
        filtered_by_file=dict(filtered_by_file + left_out.unsampled_by_file),
        duplicates_by_file=dict(left_out.duplicates_by_file),
        marks_digest=marks_digest(plan, input_split.index),
        rejected_by_file=dict(rejected_by_file),
        num_sequences=sum(packer.num_sequences for packer in accepted.packers),
        num_padding=sum(packer.num_padding for packer in accepted.packers),
        rejected_samples=tuple(quarantine.samples),
        rejected_reasons=quarantine.reasons.counts,
        damage=damage,
        has_statistics=True,
    )


def _nothing(plan: Plan, input_split: InputSplit, damage: dict[int, str] | None = None) -> Extracted:
    return Extracted(
        input_split_index=input_split.index,
        versions=input_versions(plan, input_split),
        marks_digest=marks_digest(plan, input_split.index),
        damage=damage or {},
        has_statistics=False,
    )


def find_extracted(plan: Plan, input_split_index: int) -> Extracted | None:
    """Returns the result of an earlier run for this input split, None if none holds any more."""
    path = plan.work_path("extract", f"{input_split_index}.msgpack")
    try:
        extracted = msgspec.msgpack.decode(path.read_bytes(), type=Extracted)
    except (FileNotFoundError, *DECODE_ERRORS):
        return None
    if extracted.versions != input_versions(plan, plan.input_splits[input_split_index]):
        return None
    if extracted.marks_digest != marks_digest(plan, input_split_index):
        return None
    return extracted if is_whole(plan, extracted) else None


def is_whole(plan: Plan, extracted: Extracted) -> bool:
    """Whether all is there that was made of an input split; in a store it was there before its record was."""
    if plan.exchange is not None:
        return True
    names = run_names(extracted)
    if extracted.has_statistics:
        names.append(statistics_name(extracted.input_split_index))
    if extracted.rejected_by_file and plan.recipe.on_bad_record == "quarantine":
        names.append(f"rejected/{extracted.input_split_index}.jsonl")
    return all(plan.work_path(name).exists() for name in names)


class _RunWriter:
    """Takes encoded rows of one input split and writes a run whenever there is enough for one."""

    def __init__(self, plan: Plan, input_split: InputSplit) -> None:
        self._plan = plan
        self._input_split = input_split
        self._parts: list[EncodedPart] = []
        self._num_bytes = 0
        self._num_rows = 0
        self.num_runs = 0

    def add(self, rows: RowBatch, split_positions: npt.NDArray[np.int64]) -> None:
        """Encodes and takes the rows of one batch."""
        recipe = self._plan.recipe
        if recipe.shuffle:
            keys = row_keys(rows.identities, recipe.seed)
        else:
            keys = np.arange(self._num_rows, self._num_rows + rows.batch.num_rows, dtype=np.uint64)
        encoded = encode_batch(rows.batch, self._plan.features)
        self._parts.append(EncodedPart(encoded.data, encoded.sizes, split_positions, keys))
        self._num_rows += rows.batch.num_rows
        self._num_bytes += len(encoded.data)
        if self._num_bytes >= RUN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the held records as a run."""
        if not self._parts:
            return
        key_range = None if self._plan.recipe.shuffle else run_order(self._input_split.index, self.num_runs)
        name = f"{self._input_split.index}-{self.num_runs}.run"
        write_run(self._plan.work_path("spool", name), self._parts, key_range)
        self._parts, self._num_bytes = [], 0
        self.num_runs += 1


class _Accepted:
    """Takes the rows of one input split that are kept, packed if the plan says so, into statistics and runs."""

    def __init__(self, plan: Plan, input_split: InputSplit) -> None:
        positions = range(len(plan.recipe.splits))
        self.writer = _RunWriter(plan, input_split)
        self.packers: list[Packer] = []
        if plan.packing is not None:
            features = plan.row_features
            self.packers = [Packer(plan.packing, features, input_split, plan.files, at) for at in positions]
        self._collectors = [StatisticsCollector(plan.features) for _ in positions]
        self._statistics_path = plan.work_path(statistics_name(input_split.index))

    def add(self, rows: RowBatch, split_positions: npt.NDArray[np.int64]) -> None:
        """Takes the rows of one batch."""
        if not self.packers:
            self._collect(rows, split_positions)
            self.writer.add(rows, split_positions)
        for position, packer in enumerate(self.packers):
            self._add_packed(packer.add(rows.batch.filter(pa.array(split_positions == position))), position)

    def end(self) -> None:
        """Writes all that is held."""
        for position, packer in enumerate(self.packers):
            self._add_packed(packer.end(), position)
        self.writer.flush()
        parts = [collector.to_bytes() for collector in self._collectors]
        write_whole(self._statistics_path, msgspec.msgpack.encode(parts))

    def _add_packed(self, batches: Iterable[RowBatch], position: int) -> None:
        for packed in batches:
            self._collectors[position].update(packed.batch)
            self.writer.add(packed, np.full(packed.batch.num_rows, position, dtype=np.int64))

    def _collect(self, rows: RowBatch, split_positions: npt.NDArray[np.int64]) -> None:
        self._collectors[0].add_rounded(dict(rows.num_rounded))
        for position, collector in enumerate(self._collectors):
            is_only = len(self._collectors) == 1
            own = rows.batch if is_only else rows.batch.filter(pa.array(split_positions == position))
            if own.num_rows:
                collector.update(own)


class _LeftOut:
    """Takes duplicates, and rows that are not in the sample, out of the batches of one input split."""

    def __init__(self, plan: Plan, input_split: InputSplit) -> None:
        self._kinds = (find_duplicates(plan, input_split.index), find_unsampled(plan, input_split.index))
        self.num_rows = 0
        self.duplicates_by_file: Counter[int] = Counter()
        self.unsampled_by_file: Counter[int] = Counter()

    def without(self, rows: RowBatch) -> RowBatch:
        """Returns the rows that stay."""
        stays = np.ones(rows.batch.num_rows, dtype=bool)
        indices = rows.file_indices
        for numbers, by_file in zip(self._kinds, (self.duplicates_by_file, self.unsampled_by_file), strict=True):
            start, stop = np.searchsorted(numbers, (self.num_rows, self.num_rows + rows.batch.num_rows))
            dropped = numbers[start:stop] - self.num_rows
            stays[dropped] = False
            by_file.update([indices] * len(dropped) if isinstance(indices, int) else indices[dropped].tolist())
        self.num_rows += rows.batch.num_rows
        if stays.all():
            return rows
        file_indices = indices if isinstance(indices, int) else indices[stays]
        return rows._replace(
            batch=rows.batch.filter(pa.array(stays)), identities=rows.identities[stays], file_indices=file_indices
        )


def _count_rows(rows: RowBatch, rows_by_file: Counter[int]) -> None:
    if isinstance(rows.file_indices, int):
        rows_by_file[rows.file_indices] += rows.batch.num_rows
        return
    indices, counts = np.unique(rows.file_indices, return_counts=True)
    for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
        rows_by_file[index] += count
