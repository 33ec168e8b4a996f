"""The conversion as a Beam pipeline. Only descriptors travel through it; bytes lie in the spool.

    input splits -> ExtractSplits -> LayOutShards -> WriteGroups -> JoinPieces -> CommitDataset

Every transform wraps the function of `shardkit.conversion` that has its name in snake case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import msgspec

from beam_pipelines.failures import reported
from shardkit.conversion.commit import commit_dataset
from shardkit.conversion.extract import Extracted, extract_split, find_extracted
from shardkit.conversion.layout import load_layout, plan_layout, runs_of, segments_of_run, split_position
from shardkit.conversion.plan import Plan, load_plan, write_whole
from shardkit.conversion.progress import Progress
from shardkit.conversion.shard_file import Piece
from shardkit.conversion.spool import Segment
from shardkit.conversion.write import join_pieces, write_group
from shardkit.errors import StorageError
from shardkit.manifest import ShardInfo
from shardkit.planning import SplitLayout

COMMITTED_FILE = "committed.msgpack"

GroupKey = tuple[int, int]


def convert_pipeline(pipeline: beam.Pipeline, plan_path: str) -> None:
    """Adds the whole conversion of a stored plan to a pipeline."""
    plan = load_plan(plan_path)
    # Bundles are dealt round-robin and never rebalanced: the largest first evens them out.
    order = sorted(plan.input_splits, key=lambda s: -s.num_bytes)
    extracted = (
        pipeline
        | "List input splits" >> beam.Create([s.index for s in order])
        | "Deal input splits" >> beam.Reshuffle()
        | ExtractSplits(plan_path)
    )
    layout = extracted | LayOutShards(plan_path)
    segments = extracted | "Find segments" >> beam.FlatMap(
        find_segments, plan_path, beam.pvalue.AsSingleton(layout)
    ).with_output_types(tuple[GroupKey, bytes])
    written = segments | "Group segments" >> beam.GroupByKey() | WriteGroups(plan_path)
    joined = written.pieces | "Group pieces" >> beam.GroupByKey() | JoinPieces(plan_path)
    _ = (written.shards, joined) | "Gather shards" >> beam.Flatten() | CommitDataset(plan_path)


class _PlannedDoFn(beam.DoFn):
    """A step that knows where the plan is stored."""

    def __init__(self, plan_path: str) -> None:
        self._plan_path = plan_path

    def setup(self) -> None:
        self._plan = load_plan(self._plan_path)
        self._progress = Progress(self._plan.work_path("progress"))


class _ExtractSplit(_PlannedDoFn):
    def process(self, input_split_index: int) -> Iterator[int]:
        with reported(self._plan):
            extract_split(self._plan, input_split_index, self._progress)
        yield input_split_index


class _WriteGroup(_PlannedDoFn):
    def process(self, element: tuple[GroupKey, Iterable[bytes]]) -> Iterator[Any]:
        (position, group), encoded = element
        with reported(self._plan):
            split = _split_layout(self._plan, position)
            segments = [msgspec.msgpack.decode(s, type=Segment) for s in encoded]
            done = write_group(self._plan, split, group, segments, self._progress)
        for shard in done.shards:
            yield beam.pvalue.TaggedOutput("shards", msgspec.msgpack.encode(shard))
        for piece in done.pieces:
            yield beam.pvalue.TaggedOutput("pieces", ((position, piece.shard_index), msgspec.msgpack.encode(piece)))


class _JoinPieces(_PlannedDoFn):
    def process(self, element: tuple[GroupKey, Iterable[bytes]]) -> Iterator[bytes]:
        (position, _), encoded = element
        with reported(self._plan):
            split = _split_layout(self._plan, position)
            pieces = [msgspec.msgpack.decode(p, type=Piece) for p in encoded]
            info = join_pieces(self._plan, split, pieces)
        yield msgspec.msgpack.encode(info)


class _PlannedTransform(beam.PTransform):
    """A transform whose steps know where the plan is stored."""

    def __init__(self, plan_path: str) -> None:
        super().__init__()
        self._plan_path = plan_path


class ExtractSplits(_PlannedTransform):
    """Positions of input splits -> the same positions, once their rows lie in the spool."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return pcoll | "Extract" >> beam.ParDo(_ExtractSplit(self._plan_path)).with_output_types(int)


class LayOutShards(_PlannedTransform):
    """Positions of all input splits -> one element, once the layout is stored."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return (
            pcoll
            | "Gather splits" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Lay out" >> beam.Map(lay_out_shards, self._plan_path)
        )


class WriteGroups(_PlannedTransform):
    """(split, group) with segments -> outputs `shards` (rows) and `pieces` by (split, shard)."""

    def expand(self, pcoll: beam.PCollection) -> Any:
        return pcoll | "Write" >> beam.ParDo(_WriteGroup(self._plan_path)).with_outputs("shards", "pieces")


class JoinPieces(_PlannedTransform):
    """(split, shard) with pieces -> rows of shards."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return pcoll | "Join" >> beam.ParDo(_JoinPieces(self._plan_path)).with_output_types(bytes)


class CommitDataset(_PlannedTransform):
    """Rows of all shards -> nothing; the manifest exists afterwards."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return (
            pcoll
            | "Gather rows" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Commit" >> beam.Map(commit_shards, self._plan_path)
        )


def lay_out_shards(input_split_indices: list[int], plan_path: str) -> int:
    """Stores the layout and returns the number of input splits that it rests on."""
    plan = load_plan(plan_path)
    with reported(plan):
        plan_layout(plan, _load_extracted(plan))
    return len(input_split_indices)


def find_segments(input_split_index: int, plan_path: str, _: int) -> Iterator[tuple[GroupKey, bytes]]:
    """Yields the segments of the runs of one input split by (split, group), once the layout is stored."""
    plan = load_plan(plan_path)
    with reported(plan):
        layout = load_layout(plan)
        extracted = _extracted(plan, input_split_index)
        found = [
            (key, msgspec.msgpack.encode(segment))
            for order, path in runs_of(plan, extracted)
            for key, segment in segments_of_run(plan, layout, order, path)
        ]
    yield from found


def commit_shards(rows: list[bytes], plan_path: str) -> None:
    """Commits the dataset and stores what was made for the command to show."""
    plan = load_plan(plan_path)
    with reported(plan):
        shards = [msgspec.msgpack.decode(row, type=ShardInfo) for row in rows]
        committed = commit_dataset(plan, load_layout(plan), _load_extracted(plan), shards)
        write_whole(plan.work_path(COMMITTED_FILE), msgspec.msgpack.encode(committed))


def _split_layout(plan: Plan, position: int) -> SplitLayout:
    return next(s for s in load_layout(plan).splits if split_position(plan, s.name) == position)


def _load_extracted(plan: Plan) -> list[Extracted]:
    return [_extracted(plan, s.index) for s in plan.input_splits]


def _extracted(plan: Plan, input_split_index: int) -> Extracted:
    extracted = find_extracted(plan, input_split_index)
    if extracted is None:
        raise StorageError(
            "a part of the spool has gone",
            where=plan.work_dir,
            state="Nothing was committed",
            next_step="Run the same command again",
        )
    return extracted
