"""Layout: from the indexes of all runs to every shard's cut points, before a byte of a shard is written."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from shardkit.conversion.extract.runs import (
    Segment,
    find_segments,
    loaded_segments,
    read_all_entries,
    read_run_entries,
    run_order,
)
from shardkit.conversion.extracted import Extracted, run_names
from shardkit.conversion.layout_math import (
    GroupLayout,
    Int64s,
    KeyRangeTotals,
    Layout,
    SplitLayout,
    block_bounds,
    check_num_shards,
    choose_group_bytes,
    count_shards,
    describe_shard_size,
    even_cuts,
    exact_cuts,
    form_groups,
    needs_exact_cuts,
    write_units,
)
from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.rows.bad_rows import bad_row_samples, count_damaged
from shardkit.conversion.shards.write import order_group
from shardkit.encoding.codec import BLOCK_BYTES, compress_block
from shardkit.errors import NoRowsError
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.units import format_count, format_number

LAYOUT_FILE = "layout.json"

# 24 windows of one block in the final order tell the compressed size to about 1 %.
MAX_SAMPLES = 24
# Small data is not compressed twice for it: a sixteenth, but never less than four windows.
_WINDOWS_A_SAMPLE = 16
_MIN_SAMPLES = 4

# Per key range, ascending: its number, examples, framed bytes.
_Counts = tuple[Int64s, Int64s, Int64s]
_NO_COUNTS = (np.array([], dtype=np.int64),) * 3


def plan_layout(plan: Plan, extracted: Sequence[Extracted], num_threads: int = 1) -> Layout:
    """Lays out all dataset splits and stores the layout in the work folder.

    Raises:
        NoRowsError: If there are no rows at all and there may not be none.
        UsageError: If a split cannot fill the wanted number of shards.
    """
    runs = sorted(run for e in extracted for run in runs_of(plan, e))
    splits: list[SplitLayout] = []
    notes: list[str] = []
    all_totals = _sum_key_ranges(runs, len(plan.recipe.splits))
    num_bytes = sum(int(t.num_bytes.sum()) for t in all_totals)
    group_bytes = choose_group_bytes(num_bytes, shuffle=plan.recipe.shuffle)
    for position, (share, totals) in enumerate(zip(plan.recipe.splits, all_totals, strict=True)):
        if len(totals.key_ranges) == 0:
            notes.append(f"split {share.name!r} got no {'new rows' if plan.base else 'rows and is left out'}")
            continue
        split, note = _plan_split_layout(plan, runs, position, totals, group_bytes, num_threads)
        splits.append(split)
        notes += [note] if note else []
    if not splits and not plan.recipe.allow_empty:
        raise NoRowsError("there would be no examples", why=_why_empty(plan, extracted))
    if plan.packing is not None and (num_tokens := plan.packing.length * sum(part.num_sequences for part in extracted)):
        filled = f"{sum(part.num_padding for part in extracted) / num_tokens:.1%}"
        notes.append(f"of {format_number(num_tokens, 'place')} in sequences {filled} fill up the last ones")
    layout = Layout(splits=tuple(splits), notes=tuple(notes))
    write_whole(plan.work_path(LAYOUT_FILE), msgspec.json.encode(layout))
    return layout


def _why_empty(plan: Plan, extracted: Sequence[Extracted]) -> str:
    def total(counts: str) -> int:
        return sum(sum(getattr(part, counts).values()) for part in extracted)

    samples = bad_row_samples(plan, extracted)
    listed = f": {'; '.join(samples)}" if samples else ""
    num_damaged = count_damaged(plan, extracted)
    if not total("rows_by_file"):
        return f"{format_number(num_damaged, 'file')} rejected whole{listed}" if listed else "the inputs hold no rows"
    parts = [
        f"{format_count(total(counts))} {words}"
        for counts, words in (
            ("rows_by_file", "rows in"),
            ("filtered_by_file", "filtered"),
            ("duplicates_by_file", "duplicates"),
            ("rejected_by_file", "rejected"),
        )
        if total(counts)
    ]
    if num_damaged:
        parts.append(f"{format_number(num_damaged, 'file')} rejected whole")
    return ", ".join(parts) + listed


def load_layout(plan: Plan) -> Layout:
    """Returns the layout that `plan_layout` stored."""
    return msgspec.json.decode(plan.work_path(LAYOUT_FILE).read_bytes(), type=Layout)


def segments_of_run(plan: Plan, layout: Layout, order: int, path: str) -> Iterator[tuple[tuple[int, int], Segment]]:
    """Yields the segments of one run, each with the positions of its dataset split (in the recipe) and of its unit."""
    entries = read_run_entries(path)
    for split in layout.splits:
        position = split_position(plan, split.name)
        units = write_units(split)
        # Units and segments are in the order of the groups; a group at a border belongs to two units.
        first_unit = 0
        for segment in find_segments(path, order, entries, position, split.groups):
            while units[first_unit].stop_group <= segment.group:
                first_unit += 1
            for i in range(first_unit, len(units)):
                if units[i].first_group > segment.group:
                    break
                yield (position, i), segment


def split_position(plan: Plan, name: str) -> int:
    """Returns the position of a dataset split in the recipe."""
    return [s.name for s in plan.recipe.splits].index(name)


def runs_of(plan: Plan, extracted: Extracted) -> list[tuple[int, str]]:
    """Returns order and path of the runs of one input split; where workers share no disk, they are in a store."""
    folder = plan.work_dir if plan.exchange is None else plan.exchange
    return [
        (run_order(extracted.input_split_index, i), storage.join(folder, name))
        for i, name in enumerate(run_names(extracted))
    ]


def _sum_key_ranges(runs: list[tuple[int, str]], num_positions: int) -> list[KeyRangeTotals]:
    found: list[_Counts] = [_NO_COUNTS] * num_positions
    largest = [0] * num_positions
    for entries in read_all_entries([path for _, path in runs]):
        for position, num_bytes in entries.max_record_bytes.items():
            own = entries.split_positions == position
            found[position] = _add(
                found[position], (entries.key_ranges[own], entries.num_examples[own], entries.sizes[own])
            )
            largest[position] = max(largest[position], num_bytes)
    return [
        KeyRangeTotals(key_ranges=b, num_examples=n, num_bytes=s, max_record_bytes=m)
        for (b, n, s), m in zip(found, largest, strict=True)
    ]


def _add(totals: _Counts, more: _Counts) -> _Counts:
    key_ranges, num_examples, num_bytes = (np.concatenate(pair) for pair in zip(totals, more, strict=True))
    order = np.argsort(key_ranges, kind="stable")
    key_ranges = key_ranges[order]
    firsts = np.flatnonzero(np.diff(key_ranges, prepend=-1))
    return key_ranges[firsts], np.add.reduceat(num_examples[order], firsts), np.add.reduceat(num_bytes[order], firsts)


def _plan_split_layout(
    plan: Plan,
    runs: list[tuple[int, str]],
    position: int,
    totals: KeyRangeTotals,
    group_bytes: int,
    num_threads: int,
) -> tuple[SplitLayout, str | None]:
    recipe, name = plan.recipe, plan.recipe.splits[position].name
    num_examples, num_bytes = int(totals.num_examples.sum()), int(totals.num_bytes.sum())
    groups = form_groups(totals, group_bytes)
    note = None
    if recipe.num_shards is not None:
        # An append may have a few rows only.
        num_shards = min(recipe.num_shards, num_examples) if plan.base else recipe.num_shards
        check_num_shards(name, num_shards, num_examples)
    else:
        assert recipe.shard_bytes is not None
        fraction = 1.0
        if recipe.compression != "none":
            fraction = _measure_compression(plan, runs, position, totals, num_threads)
        num_shards = count_shards(
            num_examples=num_examples,
            num_bytes=num_bytes,
            compressed_fraction=fraction,
            shard_bytes=recipe.shard_bytes,
            max_record_bytes=totals.max_record_bytes,
        )
        note = describe_shard_size(
            name,
            num_bytes=num_bytes,
            num_shards=num_shards,
            compressed_fraction=fraction,
            shard_bytes=recipe.shard_bytes,
        )
    if needs_exact_cuts(num_bytes, num_shards, totals.max_record_bytes):
        cuts = exact_cuts(_record_starts(plan, runs, position, groups), num_bytes, num_shards)
    else:
        cuts = even_cuts(num_bytes, num_shards)
    layout = SplitLayout(name=name, num_examples=num_examples, num_bytes=num_bytes, cuts=cuts, groups=groups)
    return layout, note


def _segments(runs: list[tuple[int, str]], position: int, groups: tuple[GroupLayout, ...]) -> list[list[Segment]]:
    by_group: list[list[Segment]] = [[] for _ in groups]
    for (order, path), entries in zip(runs, read_all_entries([path for _, path in runs]), strict=True):
        for segment in find_segments(path, order, entries, position, groups):
            by_group[segment.group].append(segment)
    return by_group


def _measure_compression(
    plan: Plan, runs: list[tuple[int, str]], position: int, totals: KeyRangeTotals, num_threads: int
) -> float:
    # Small groups stand for windows in the final order, and compress as well as the shards.
    windows = form_groups(totals, BLOCK_BYTES)
    num_samples = max(_MIN_SAMPLES, min(len(windows) // _WINDOWS_A_SAMPLE, MAX_SAMPLES))
    if len(windows) > num_samples:
        chosen = np.linspace(0, len(windows) - 1, num_samples).round().astype(int)
        windows = tuple(windows[i] for i in chosen)
    with worker_threads(num_threads, "compress") as pool:
        sizes = list(pool.map(functools.partial(_compress_head, plan), _segments(runs, position, windows)))
    return sum(compressed for _, compressed in sizes) / sum(framed for framed, _ in sizes)


def _compress_head(plan: Plan, segments: list[Segment]) -> tuple[int, int]:
    with loaded_segments(segments, max_bytes=BLOCK_BYTES) as loaded:
        ordered = order_group(loaded, shuffle=plan.recipe.shuffle)
        first, stop = block_bounds(ordered.sizes, BLOCK_BYTES)[0]
        block = ordered.join(first, stop)
    return len(block), len(compress_block(block, plan.recipe.compression, plan.recipe.compression_level))


def _record_starts(plan: Plan, runs: list[tuple[int, str]], position: int, groups: tuple[GroupLayout, ...]) -> Int64s:
    sizes: list[Int64s] = []
    for segments in _segments(runs, position, groups):
        with loaded_segments(segments) as loaded:
            sizes.append(order_group(loaded, shuffle=plan.recipe.shuffle).sizes)
    all_sizes = np.concatenate(sizes)
    starts: Int64s = np.cumsum(all_sizes) - all_sizes
    return starts
