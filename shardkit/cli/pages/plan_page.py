"""The page of `shardkit plan`."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from shardkit.cli.shell.tables import print_columns, print_prose
from shardkit.forecast.estimate import carries_bytes, disk_holds, forecast, is_one_machine, pieces_a_worker
from shardkit.forecast.limit_checks import clear, find
from shardkit.forecast.values import Finding, Forecast, Setting, Workload
from shardkit.units import MiB, format_count, format_number, format_size


def describe_limits(workload: Workload, setting: Setting) -> tuple[Finding, ...]:
    """Returns the limits that cannot be passed and would be."""
    return tuple(f for f in find(workload, setting, forecast(workload, setting)) if f.is_fatal)


def make_document(workload: Workload, setting: Setting) -> dict[str, Any]:
    """Returns all of a forecast as JSON values."""
    cost = forecast(workload, setting)
    cleared, _ = clear(workload, setting)
    return {
        "inputs": msgspec.to_builtins(workload),
        "setting": msgspec.to_builtins(setting),
        "forecast": {
            **msgspec.to_builtins(cost),
            "num_shards": cost.num_shards,
            "num_groups": cost.num_groups,
            "num_bytes": cost.num_bytes,
        },
        "findings": [msgspec.to_builtins(f) for f in find(workload, setting, cost)],
        "setting_that_works": msgspec.to_builtins(cleared),
    }


def print_forecast(workload: Workload, setting: Setting) -> None:
    """Prints the needs, the limits that are passed, and settings that help."""
    console = Console(highlight=False)
    cost = forecast(workload, setting)
    of = f", as {format_count(setting.num_datasets)} datasets of which this is one" if setting.num_datasets > 1 else ""
    console.print(
        f"{format_number(workload.num_files, 'file')}, {format_size(workload.num_bytes)}, about "
        f"{format_number(workload.num_rows, 'row')}{of}",
        soft_wrap=True,
    )
    rows = [
        (s.name, format_count(s.num_shards), format_count(s.num_examples), format_size(s.num_bytes),
         format_size(s.num_framed_bytes), format_size(s.num_bytes / max(1, s.num_shards)), format_count(s.num_groups))
        for s in cost.splits
    ]  # fmt: skip
    headings = ("split", "shards", "examples", "size", "uncompressed", "mean shard", "groups")
    print_columns(console, headings, rows, num_left=1)
    print_columns(console, (f"on {setting.engine}", "", ""), _needs(setting, cost), last_is_left=True, num_left=1)
    findings = find(workload, setting, cost)
    for finding in findings:
        console.print()
        word, style = ("cannot work", "bold red") if finding.is_fatal else ("warning", "yellow")
        most = f"; at most {finding.limit}" if finding.limit else ""
        text = Text.assemble((f"{word}: ", style), f"{finding.what}: {finding.needed}{most}")
        print_prose(console, text)
        print_prose(console, Text(f"  limit: {finding.source}"))
        print_prose(console, Text(f"  instead: {finding.next_step}"))
    if findings:
        console.print()
        print_prose(console, Text(_way_out(workload, setting)))


def _needs(setting: Setting, cost: Forecast) -> list[tuple[str, str, str]]:
    at_once = format_number(setting.num_workers, "worker")
    if (pieces := pieces_a_worker(setting)) > 1:
        at_once = f"{at_once} of {pieces} pieces of work at the same time"
    is_carried = carries_bytes(setting)
    whose = "of the machine" if is_one_machine(setting) else "of each worker"
    place = "removed at the end" if is_one_machine(setting) else "on storage that all workers share"
    place = "in the work folder's store" if is_carried else place
    carried = "records, in chunks" if is_carried else "descriptors; records lie in the spool"
    rows = [
        ("input splits", format_count(cost.num_input_splits), "parts of the inputs that are read in one go"),
        (
            "groups",
            format_count(cost.num_groups),
            f"of {format_size(cost.max_group_bytes)}, each ordered in memory",
        ),
        (
            "shuffle",
            format_size(cost.shuffle_bytes),
            f"{format_count(cost.shuffle_elements)} elements: {carried}",
        ),
        ("spool", format_size(cost.spool_bytes), f"{format_number(cost.num_runs, 'run')}, {place}"),
        ("disk", format_size(cost.disk_bytes), f"{whose}, for {disk_holds(setting)}"),
        ("memory", format_size(cost.worker_bytes), f"{whose}, with {at_once}"),
        ("gathering", format_size(cost.gather_bytes), "memory of the one worker that lays out and commits"),
        ("requests", format_count(cost.num_put_requests), "files put"),
        ("", format_count(cost.num_input_requests), "reads of the inputs at least"),
        ("", format_count(cost.num_spool_requests), "reads of the spool"),
        ("manifest", format_size(cost.manifest_bytes), f"about, with a shard table of {format_size(cost.table_bytes)}"),
    ]
    return [row for row in rows if row[1] not in ("0", "0 B")]


def _way_out(workload: Workload, setting: Setting) -> str:
    cleared, cost = clear(workload, setting)
    options = " ".join(_options(setting, cleared))
    if find(workload, cleared, cost):
        return "No setting does away with all of it."
    many = f" in each of {format_count(cleared.num_datasets)} datasets" if cleared.num_datasets > 1 else ""
    return f"This works: {options} ({format_number(cost.num_shards, 'shard')}{many})"


def _options(before: Setting, after: Setting) -> list[str]:
    values: dict[str, tuple[int | str | None, int | str | None]] = {
        "--store": (before.store, after.store),
        "--work-dir": (before.work_place, "gs://bucket/work" if after.work_place != before.work_place else None),
        "--datasets": (before.num_datasets, after.num_datasets),
        "--shard-size": (before.shard_bytes, after.shard_bytes),
        "--num-shards": (before.num_shards, after.num_shards),
        "--workers": (before.num_workers, after.num_workers),
        "--worker-memory": (before.worker_memory_bytes, after.worker_memory_bytes),
        "--disk": (before.disk_bytes, after.disk_bytes),
        "--max-record-size": (before.max_row_bytes, after.max_row_bytes),
    }
    sizes = ("--shard-size", "--worker-memory", "--disk", "--max-record-size")
    found = [
        f"{name} {f'{new // MiB}MiB' if name in sizes and isinstance(new, int) else new}"
        for name, (old, new) in values.items()
        if new is not None and new != old
    ]
    return [*found, *(["--no-shuffle"] if before.shuffle and not after.shuffle else [])]
