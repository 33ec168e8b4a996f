"""From inputs and a setting to a forecast, by the functions that the conversion itself plans with."""

from __future__ import annotations

import functools
from typing import NamedTuple

import msgspec

from shardkit.conversion.engines import ENGINES
from shardkit.conversion.extract.runs import KEY_RANGE_BITS, RUN_BYTES
from shardkit.conversion.layout_math import GROUPS_A_UNIT, choose_group_bytes, count_shards, deal_workers
from shardkit.conversion.rows.small_files import SMALL_SHARE, small_file_limits
from shardkit.conversion.shards.chunks import CHUNK_BYTES, ROW_BYTES
from shardkit.conversion.shards.layout import MAX_SAMPLES
from shardkit.conversion.space.sizes import FILE_BYTES, manifest_bytes, spool_bytes, table_bytes
from shardkit.encoding.codec import BLOCK_BYTES
from shardkit.errors import UsageError
from shardkit.forecast.limits import COUNTS
from shardkit.forecast.values import Forecast, Setting, SplitForecast, Workload
from shardkit.sources.base import BATCH_BYTES, count_splits
from shardkit.units import MiB, format_size

# A segment as it is handed on, and as an object in the step that fetches it.
_SEGMENT_BYTES = 50
_SEGMENT_OBJECT_BYTES = 320
# An input split as an element of the pipeline, and the rest of a pipeline.
_ELEMENT_BYTES = 24
_GRAPH_BYTES = 256 * 1024
# Python, Arrow and, but on the local engine, Beam in a worker.
_PROCESS_BYTES = 250 * MiB
# Keys, sizes, offsets and order of a row of a group.
_ORDER_ROW_BYTES = 48
# Rows of a shard as an object, with its blocks.
_SHARD_OBJECT_BYTES = 1000
_BLOCK_OBJECT_BYTES = 150
# Statistics of a feature in one input split: measured were 103 kB of distinct integers, 88 of texts, 12 of floats and
# 0.3 of classes.
_STATISTICS_BYTES = 48 * 1024
# The result of an input split, as an object: a few numbers and words by file.
_EXTRACTED_BYTES = 2 * 1024
_REQUEST_BYTES = 5 * MiB
# A segment is read in three pieces: keys, sizes, records.
_SEGMENT_READS = 3
# The index of a run in a store takes two reads: its size, and its end.
_INDEX_READS = 2


@functools.lru_cache(maxsize=64)
def forecast(workload: Workload, setting: Setting) -> Forecast:
    """Returns the needs of a conversion; with several datasets, those of one of them.

    Raises:
        UsageError: If the framed bytes are more than a 64-bit count holds.
    """
    work = part_of(workload, setting.num_datasets)
    pieces = _pieces(work, setting)
    shuffle = _shuffle(work, setting, pieces)
    spooled = spool_bytes(
        num_runs=pieces.num_runs,
        num_rows=work.num_rows,
        num_framed_bytes=work.num_framed_bytes,
        num_key_ranges=len(work.shares) * ((1 << KEY_RANGE_BITS) if setting.shuffle else 1),
    )
    return Forecast(
        splits=pieces.splits,
        num_input_splits=pieces.num_input_splits,
        num_runs=pieces.num_runs,
        num_segments=pieces.num_segments,
        spool_bytes=spooled,
        shuffle_elements=shuffle.num_elements,
        shuffle_bytes=shuffle.num_bytes,
        key_bytes=shuffle.key_bytes,
        runner_bytes=int(shuffle.num_bytes * ENGINES[setting.engine].memory_factor),
        request_bytes=_GRAPH_BYTES + pieces.num_input_splits * _ELEMENT_BYTES,
        num_input_requests=max(work.num_files, -(-work.num_bytes // _REQUEST_BYTES)),
        num_spool_requests=shuffle.num_spool_requests,
        # The manifest, its table, and the file of statistics.
        num_put_requests=pieces.num_shards * (1 if setting.compression == "gzip" else 2) + 3,
        shard_bytes=pieces.shard_bytes,
        manifest_bytes=manifest_bytes(
            num_files=work.num_files, num_features=work.num_features, num_splits=len(work.shares)
        ),
        manifest_list_bytes=work.num_files * FILE_BYTES,
        table_bytes=table_bytes(num_shards=pieces.num_shards, num_blocks=pieces.num_blocks),
        worker_bytes=_worker_bytes(work, setting, pieces),
        gather_bytes=_gather_bytes(work, pieces),
        disk_bytes=_disk_bytes(setting, spooled, pieces),
    )


class _Pieces(NamedTuple):
    """The pieces that a conversion cuts its data into, from the inputs to the shards.

    Attributes:
        num_runs: Sorted pieces in the spool.
        num_segments: Parts of runs that groups need.
    """

    num_input_splits: int
    num_runs: int
    num_segments: int
    splits: tuple[SplitForecast, ...]

    @property
    def num_shards(self) -> int:
        return sum(s.num_shards for s in self.splits)

    @property
    def num_units(self) -> int:
        return sum(s.num_units for s in self.splits)

    @property
    def num_blocks(self) -> int:
        return sum(-(-s.num_framed_bytes // BLOCK_BYTES) + s.num_shards for s in self.splits)

    @property
    def num_bytes(self) -> int:
        return sum(s.num_bytes for s in self.splits)

    @property
    def shard_bytes(self) -> int:
        return self.num_bytes // max(1, self.num_shards)

    @property
    def unit_segments(self) -> int:
        """Segments of one piece of the writing step."""
        return -(-self.num_segments // max(1, self.num_units))


def _pieces(work: Workload, setting: Setting) -> _Pieces:
    if max(work.num_framed_bytes, work.num_bytes) > COUNTS.value:
        raise UsageError(
            f"{format_size(max(work.num_framed_bytes, work.num_bytes))} are more than one dataset can count",
            why=COUNTS.source,
            next_step="Cut the inputs into several datasets",
        )
    num_input_splits = _count_input_splits(work)
    # A run ends when it is full, and with its input split.
    num_runs = num_input_splits * max(1, -(-work.num_framed_bytes // num_input_splits // RUN_BYTES))
    splits = tuple(_split(work, setting, name, n, b, num_runs) for name, n, b in _divided(work, setting) if n)
    num_groups = sum(s.num_groups for s in splits)
    # Without shuffling a run is in one group.
    num_segments = min(num_runs * num_groups, work.num_rows) if setting.shuffle else num_runs * len(splits)
    return _Pieces(num_input_splits, num_runs, num_segments, splits)


class _Shuffle(NamedTuple):
    """What the engine's shuffle carries, the most of it under one key, and the reads of a spool in a store."""

    num_elements: int
    num_bytes: int
    key_bytes: int
    num_spool_requests: int


def _shuffle(work: Workload, setting: Setting, pieces: _Pieces) -> _Shuffle:
    if not carries_bytes(setting):
        return _Shuffle(
            num_elements=pieces.num_input_splits + pieces.num_segments + pieces.num_shards,
            num_bytes=pieces.num_segments * _SEGMENT_BYTES,
            key_bytes=pieces.unit_segments * _SEGMENT_BYTES,
            num_spool_requests=pieces.num_segments * _SEGMENT_READS,
        )
    # A group at the border of two units goes to both.
    doubled = sum((s.num_units - 1) * s.max_group_bytes for s in pieces.splits)
    carried = work.num_framed_bytes + min(doubled, work.num_framed_bytes)
    # A worker that holds all of a key holds the records of some shards.
    holds_key = ENGINES[setting.engine].holds_key
    return _Shuffle(
        num_elements=max(min(pieces.num_input_splits * pieces.num_units, work.num_rows), -(-carried // CHUNK_BYTES)),
        num_bytes=carried + ROW_BYTES * -(-work.num_rows * carried // work.num_framed_bytes),
        key_bytes=_unit_bytes(pieces.splits) if holds_key else 2 * CHUNK_BYTES + work.max_record_bytes,
        num_spool_requests=pieces.num_runs * _run_reads(setting, len(pieces.splits)),
    )


def _worker_bytes(work: Workload, setting: Setting, pieces: _Pieces) -> int:
    engine = ENGINES[setting.engine]
    processes, threads = engine.processes, engine.threads
    if engine.is_one_machine:
        processes, threads = deal_workers(setting.num_workers)
    return processes * (_PROCESS_BYTES + threads * _step_bytes(work, pieces))


def _gather_bytes(work: Workload, pieces: _Pieces) -> int:
    return (
        _PROCESS_BYTES
        + pieces.num_shards * _SHARD_OBJECT_BYTES
        + pieces.num_blocks * _BLOCK_OBJECT_BYTES
        + pieces.num_input_splits * _EXTRACTED_BYTES
        + 2 * len(work.shares) * work.num_features * _STATISTICS_BYTES
    )


def is_one_machine(setting: Setting) -> bool:
    """Whether all workers share the memory and the disk of the machine that the command runs on."""
    return ENGINES[setting.engine].is_one_machine


def carries_bytes(setting: Setting) -> bool:
    """Whether records go through the engine's shuffle: always with some, else where workers share no disk."""
    return ENGINES[setting.engine].carries_bytes or setting.work_place == "store"


def pieces_a_worker(setting: Setting) -> int:
    """Returns how many pieces of work one worker does at the same time."""
    return ENGINES[setting.engine].processes * ENGINES[setting.engine].threads


def disk_holds(setting: Setting) -> str:
    """Returns the use of the disk of a worker, or of the one machine, in words."""
    if is_one_machine(setting):
        return "the shards that are made, and their records" if carries_bytes(setting) else "spool and shards"
    made, whose = ("the shards", "their") if pieces_a_worker(setting) > 1 else ("the shard", "its")
    return f"{made} that it makes, and {whose} records" if carries_bytes(setting) else f"{made} that it makes"


def most_datasets(workload: Workload) -> int:
    """Returns into how many datasets the inputs can be cut: each has a row, and a file that is not cut is in one."""
    return max(1, workload.num_rows if workload.is_cut else min(workload.num_rows, workload.num_files))


def part_of(workload: Workload, num_datasets: int) -> Workload:
    """Returns the largest part of a workload that is cut into datasets, as many as it can be cut into at most."""
    number = min(num_datasets, most_datasets(workload))
    if number <= 1:
        return workload
    num_files = -(-workload.num_files // number)
    # With files that stay whole, one part may have one file more than the others.
    times, divisor = (1, number) if workload.is_cut else (num_files, workload.num_files)
    known = workload.num_input_splits
    return msgspec.structs.replace(
        workload,
        num_bytes=-(-workload.num_bytes * times // divisor),
        num_files=num_files,
        num_rows=-(-workload.num_rows * times // divisor),
        num_framed_bytes=-(-workload.num_framed_bytes * times // divisor),
        num_input_splits=None if known is None else -(-known * times // divisor),
    )


def _count_input_splits(work: Workload) -> int:
    if work.num_input_splits is not None:
        return max(1, work.num_input_splits)
    file_bytes = -(-work.num_bytes // work.num_files)
    each = count_splits(file_bytes) if work.is_cut else 1
    num_splits = work.num_files * each
    wanted, max_files = small_file_limits(work.num_bytes, num_splits)
    if each > 1 or file_bytes * SMALL_SHARE > wanted:
        return num_splits
    return -(-num_splits // max(1, min(max_files, -(-wanted // max(1, file_bytes)))))


def _divided(work: Workload, setting: Setting) -> list[tuple[str, int, int]]:
    """Returns name, examples and framed bytes of every split; all of them add up."""
    found: list[tuple[str, int, int]] = []
    rows = framed = 0
    share = 0.0
    for position, split in enumerate(work.shares):
        share += split.fraction
        is_last = position == len(work.shares) - 1
        rows_until = work.num_rows if is_last else min(work.num_rows, int(work.num_rows * share))
        framed_until = (
            work.num_framed_bytes if is_last else min(work.num_framed_bytes, int(framed_of(work, rows_until)))
        )
        found.append((split.name, rows_until - rows, framed_until - framed))
        rows, framed = rows_until, framed_until
    return found


def framed_of(work: Workload, num_rows: int) -> int:
    """Returns the framed bytes of so many rows of average size."""
    return work.num_framed_bytes * num_rows // max(1, work.num_rows)


def _split(work: Workload, setting: Setting, name: str, num_rows: int, framed: int, num_runs: int) -> SplitForecast:
    fraction = 1 / work.ratio if setting.compression == "gzip" else 1.0
    if setting.num_shards is not None:
        num_shards = min(setting.num_shards, num_rows)
    else:
        num_shards = count_shards(
            num_examples=num_rows,
            num_bytes=framed,
            compressed_fraction=fraction,
            shard_bytes=setting.shard_bytes,
            max_record_bytes=min(work.max_record_bytes, max(1, framed)),
        )
    num_groups, max_group_bytes, num_units = _layout(work, setting, num_rows, framed, num_shards, num_runs)
    return SplitForecast(
        name=name,
        num_examples=num_rows,
        num_framed_bytes=framed,
        num_bytes=int(framed * fraction),
        num_shards=num_shards,
        num_groups=num_groups,
        max_group_bytes=max_group_bytes,
        num_units=num_units,
    )


def _layout(
    work: Workload, setting: Setting, num_rows: int, framed: int, num_shards: int, num_runs: int
) -> tuple[int, int, int]:
    """Returns the number of groups, the size of the largest, and the number of units, as if key ranges were even."""
    num_key_ranges = max(1, min((1 << KEY_RANGE_BITS) if setting.shuffle else num_runs, num_rows))
    group_bytes = choose_group_bytes(work.num_framed_bytes, shuffle=setting.shuffle)
    ranges_a_group = min(num_key_ranges, max(1, num_key_ranges * group_bytes // framed))
    num_groups = -(-num_key_ranges // ranges_a_group)
    max_group_bytes = -(-framed * ranges_a_group // num_key_ranges)
    shards_a_unit = -(-GROUPS_A_UNIT * max_group_bytes * num_shards // framed)
    return num_groups, max_group_bytes, -(-num_shards // shards_a_unit)


def _step_bytes(work: Workload, pieces: _Pieces) -> int:
    """Returns the bytes that one piece of work holds: reading makes a run, writing orders a group."""
    record = work.max_record_bytes
    reading = 2 * max(RUN_BYTES, record) + 4 * max(BATCH_BYTES, record)
    mean_row = max(1, work.num_framed_bytes // max(1, work.num_rows))
    group = max((s.max_group_bytes for s in pieces.splits), default=0)
    writing = group + group // mean_row * _ORDER_ROW_BYTES + 4 * max(BLOCK_BYTES, record)
    return max(reading, writing + pieces.unit_segments * _SEGMENT_OBJECT_BYTES)


def _unit_bytes(splits: tuple[SplitForecast, ...]) -> int:
    """Returns the records that one piece of the writing step is sent."""
    return max((s.num_framed_bytes // s.num_units + s.max_group_bytes for s in splits), default=0)


def _run_reads(setting: Setting, num_splits: int) -> int:
    """Returns how often a run in a store is asked for: by the layout, for its index and samples, and to be cut."""
    samples = 0 if setting.num_shards is not None or setting.compression == "none" else MAX_SAMPLES
    return _INDEX_READS * (1 + (num_splits if samples else 0)) + samples * num_splits * _SEGMENT_READS + 1


def _disk_bytes(setting: Setting, spooled: int, pieces: _Pieces) -> int:
    # The spool of several machines lies where all of them can read it; each makes its shards on its own disk, from
    # chunks that are beside them. There are never more at work than there are pieces.
    is_carried = carries_bytes(setting)
    at_once = setting.num_workers if is_one_machine(setting) else pieces_a_worker(setting)
    piece = pieces.shard_bytes + (_unit_bytes(pieces.splits) if is_carried else 0)
    made = min(at_once, pieces.num_units) * piece
    if is_carried or not is_one_machine(setting):
        return made
    return spooled + (pieces.num_bytes if setting.store == "local" else made)
