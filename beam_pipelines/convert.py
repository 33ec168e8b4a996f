"""The conversion as a Beam pipeline. Only descriptors travel through it; bytes lie in the spool.

    input splits [-> FirstPassSplits -> MarkRows] -> ExtractSplits -> PlanShards -> WriteShards -> CommitDataset

Where workers share no disk, steps hand over their files in a store, and records go through the engine's shuffle:

    ... -> ExtractSplits -> PlanRuns -> CutChunks -> WriteShards -> CommitDataset

Every transform wraps a function of `shardkit.conversion.steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa

from beam_pipelines.metrics import PLANNED, CountedProgress, count
from beam_pipelines.threads import ThreadedDoFn
from shardkit.conversion.layout_math import Layout
from shardkit.conversion.plan import load_plan
from shardkit.conversion.shards.chunks import UnitKey
from shardkit.conversion.shards.layout import load_layout
from shardkit.conversion.steps import (
    commit,
    cut,
    extract,
    first_pass,
    mark,
    open_plan,
    ordered_splits,
    runs,
    segments,
    write,
)
from shardkit.dataset.manifest import ShardInfo

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
    # Grouping deals the keys out; every ParDo costs the runner 15 ms, and beam.Reshuffle is made of many.
    splits = (
        pipeline
        | "List input splits"
        >> beam.Create([(index, b"") for index in ordered_splits(plan)]).with_output_types(tuple[int, bytes])
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
        self._plan_path = plan_path

    def setup(self) -> None:
        self._progress: CountedProgress
        self._opened = open_plan(self._plan_path, self._num_threads, self._counted)

    def _counted(self, folder: Path) -> CountedProgress:
        self._progress = CountedProgress(folder)
        return self._progress

    def finish_bundle(self) -> Iterator[Any]:
        """Yields what the threads gave."""
        yield from super().finish_bundle()
        self._progress.flush()


class _ExtractSplit(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        extract(self._opened, element[0])
        yield _ALL, element[0]

    def finish_bundle(self) -> Iterator[Any]:
        """Yields what the threads gave."""
        yield from super().finish_bundle()
        # Nothing reads Arrow data from here on, and its pool would keep 50 MB until the end.
        pa.default_memory_pool().release_unused()


class _FirstPassSplit(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        first_pass(self._opened, element[0])
        yield _ALL, element[0]


class _MarkRows(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[int, bytes]]:
        mark(self._opened)
        for index in ordered_splits(self._opened.plan):
            yield index, b""


class _PlanRuns(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[int, bytes]]:
        yield from runs(self._opened)
        _count_planned(load_layout(self._opened.plan))


class _CutChunks(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[UnitKey, bytes]]:
        for raw in element[1]:
            yield from cut(self._opened, raw)


class _PlanShards(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[UnitKey, bytes]]:
        yield from segments(self._opened)
        _count_planned(load_layout(self._opened.plan))


class _WriteShards(_PlannedDoFn):
    def work(self, element: tuple[UnitKey, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        for shard in write(self._opened, element):
            yield _ALL, msgspec.msgpack.encode(shard)


class _CommitDataset(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[None]:
        rows = element[1]
        commit(self._opened, [msgspec.msgpack.decode(row, type=ShardInfo) for row in rows if row != _NO_SHARD])
        yield from ()


def _count_planned(layout: Layout) -> None:
    count({PLANNED: sum(split.num_bytes for split in layout.splits)})


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
