"""The steps of a conversion, each a function of an opened plan and an item. An engine calls them; none needs Beam.

    input splits [-> first_pass -> mark] -> extract -> layout -> write -> commit

Where workers share no disk, each step fetches files from a store and uploads its own, and `cut` gives the records:

    ... -> extract -> layout -> cut -> write -> commit

`convert_by` is the whole of it, by two verbs of an engine, `each` and `shuffled`. Each step counts its progress, and
leaves its error beside the plan.
"""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from shardkit.conversion.commit.commit import COMMITTED_FILE, commit_dataset
from shardkit.conversion.exchange import (
    fetch,
    fetch_folder,
    in_threads,
    receive_plan,
    remove_worker_folders,
    upload,
    upload_progress,
)
from shardkit.conversion.extract.extract import extract_split, fetch_extracted, forget_unfetched, load_extracted
from shardkit.conversion.extract.first_pass import mark_names, mark_rows, run_first_pass
from shardkit.conversion.extract.runs import Segment
from shardkit.conversion.extracted import Extracted, run_names, statistics_name
from shardkit.conversion.failures import reported
from shardkit.conversion.layout_math import Layout, write_units
from shardkit.conversion.plan import Plan, check_tools, load_plan, work_order, write_whole
from shardkit.conversion.progress import Progress
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
from shardkit.errors import BadInputError
from shardkit.runtime.process_limits import return_freed_memory

_RUNS_A_PORTION = 32


class Opened(NamedTuple):
    """The plan of a conversion, as one worker process has it.

    Attributes:
        plan: With the work folder of this process.
        num_threads: Steps that this process runs at the same time.
    """

    plan_path: str
    plan: Plan
    progress: Progress
    num_threads: int = 1


Step = Callable[[Opened, Any], Any]
Each = Callable[[Step, Sequence[Any]], list[Any]]
"""Calls a step with each of the items, anywhere and in any order, and returns the results in the order of the items."""
Shuffled = Callable[[Step, Step, Sequence[Any], Sequence[UnitKey]], list[Any]]
"""Calls a step that yields keys and values with each of the items, and another with each of the keys and an iterable
of its values; keys without values may be left out. Returns the results of the second step in any order."""


def open_plan(plan_path: str, num_threads: int = 1, progress: Callable[[Path], Progress] = Progress) -> Opened:
    """Opens a stored plan for the steps of this process.

    Raises:
        UsageError: If this process has other versions of shardkit or its libraries than the plan needs.
        StorageError: If the plan cannot be read.
    """
    with reported(plan_path):
        check_tools(plan_path)
        plan = load_plan(plan_path)
        if plan.exchange is not None:
            plan = receive_plan(plan_path)
    return Opened(plan_path, plan, progress(plan.work_path("progress")), max(1, num_threads))


_opening = threading.Lock()


@functools.lru_cache(maxsize=4)
def _opened_here(plan_path: str) -> Opened:
    return_freed_memory()
    return open_plan(plan_path)


def call_step(plan_path: str, step: Step, item: Any) -> Any:
    """Calls a step in a worker process of an engine, which opens the plan once for all steps and threads."""
    with _opening:
        opened = _opened_here(plan_path)
    return step(opened, item)


def close_plan(plan_path: str) -> None:
    """Forgets a plan in a worker process that lives on when its conversion has ended."""
    _opened_here.cache_clear()
    remove_worker_folders(plan_path)


def convert_by(opened: Opened, each: Each, shuffled: Shuffled | None = None) -> None:
    """Makes the dataset of a plan by an engine's ways of calling steps.

    Args:
        shuffled: Groups what a step yields for another one; needed where workers share no disk.

    Raises:
        ShardkitError: What a step raised.
    """
    order = ordered_splits(opened.plan)
    if opened.plan.recipe.reads_twice:
        each(first_pass, order)
        mark(opened)
    each(extract, order)
    if opened.plan.exchange is None:
        units: dict[UnitKey, list[bytes]] = {}
        for key, packed in segments(opened):
            units.setdefault(key, []).append(packed)
        shards = each(write, list(units.items()))
    else:
        assert shuffled is not None
        items = [encoded for _, encoded in runs(opened)]
        shards = shuffled(cut, write, items, _unit_keys(opened.plan))
    commit(opened, [shard for part in shards for shard in part])


def ordered_splits(plan: Plan) -> list[int]:
    """Returns the positions of all input splits, those with the most work first."""
    return [input_split.index for input_split in work_order(plan.input_splits, plan.files)]


def first_pass(opened: Opened, input_split_index: int) -> None:
    """Reads the keys of an input split's rows, which `mark` compares with those of all others."""
    plan = opened.plan
    with _step(opened):
        record = f"survey/{input_split_index}.msgpack"
        fetch(plan, [record])
        run_first_pass(plan, input_split_index, opened.progress)
        names = [f"survey/{p.name}" for p in plan.work_path("survey").glob(f"{input_split_index}.*")]
        upload(plan, [*sorted(set(names) - {record}), record], is_kept=False)


def mark(opened: Opened) -> None:
    """Stores what becomes of each row, once the first pass has read all."""
    plan = opened.plan
    with _step(opened):
        fetch_folder(plan, "survey")
        mark_rows(plan)
        in_threads(lambda s: upload(plan, mark_names(s.index)), plan.input_splits)


def extract(opened: Opened, input_split_index: int) -> None:
    """Reads the rows of an input split into runs of records in the spool."""
    plan = opened.plan
    with _step(opened):
        record = f"extract/{input_split_index}.msgpack"
        fetch(plan, [record, f"survey/{input_split_index}.msgpack", *mark_names(input_split_index)])
        extracted = extract_split(plan, input_split_index, opened.progress)
        made = [*run_names(extracted), f"rejected/{input_split_index}.jsonl", statistics_name(input_split_index)]
        upload(plan, [*made, record], is_kept=False)


def make_layout(opened: Opened) -> tuple[Layout, list[Extracted]]:
    """Stores the layout of all shards, and returns it with what each input split gave."""
    plan = opened.plan
    with _step(opened):
        # Nothing reads Arrow data from here on, and its pool would keep 50 MB until the end.
        pa.default_memory_pool().release_unused()
        fetch_extracted(plan)
        extracted = load_extracted(plan)
        try:
            check_bad_rows(plan, extracted)
        except BadInputError:
            forget_unfetched(plan, extracted)
            raise
        layout = plan_layout(plan, extracted, opened.num_threads)
        upload(plan, [LAYOUT_FILE])
    return layout, extracted


def segments(opened: Opened) -> Iterator[tuple[UnitKey, bytes]]:
    """Lays the shards out, and yields where the records of each unit of them are, in portions by unit."""
    layout, extracted = make_layout(opened)
    with _step(opened):
        all_runs = [run for part in extracted for run in runs_of(opened.plan, part)]
        # Together, because every element of an engine has its price; in portions, because the whole may be large.
        for first in range(0, len(all_runs), _RUNS_A_PORTION):
            found: dict[UnitKey, list[Segment]] = {}
            for order, path in all_runs[first : first + _RUNS_A_PORTION]:
                for key, segment in segments_of_run(opened.plan, layout, order, path):
                    found.setdefault(key, []).append(segment)
            yield from ((key, _pack(opened.plan, own)) for key, own in found.items())


def runs(opened: Opened) -> Iterator[tuple[int, bytes]]:
    """Lays the shards out, and yields where the runs of each input split are, for `cut`."""
    _, extracted = make_layout(opened)
    with _step(opened):
        for part in extracted:
            if found := runs_of(opened.plan, part):
                yield part.input_split_index, msgspec.msgpack.encode(found)


def cut(opened: Opened, encoded: bytes) -> Iterator[tuple[UnitKey, bytes]]:
    """Yields the records of one item of `runs` in chunks of about 1 MiB, by the unit of shards that they belong to."""
    found = msgspec.msgpack.decode(encoded, type=list[tuple[int, str]])
    with _step(opened):
        fetch(opened.plan, [LAYOUT_FILE])
        for key, chunk in cut_chunks(opened.plan, load_layout(opened.plan), found):
            opened.progress.add(num_carried_bytes=len(chunk))
            yield key, chunk


def write(opened: Opened, item: tuple[UnitKey, Iterable[bytes]]) -> list[ShardInfo]:
    """Writes a unit of shards from the segments, or where workers share no disk the chunks, of its records."""
    (position, unit_index), encoded = item
    plan = opened.plan
    with _step(opened):
        fetch(plan, [LAYOUT_FILE])
        split = next(s for s in load_layout(plan).splits if split_position(plan, s.name) == position)
        units = write_units(split)
        unit = units[unit_index]
        records = [shard_record_name(split, i) for i in range(unit.first_shard, unit.stop_shard)]
        fetch(plan, records)
        with _segments_in(plan, f"{position}-{unit_index}", encoded) as found:
            # With few units some threads get no unit. They compress blocks.
            num_threads = opened.num_threads if len(units) < 2 * opened.num_threads else 1
            shards = list(write_shards(plan, split, unit, found, opened.progress, num_threads))
        upload(plan, records)
    return shards


def commit(opened: Opened, shards: Sequence[ShardInfo]) -> None:
    """Makes the shards a version of the dataset."""
    plan = opened.plan
    with _step(opened):
        fetch_extracted(plan)
        fetch_folder(plan, "rejected")
        fetch(plan, [LAYOUT_FILE])
        committed = commit_dataset(plan, load_layout(plan), load_extracted(plan), shards)
        write_whole(plan.work_path(COMMITTED_FILE), msgspec.msgpack.encode(committed))
        upload(plan, [COMMITTED_FILE])


@contextmanager
def _step(opened: Opened) -> Iterator[None]:
    with reported(opened.plan_path, opened.plan.work_dir):
        yield
        upload_progress(opened.plan)


@contextmanager
def _segments_in(plan: Plan, name: str, encoded: Iterable[bytes]) -> Iterator[list[Segment]]:
    if plan.exchange is None:
        yield [segment for packed in encoded for segment in _unpack(plan, packed)]
        return
    path = plan.work_path("tmp", f"{name}.{secrets.token_hex(4)}.chunks")
    try:
        yield store_chunks(encoded, path)
    finally:
        path.unlink(missing_ok=True)


def _pack(plan: Plan, found: list[Segment]) -> bytes:
    # Paths lose their common start: engines keep every segment in memory, and there are runs x groups.
    base = f"{plan.work_path()}/"
    return msgspec.msgpack.encode([msgspec.structs.replace(s, path=s.path.removeprefix(base)) for s in found])


def _unpack(plan: Plan, packed: bytes) -> list[Segment]:
    found = msgspec.msgpack.decode(packed, type=list[Segment])
    return [msgspec.structs.replace(s, path=str(plan.work_path(s.path))) for s in found]


def _unit_keys(plan: Plan) -> list[UnitKey]:
    """Returns the keys of all units of shards, once they are laid out."""
    found = [(split_position(plan, split.name), len(write_units(split))) for split in load_layout(plan).splits]
    return [(position, number) for position, num_units in found for number in range(num_units)]
