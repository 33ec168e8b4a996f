"""The conversion as a Beam pipeline. Only descriptors travel through it; bytes are in the spool.

    input splits [-> First pass -> Mark rows] -> Extract -> Lay out -> Write -> Commit

Where workers share no disk, steps hand over their files in a store, and records go through the engine's shuffle:

    ... -> Extract -> Lay out -> Cut -> Write -> Commit

Each step is a function of `shardkit.conversion.steps`. A DoFn gives it the plan and names its results for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa

from beam_pipelines.metrics import PLANNED, CountedProgress, count
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


def convert_pipeline(pipeline: beam.Pipeline, plan_path: str) -> None:
    """Adds the whole conversion of a stored plan to a pipeline.

    Args:
        plan_path: Of the plan, where every worker can read it.
    """
    plan = load_plan(plan_path)
    # Grouping deals the keys out; every ParDo costs a runner 15 ms, and beam.Reshuffle is made of many.
    keys = [(index, b"") for index in ordered_splits(plan)]
    splits = (
        pipeline
        | "List input splits" >> beam.Create(keys).with_output_types(tuple[int, bytes])
        | "Deal input splits" >> beam.GroupByKey()
    )
    if plan.recipe.reads_twice:
        splits = (
            splits
            | "First pass" >> beam.ParDo(_FirstPass(plan_path)).with_output_types(tuple[int, int])
            | "Gather first pass" >> beam.GroupByKey()
            | "Mark rows" >> beam.ParDo(_Mark(plan_path)).with_output_types(tuple[int, bytes])
            | "Deal input splits again" >> beam.GroupByKey()
        )
    extracted = splits | "Extract" >> beam.ParDo(_Extract(plan_path)).with_output_types(tuple[int, int])
    if plan.recipe.allow_empty:
        # Without rows nothing would come this way, and nothing would be committed.
        no_split = pipeline | "No input split" >> beam.Create([(_ALL, _NO_SPLIT)]).with_output_types(tuple[int, int])
        extracted = (extracted, no_split) | "Input splits or none" >> beam.Flatten()
    gathered = extracted | "Gather input splits" >> beam.GroupByKey()
    if plan.exchange is None:
        parts = gathered | "Lay out" >> beam.ParDo(_Segments(plan_path)).with_output_types(tuple[UnitKey, bytes])
    else:
        parts = (
            gathered
            | "Lay out" >> beam.ParDo(_Runs(plan_path)).with_output_types(tuple[int, bytes])
            | "Deal runs" >> beam.GroupByKey()
            | "Cut" >> beam.ParDo(_Cut(plan_path)).with_output_types(tuple[UnitKey, bytes])
        )
    shards = (
        parts
        | "Gather parts" >> beam.GroupByKey()
        | "Write" >> beam.ParDo(_Write(plan_path)).with_output_types(tuple[int, bytes])
    )
    if plan.recipe.allow_empty:
        no_shard = pipeline | "No shard" >> beam.Create([(_ALL, _NO_SHARD)]).with_output_types(tuple[int, bytes])
        shards = (shards, no_shard) | "Shards or none" >> beam.Flatten()
    _ = shards | "Gather shards" >> beam.GroupByKey() | "Commit" >> beam.ParDo(_Commit(plan_path))


class _PlannedDoFn(beam.DoFn):
    """A step that knows where the plan is stored."""

    def __init__(self, plan_path: str) -> None:
        self._plan_path = plan_path

    def setup(self) -> None:
        self._progress: CountedProgress
        self._opened = open_plan(self._plan_path, progress=self._counted)

    def _counted(self, folder: Path) -> CountedProgress:
        self._progress = CountedProgress(folder)
        return self._progress

    def finish_bundle(self) -> None:
        """Counts what threads of the step did, in Beam's metrics."""
        self._progress.flush()


class _FirstPass(_PlannedDoFn):
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        first_pass(self._opened, element[0])
        yield _ALL, element[0]


class _Mark(_PlannedDoFn):
    def process(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[int, bytes]]:
        mark(self._opened)
        for index in ordered_splits(self._opened.plan):
            yield index, b""


class _Extract(_PlannedDoFn):
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        extract(self._opened, element[0])
        yield _ALL, element[0]

    def finish_bundle(self) -> None:
        """Gives back what Arrow's pool would keep until the end: nothing reads Arrow data from here on."""
        super().finish_bundle()
        pa.default_memory_pool().release_unused()


class _Segments(_PlannedDoFn):
    def process(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[UnitKey, bytes]]:
        yield from segments(self._opened)
        self._count_planned()

    def _count_planned(self) -> None:
        count({PLANNED: sum(split.num_bytes for split in load_layout(self._opened.plan).splits)})


class _Runs(_Segments):
    def process(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[Any, bytes]]:
        yield from runs(self._opened)
        self._count_planned()


class _Cut(_PlannedDoFn):
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[UnitKey, bytes]]:
        for encoded in element[1]:
            yield from cut(self._opened, encoded)


class _Write(_PlannedDoFn):
    def process(self, element: tuple[UnitKey, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        for shard in write(self._opened, element):
            yield _ALL, msgspec.msgpack.encode(shard)


class _Commit(_PlannedDoFn):
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[None]:
        rows = [row for row in element[1] if row != _NO_SHARD]
        commit(self._opened, [msgspec.msgpack.decode(row, type=ShardInfo) for row in rows])
        yield from ()
