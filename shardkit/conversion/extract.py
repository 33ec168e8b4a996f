"""Extract: one input split becomes runs in the spool, statistics and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.progress import Progress
from shardkit.conversion.spool import RUN_ARROW_BYTES, run_order, write_run
from shardkit.hashing import assign_splits, row_keys
from shardkit.sources import source_for
from shardkit.sources.base import InputSplit, RowBatch
from shardkit.statistics import StatisticsCollector


class Extracted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one input split. Stored beside its runs: a later run that finds it need not read the input again.

    Attributes:
        input_split_index: Which input split.
        versions: Versions of the files that were read.
        num_runs: Runs in the spool.
        rows_by_file: Rows by position of the file.
        statistics: Per dataset split, what `StatisticsCollector.to_bytes` gave.
    """

    input_split_index: int
    versions: tuple[str, ...]
    num_runs: int
    rows_by_file: dict[int, int]
    statistics: tuple[bytes, ...]


def extract_split(plan: Plan, input_split_index: int, progress: Progress | None = None) -> Extracted:
    """Reads one input split and leaves its rows as runs in the spool; does nothing if that was done before.

    Raises:
        BadInputError: At the first row that does not fit.
        OutOfSpaceError, UsageError, StorageError: If the spool cannot be written.
    """
    input_split = plan.input_splits[input_split_index]
    done = find_extracted(plan, input_split_index)
    if done is not None:
        if progress is not None:
            progress.add(num_rows=sum(done.rows_by_file.values()), num_input_bytes=input_split.num_bytes)
        return done
    collectors = [StatisticsCollector(plan.features) for _ in plan.recipe.splits]
    rows_by_file: Counter[int] = Counter()
    num_runs = 0
    for run_index, rows in enumerate(_gather_runs(plan, input_split, rows_by_file, collectors, progress)):
        _write_rows(plan, input_split, run_index, rows, collectors)
        num_runs = run_index + 1
    extracted = Extracted(
        input_split_index=input_split_index,
        versions=_versions(plan, input_split),
        num_runs=num_runs,
        rows_by_file=dict(rows_by_file),
        statistics=tuple(c.to_bytes() for c in collectors),
    )
    write_whole(plan.work_path("extract", f"{input_split_index}.msgpack"), msgspec.msgpack.encode(extracted))
    return extracted


def find_extracted(plan: Plan, input_split_index: int) -> Extracted | None:
    """Returns what an earlier run left of this input split, None if it left nothing that still holds."""
    path = plan.work_path("extract", f"{input_split_index}.msgpack")
    try:
        extracted = msgspec.msgpack.decode(path.read_bytes(), type=Extracted)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if extracted.versions != _versions(plan, plan.input_splits[input_split_index]):
        return None
    runs_exist = all(plan.work_path(name).exists() for name in run_names(extracted))
    return extracted if runs_exist else None


def run_names(extracted: Extracted) -> list[str]:
    """Returns the paths of the runs, relative to the work folder."""
    return [f"spool/{extracted.input_split_index}-{i}.run" for i in range(extracted.num_runs)]


class _Rows(msgspec.Struct):
    table: pa.Table
    identities: np.ndarray
    first_row: int


def _gather_runs(
    plan: Plan,
    input_split: InputSplit,
    rows_by_file: Counter[int],
    collectors: list[StatisticsCollector],
    progress: Progress | None,
) -> Iterator[_Rows]:
    source = source_for(plan.recipe.source.format or "")
    pending: list[RowBatch] = []
    num_pending_bytes, num_rows, num_reported_bytes = 0, 0, 0
    for rows in source.read(input_split, plan.files, plan.features, plan.recipe.source):
        if rows.batch.num_rows == 0:
            continue
        _count_rows(rows, rows_by_file)
        collectors[0].add_rounded(dict(rows.num_rounded))
        pending.append(rows)
        num_pending_bytes += rows.batch.nbytes
        if progress is not None:
            # A batch tells no bytes of input; spread what is left so that the bar never runs past the end.
            step = min(rows.batch.nbytes, (input_split.num_bytes - num_reported_bytes) // 2)
            num_reported_bytes += step
            progress.add(num_rows=rows.batch.num_rows, num_input_bytes=step)
        if num_pending_bytes >= RUN_ARROW_BYTES:
            yield _concat(pending, num_rows)
            num_rows += sum(r.batch.num_rows for r in pending)
            pending, num_pending_bytes = [], 0
    if pending:
        yield _concat(pending, num_rows)
    if progress is not None:
        progress.add(num_input_bytes=input_split.num_bytes - num_reported_bytes)


def _concat(pending: list[RowBatch], first_row: int) -> _Rows:
    table = pa.Table.from_batches([r.batch for r in pending]).combine_chunks()
    return _Rows(table, np.concatenate([r.identities for r in pending]), first_row)


def _write_rows(
    plan: Plan, input_split: InputSplit, run_index: int, rows: _Rows, collectors: list[StatisticsCollector]
) -> None:
    recipe = plan.recipe
    positions = assign_splits(rows.identities, recipe.seed, tuple(s.fraction for s in recipe.splits))
    for position, collector in enumerate(collectors):
        own = rows.table if len(collectors) == 1 else rows.table.filter(pa.array(positions == position))
        for batch in own.to_batches():
            collector.update(batch)
    if recipe.shuffle:
        keys, bucket = row_keys(rows.identities, recipe.seed), None
    else:
        keys = np.arange(rows.first_row, rows.first_row + len(positions), dtype=np.uint64)
        bucket = run_order(input_split.index, run_index)
    write_run(
        plan.work_path("spool", f"{input_split.index}-{run_index}.run"),
        rows=rows.table,
        features=plan.features,
        split_positions=positions,
        keys=keys,
        bucket=bucket,
    )


def _count_rows(rows: RowBatch, rows_by_file: Counter[int]) -> None:
    if isinstance(rows.file_indices, int):
        rows_by_file[rows.file_indices] += rows.batch.num_rows
        return
    indices, counts = np.unique(rows.file_indices, return_counts=True)
    for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
        rows_by_file[index] += count


def _versions(plan: Plan, input_split: InputSplit) -> tuple[str, ...]:
    return tuple(f.version for f in plan.files[input_split.file_start : input_split.file_stop])
