"""The conversion as a Beam pipeline. Only descriptors travel through it; bytes lie in the spool.

    input splits [-> FirstPassSplits -> MarkRows] -> ExtractSplits -> PlanShards -> WriteShards -> CommitDataset

Where workers share no disk, steps hand over their files in a store, and records go through the engine's shuffle:

    ... -> ExtractSplits -> PlanRuns -> CutChunks -> WriteShards -> CommitDataset

Every transform wraps the function of `shardkit.conversion` that has its name in snake case.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa

from beam_pipelines.failures import reported
from beam_pipelines.metrics import PLANNED, CountedProgress, count
from beam_pipelines.threads import ThreadedDoFn
from shardkit.conversion.commit.commit import COMMITTED_FILE, commit_dataset
from shardkit.conversion.exchange import fetch, fetch_folder, hand_over, hand_over_progress, in_threads, receive_plan
from shardkit.conversion.extract.extract import extract_split, fetch_extracted, load_extracted
from shardkit.conversion.extract.first_pass import mark_names, mark_rows, run_first_pass
from shardkit.conversion.extract.runs import Segment
from shardkit.conversion.extracted import Extracted, run_names, statistics_name
from shardkit.conversion.layout_math import Layout, SplitLayout, write_units
from shardkit.conversion.plan import Plan, check_tools, load_plan, work_order, write_whole
from shardkit.conversion.rows.bad_rows import check_bad_rows
from shardkit.conversion.shards.chunks import UnitKey, cut_chunks, store_chunks
from shardkit.conversion.shards.layout import (
    LAYOUT_FILE,
    load_layout,
    plan_layout,
    runs_of,
    segments_of_run,
    split_position,
)
from shardkit.conversion.shards.shard_file import shard_record_name
from shardkit.conversion.shards.write import write_shards
from shardkit.dataset.manifest import ShardInfo

_RUNS_A_PORTION = 32
_ALL = 0  # The one key under which everything comes together.
_NO_SPLIT, _NO_SHARD = -1, b""


def convert_pipeline(pipeline: beam.Pipeline, plan_path: str, num_threads: int = 1) -> None:
    """Adds the whole conversion of a stored plan to a pipeline.

    Args:
        pipeline: To add to.
        plan_path: Of the plan, where every worker can read it.
        num_threads: Pieces of work that one worker process does at the same time; 0 leaves that to the engine.
    """
    plan = load_plan(plan_path)
    # Keys are dealt to processes in turn and never rebalanced.
    order = work_order(plan.input_splits, plan.files)
    # Grouping deals the keys out; every ParDo costs the runner 15 ms, and beam.Reshuffle is made of many.
    splits = (
        pipeline
        | "List input splits" >> beam.Create([(s.index, b"") for s in order]).with_output_types(tuple[int, bytes])
        | "Deal input splits" >> beam.GroupByKey()
    )
    if plan.recipe.reads_twice:
        read_once = splits | FirstPassSplits(plan_path, num_threads)
        marked = read_once | "Gather first pass" >> beam.GroupByKey() | MarkRows(plan_path, num_threads)
        splits = marked | "Deal input splits again" >> beam.GroupByKey()
    extracted = splits | ExtractSplits(plan_path, num_threads)
    if plan.recipe.allow_empty:
        # Without rows nothing would come this way, and nothing would be committed.
        no_split = pipeline | "No input split" >> beam.Create([(_ALL, _NO_SPLIT)]).with_output_types(tuple[int, int])
        extracted = (extracted, no_split) | "Input splits or none" >> beam.Flatten()
    gathered = extracted | "Gather input splits" >> beam.GroupByKey()
    if plan.exchange is None:
        segments = gathered | PlanShards(plan_path, num_threads)
    else:
        runs = gathered | PlanRuns(plan_path, num_threads) | "Deal runs" >> beam.GroupByKey()
        segments = runs | CutChunks(plan_path, num_threads)
    shards = segments | "Group segments" >> beam.GroupByKey() | WriteShards(plan_path, num_threads)
    if plan.recipe.allow_empty:
        no_shard = pipeline | "No shard" >> beam.Create([(_ALL, _NO_SHARD)]).with_output_types(tuple[int, bytes])
        shards = (shards, no_shard) | "Shards or none" >> beam.Flatten()
    _ = shards | "Gather shards" >> beam.GroupByKey() | CommitDataset(plan_path, num_threads)


class _PlannedDoFn(ThreadedDoFn):
    """A step that knows where the plan is stored."""

    def __init__(self, plan_path: str, num_threads: int) -> None:
        super().__init__(num_threads)
        self._threads_a_piece = max(1, num_threads)
        self._plan_path = plan_path

    def setup(self) -> None:
        with reported(self._plan_path):
            check_tools(self._plan_path)
            self._plan = load_plan(self._plan_path)
            if self._plan.exchange is not None:
                self._plan = receive_plan(self._plan_path)
        self._progress = CountedProgress(self._plan.work_path("progress"))

    def finish_bundle(self) -> Iterator[Any]:
        """Yields what the threads gave."""
        yield from super().finish_bundle()
        self._progress.flush()

    @contextmanager
    def _step(self) -> Iterator[None]:
        with reported(self._plan_path, self._plan.work_dir):
            yield
            hand_over_progress(self._plan)


class _ExtractSplit(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        input_split_index, _ = element
        record = f"extract/{input_split_index}.msgpack"
        with self._step():
            fetch(self._plan, [record, _first_pass_record(input_split_index), *mark_names(input_split_index)])
            extracted = extract_split(self._plan, input_split_index, self._progress)
            made = [*run_names(extracted), f"rejected/{input_split_index}.jsonl", statistics_name(input_split_index)]
            hand_over(self._plan, [*made, record], is_kept=False)
        yield _ALL, input_split_index

    def finish_bundle(self) -> Iterator[Any]:
        """Yields what the threads gave."""
        yield from super().finish_bundle()
        # Nothing reads Arrow data from here on, and its pool would keep 50 MB until the end.
        pa.default_memory_pool().release_unused()


class _FirstPassSplit(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        input_split_index, _ = element
        with self._step():
            fetch(self._plan, [_first_pass_record(input_split_index)])
            run_first_pass(self._plan, input_split_index, self._progress)
            names = [f"survey/{p.name}" for p in self._plan.work_path("survey").glob(f"{input_split_index}.*")]
            record = _first_pass_record(input_split_index)
            hand_over(self._plan, [*sorted(set(names) - {record}), record], is_kept=False)
        yield _ALL, input_split_index


class _MarkRows(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[int, bytes]]:
        with self._step():
            fetch_folder(self._plan, "survey")
            mark_rows(self._plan)
            in_threads(lambda s: hand_over(self._plan, mark_names(s.index)), self._plan.input_splits)
        for input_split in work_order(self._plan.input_splits, self._plan.files):
            yield input_split.index, b""


class _PlanLayout(_PlannedDoFn):
    """Stores the layout of all shards."""

    def _plan_layout(self) -> tuple[Layout, list[Extracted]]:
        fetch_extracted(self._plan)
        extracted = load_extracted(self._plan)
        check_bad_rows(self._plan, extracted)
        layout = plan_layout(self._plan, extracted, self._threads_a_piece)
        count({PLANNED: sum(split.num_bytes for split in layout.splits)})
        hand_over(self._plan, [LAYOUT_FILE])
        return layout, extracted


class _PlanRuns(_PlanLayout):
    def work(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[int, bytes]]:
        with self._step():
            _, extracted = self._plan_layout()
            for part in extracted:
                if runs := runs_of(self._plan, part):
                    yield part.input_split_index, msgspec.msgpack.encode(runs)


class _CutChunks(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[UnitKey, bytes]]:
        _, encoded = element
        with self._step():
            fetch(self._plan, [LAYOUT_FILE])
            layout = load_layout(self._plan)
            for raw in encoded:
                runs = msgspec.msgpack.decode(raw, type=list[tuple[int, str]])
                for key, chunk in cut_chunks(self._plan, layout, runs):
                    self._progress.add(num_carried_bytes=len(chunk))
                    yield key, chunk


class _PlanShards(_PlanLayout):
    def work(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[UnitKey, bytes]]:
        with self._step():
            layout, extracted = self._plan_layout()
            runs = [run for part in extracted for run in runs_of(self._plan, part)]
            # Together, because every element has its price; in portions, because the whole may be large.
            for first in range(0, len(runs), _RUNS_A_PORTION):
                found: dict[UnitKey, list[Segment]] = {}
                for order, path in runs[first : first + _RUNS_A_PORTION]:
                    for key, segment in segments_of_run(self._plan, layout, order, path):
                        found.setdefault(key, []).append(segment)
                yield from ((key, _pack(self._plan, segments)) for key, segments in found.items())


class _WriteShards(_PlannedDoFn):
    def work(self, element: tuple[UnitKey, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        (position, unit_index), encoded = element
        with self._step():
            fetch(self._plan, [LAYOUT_FILE])
            split = _split_layout(self._plan, position)
            units = write_units(split)
            unit = units[unit_index]
            records = [shard_record_name(split, i) for i in range(unit.first_shard, unit.stop_shard)]
            fetch(self._plan, records)
            with self._segments(f"{position}-{unit_index}", encoded) as segments:
                # With few units some threads get no unit. They compress blocks.
                num_threads = self._threads_a_piece if len(units) < 2 * self._threads_a_piece else 1
                shards = write_shards(self._plan, split, unit, segments, self._progress, num_threads)
            hand_over(self._plan, records)
        for shard in shards:
            yield _ALL, msgspec.msgpack.encode(shard)

    @contextmanager
    def _segments(self, name: str, encoded: Iterable[bytes]) -> Iterator[list[Segment]]:
        if self._plan.exchange is None:
            yield [s for packed in encoded for s in _unpack(self._plan, packed)]
            return
        path = self._plan.work_path("tmp", f"{name}.{secrets.token_hex(4)}.chunks")
        try:
            yield store_chunks(encoded, path)
        finally:
            path.unlink(missing_ok=True)


class _CommitDataset(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[None]:
        _, rows = element
        with self._step():
            fetch_extracted(self._plan)
            fetch_folder(self._plan, "rejected")
            fetch(self._plan, [LAYOUT_FILE])
            shards = [msgspec.msgpack.decode(row, type=ShardInfo) for row in rows if row != _NO_SHARD]
            committed = commit_dataset(self._plan, load_layout(self._plan), load_extracted(self._plan), shards)
            write_whole(self._plan.work_path(COMMITTED_FILE), msgspec.msgpack.encode(committed))
            hand_over(self._plan, [COMMITTED_FILE])
        yield from ()


class _PlannedTransform(beam.PTransform):
    """A transform whose steps know where the plan is stored."""

    def __init__(self, plan_path: str, num_threads: int) -> None:
        super().__init__()
        self._plan_path = plan_path
        self._num_threads = num_threads


class ExtractSplits(_PlannedTransform):
    """Positions of input splits, as keys -> the same positions under one key, once their rows lie in the spool."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _ExtractSplit(self._plan_path, self._num_threads)
        return pcoll | "Extract" >> beam.ParDo(step).with_output_types(tuple[int, int])


class FirstPassSplits(_PlannedTransform):
    """Positions of input splits, as keys -> the same under one key, once the first pass has read their rows."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _FirstPassSplit(self._plan_path, self._num_threads)
        return pcoll | "First pass" >> beam.ParDo(step).with_output_types(tuple[int, int])


class MarkRows(_PlannedTransform):
    """The positions of all input splits -> the same, as keys, after the fate of their rows is stored."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _MarkRows(self._plan_path, min(1, self._num_threads))
        return pcoll | "Mark rows" >> beam.ParDo(step).with_output_types(tuple[int, bytes])


class PlanShards(_PlannedTransform):
    """The positions of all input splits -> segments by (split, unit), once the layout is stored."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return pcoll | "Plan layout" >> beam.ParDo(_PlanShards(self._plan_path, self._num_threads)).with_output_types(
            tuple[UnitKey, bytes]
        )


class PlanRuns(_PlannedTransform):
    """The positions of all input splits -> by input split where its runs lie, once the layout is stored."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _PlanRuns(self._plan_path, self._num_threads)
        return pcoll | "Plan layout" >> beam.ParDo(step).with_output_types(tuple[int, bytes])


class CutChunks(_PlannedTransform):
    """Runs of input splits -> chunks of about 1 MiB by (split, unit)."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _CutChunks(self._plan_path, self._num_threads)
        return pcoll | "Cut" >> beam.ParDo(step).with_output_types(tuple[UnitKey, bytes])


class WriteShards(_PlannedTransform):
    """(split, unit) with segments or chunks -> rows of shards, under one key."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _WriteShards(self._plan_path, self._num_threads)
        return pcoll | "Write" >> beam.ParDo(step).with_output_types(tuple[int, bytes])


class CommitDataset(_PlannedTransform):
    """The rows of all shards -> nothing; the manifest exists afterwards."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return pcoll | "Commit" >> beam.ParDo(_CommitDataset(self._plan_path, min(1, self._num_threads)))


def _pack(plan: Plan, segments: list[Segment]) -> bytes:
    # Paths lose their common start: the runner keeps every segment in memory, and there are runs x groups.
    base = f"{plan.work_path()}/"
    return msgspec.msgpack.encode([msgspec.structs.replace(s, path=s.path.removeprefix(base)) for s in segments])


def _unpack(plan: Plan, packed: bytes) -> list[Segment]:
    segments = msgspec.msgpack.decode(packed, type=list[Segment])
    return [msgspec.structs.replace(s, path=str(plan.work_path(s.path))) for s in segments]


def _first_pass_record(input_split_index: int) -> str:
    return f"survey/{input_split_index}.msgpack"


def _split_layout(plan: Plan, position: int) -> SplitLayout:
    return next(s for s in load_layout(plan).splits if split_position(plan, s.name) == position)
