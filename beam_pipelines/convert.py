"""The conversion as a Beam pipeline. Only descriptors travel through it; bytes lie in the spool.

    input splits -> ExtractSplits -> LayOutShards -> WriteGroups -> JoinPieces -> CommitDataset

Every transform wraps the function of `shardkit.conversion` that has its name in snake case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa

from beam_pipelines.failures import reported
from beam_pipelines.threads import ThreadedDoFn
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
_RUNS_A_PORTION = 128
_ALL = 0  # The one key under which everything comes together.


def convert_pipeline(pipeline: beam.Pipeline, plan_path: str, num_threads: int = 1) -> None:
    """Adds the whole conversion of a stored plan to a pipeline.

    Args:
        pipeline: To add to.
        plan_path: Of the plan, where every worker can read it.
        num_threads: Pieces of work that one worker process does at the same time.
    """
    plan = load_plan(plan_path)
    # Keys are dealt to processes in turn and never rebalanced: the largest first evens them out.
    order = sorted(plan.input_splits, key=lambda s: -s.num_bytes)
    # Grouping deals the keys out; every ParDo costs the runner 15 ms, and beam.Reshuffle is made of many.
    extracted = (
        pipeline
        | "List input splits" >> beam.Create([(s.index, b"") for s in order]).with_output_types(tuple[int, bytes])
        | "Deal input splits" >> beam.GroupByKey()
        | ExtractSplits(plan_path, num_threads)
    )
    segments = extracted | "Gather input splits" >> beam.GroupByKey() | LayOutShards(plan_path, num_threads)
    written = segments | "Group segments" >> beam.GroupByKey() | WriteGroups(plan_path, num_threads)
    joined = written.pieces | "Group pieces" >> beam.GroupByKey() | JoinPieces(plan_path, num_threads)
    shards = (written.shards, joined) | "All shards" >> beam.Flatten()
    _ = shards | "Gather shards" >> beam.GroupByKey() | CommitDataset(plan_path)


class _PlannedDoFn(ThreadedDoFn):
    """A step that knows where the plan is stored."""

    def __init__(self, plan_path: str, num_threads: int = 1) -> None:
        super().__init__(num_threads)
        self._num_threads = num_threads
        self._plan_path = plan_path

    def setup(self) -> None:
        self._plan = load_plan(self._plan_path)
        self._progress = Progress(self._plan.work_path("progress"))


class _ExtractSplit(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        input_split_index, _ = element
        with reported(self._plan):
            extract_split(self._plan, input_split_index, self._progress)
        yield _ALL, input_split_index

    def finish_bundle(self) -> Iterator[Any]:
        """Yields what the threads gave."""
        yield from super().finish_bundle()
        # Nothing reads Arrow data from here on, and its pool would keep 50 MB until the end.
        pa.default_memory_pool().release_unused()


class _LayOutShards(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[int]]) -> Iterator[tuple[GroupKey, bytes]]:
        with reported(self._plan):
            extracted = _load_extracted(self._plan)
            layout = plan_layout(self._plan, extracted, self._num_threads)
            runs = [run for part in extracted for run in runs_of(self._plan, part)]
            # Together, because every element has its price; in portions, because the whole may be large.
            for first in range(0, len(runs), _RUNS_A_PORTION):
                found: dict[GroupKey, list[Segment]] = {}
                for order, path in runs[first : first + _RUNS_A_PORTION]:
                    for key, segment in segments_of_run(self._plan, layout, order, path):
                        found.setdefault(key, []).append(segment)
                yield from ((key, msgspec.msgpack.encode(segments)) for key, segments in found.items())


class _WriteGroup(_PlannedDoFn):
    def work(self, element: tuple[GroupKey, Iterable[bytes]]) -> Iterator[Any]:
        (position, group), encoded = element
        with reported(self._plan):
            split = _split_layout(self._plan, position)
            segments = [s for part in encoded for s in msgspec.msgpack.decode(part, type=list[Segment])]
            done = write_group(self._plan, split, group, segments, self._progress)
        for shard in done.shards:
            yield beam.pvalue.TaggedOutput("shards", (_ALL, msgspec.msgpack.encode(shard)))
        for piece in done.pieces:
            yield beam.pvalue.TaggedOutput("pieces", ((position, piece.shard_index), msgspec.msgpack.encode(piece)))


class _JoinPieces(_PlannedDoFn):
    def work(self, element: tuple[GroupKey, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        (position, _), encoded = element
        with reported(self._plan):
            split = _split_layout(self._plan, position)
            pieces = [msgspec.msgpack.decode(p, type=Piece) for p in encoded]
            info = join_pieces(self._plan, split, pieces)
        yield _ALL, msgspec.msgpack.encode(info)


class _CommitDataset(_PlannedDoFn):
    def work(self, element: tuple[int, Iterable[bytes]]) -> Iterator[None]:
        _, rows = element
        with reported(self._plan):
            shards = [msgspec.msgpack.decode(row, type=ShardInfo) for row in rows]
            committed = commit_dataset(self._plan, load_layout(self._plan), _load_extracted(self._plan), shards)
            write_whole(self._plan.work_path(COMMITTED_FILE), msgspec.msgpack.encode(committed))
        yield from ()


class _PlannedTransform(beam.PTransform):
    """A transform whose steps know where the plan is stored."""

    def __init__(self, plan_path: str, num_threads: int = 1) -> None:
        super().__init__()
        self._plan_path = plan_path
        self._num_threads = num_threads


class ExtractSplits(_PlannedTransform):
    """Positions of input splits, as keys -> the same positions under one key, once their rows lie in the spool."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _ExtractSplit(self._plan_path, self._num_threads)
        return pcoll | "Extract" >> beam.ParDo(step).with_output_types(tuple[int, int])


class LayOutShards(_PlannedTransform):
    """The positions of all input splits -> segments by (split, group), once the layout is stored."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return pcoll | "Lay out" >> beam.ParDo(_LayOutShards(self._plan_path, self._num_threads)).with_output_types(
            tuple[GroupKey, bytes]
        )


class WriteGroups(_PlannedTransform):
    """(split, group) with segments -> outputs `shards` (rows, under one key) and `pieces` by (split, shard)."""

    def expand(self, pcoll: beam.PCollection) -> Any:
        step = _WriteGroup(self._plan_path, self._num_threads)
        return pcoll | "Write" >> beam.ParDo(step).with_outputs("shards", "pieces")


class JoinPieces(_PlannedTransform):
    """(split, shard) with pieces -> rows of shards, under one key."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        step = _JoinPieces(self._plan_path, self._num_threads)
        return pcoll | "Join" >> beam.ParDo(step).with_output_types(tuple[int, bytes])


class CommitDataset(_PlannedTransform):
    """The rows of all shards -> nothing; the manifest exists afterwards."""

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        return pcoll | "Commit" >> beam.ParDo(_CommitDataset(self._plan_path))


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
